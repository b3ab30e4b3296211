//! Names of disks in the style of Linux: `vda`, `sdb`, `sdaa`. The guest may name its disks otherwise.

/// The first name with this prefix that is free.
#[must_use]
pub fn first_free(prefix: &str, is_free: impl Fn(&str) -> bool) -> String {
    let mut names = (0..).map(|number| format!("{prefix}{}", letters(number)));
    names.find(|name| is_free(name)).unwrap_or_default()
}

/// a to z, then aa and so on.
fn letters(number: u32) -> String {
    let letter = char::from(b'a' + u8::try_from(number % 26).unwrap_or_default());
    match number / 26 {
        0 => letter.to_string(),
        more => letters(more - 1) + &letter.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_free_name_is_given() {
        assert_eq!(letters(25) + &letters(26) + &letters(701) + &letters(702), "zaazzaaa");
        assert_eq!(first_free("vd", |_| true), "vda");
        assert_eq!(first_free("sd", |name| !["sda", "sdb"].contains(&name)), "sdc");
    }
}
