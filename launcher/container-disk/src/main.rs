//! Opens the disk inside a user's image and hands its descriptor to the launcher.

fn main() {}
