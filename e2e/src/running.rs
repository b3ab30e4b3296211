//! A program that runs during the test, and ends with it.

use crate::command::wait_for_exit;
use crate::wait::SOON;
use std::ops::{Deref, DerefMut};
use std::process::Child;

/// A child that is killed when the value is dropped, also in a test that fails. Otherwise it would keep the
/// output of the whole run open.
#[derive(Debug)]
pub struct Running(pub Child);

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = self.0.kill().map_err(anyhow::Error::from);
        match ended.and_then(|()| wait_for_exit(&mut self.0, SOON)) {
            Ok(Some(_)) => {}
            Ok(None) => eprintln!("process {} was killed and does not end", self.0.id()),
            Err(error) => eprintln!("process {} is not ended: {error:#}", self.0.id()),
        }
    }
}
