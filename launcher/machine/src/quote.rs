//! QEMU's `key=value,key=value` syntax, for the options that do not take JSON.
//!
//! In this syntax a comma ends a value, and a doubled comma stands for a comma; after the key nothing else is
//! special. So every value goes through [`quote`], and every option through [`Options`].

use std::fmt::Write;

/// A value with its commas doubled.
pub(crate) fn quote(value: &str) -> String {
    value.replace(',', ",,")
}

/// The argument of one option under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options(String);

impl Options {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Starts with a word without a key, such as the kind of a chardev or accelerator.
    pub(crate) fn kind(kind: &str) -> Self {
        Self(quote(kind))
    }

    pub(crate) fn with(mut self, key: &str, value: impl ToString) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        let value = value.to_string();
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{key}={}", quote(&value));
        self
    }

    pub(crate) fn maybe(self, key: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    pub(crate) fn switch(self, key: &str, on: bool) -> Self {
        self.with(key, if on { "on" } else { "off" })
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Parses the syntax like QEMU (`get_opt_name`/`get_opt_value`): a single comma ends the value.
    fn read_back(text: &str) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        let mut rest = text.chars().peekable();
        while rest.peek().is_some() {
            let key: String = std::iter::from_fn(|| rest.next_if(|letter| *letter != '=')).collect();
            rest.next();
            let mut value = String::new();
            while let Some(letter) = rest.next() {
                if letter == ',' && rest.next_if_eq(&',').is_none() {
                    break;
                }
                value.push(letter);
            }
            pairs.push((key, value));
        }
        pairs
    }

    #[test]
    fn a_comma_in_a_value_is_doubled() {
        assert_eq!(Options::kind("socket").with("path", "/a,b=c").into_string(), "socket,path=/a,,b=c");
    }

    proptest! {
        #[test]
        fn values_survive_qemus_parser(first in "[ -~]{0,20}", second in "[ -~]{0,20}") {
            // An empty value before another option is the only ambiguous form: `a=,b=` is read as a comma.
            prop_assume!(!first.is_empty() && !first.ends_with(','));
            let text = Options::new().with("a", &first).with("b", &second).into_string();
            prop_assert_eq!(read_back(&text), vec![("a".into(), first), ("b".into(), second)]);
        }
    }
}
