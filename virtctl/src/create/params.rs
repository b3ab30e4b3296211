//! Flags with several parameters in one value: `--flag name:value,name:value`.

use std::collections::BTreeMap;
use std::fmt::Display;

use anyhow::{anyhow, bail};
use barevirt_api::quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The error of a flag.
pub(super) fn flag_error(flag: &str, why: impl Display) -> anyhow::Error {
    anyhow!("failed to parse \"--{flag}\" flag: {why}")
}

/// The parameters of one flag.
#[derive(Debug)]
pub(super) struct Params<'a> {
    flag: &'static str,
    values: BTreeMap<&'a str, &'a str>,
}

impl<'a> Params<'a> {
    /// Reads the value of a flag.
    pub(super) fn read(flag: &'static str, text: &'a str) -> anyhow::Result<Self> {
        if text.is_empty() {
            return Err(flag_error(flag, "params may not be empty"));
        }
        let mut values = BTreeMap::new();
        for param in text.split(',') {
            let Some((name, value)) = param.split_once(':') else {
                let why = format!("params need to have at least one colon: {param}");
                return Err(flag_error(flag, why));
            };
            values.insert(name, value);
        }
        Ok(Self { flag, values })
    }

    /// Refuses parameters that are not in the list.
    pub(super) fn only(self, known: &[&str]) -> anyhow::Result<Self> {
        let unknown: Vec<String> = self
            .values
            .iter()
            .filter(|(name, _)| !known.contains(name))
            .map(|(name, value)| format!("{name}:{value}"))
            .collect();
        if unknown.is_empty() {
            Ok(self)
        } else {
            Err(self.error(format!("unknown param(s): {}", unknown.join(","))))
        }
    }

    /// The error of this flag.
    pub(super) fn error(&self, why: impl Display) -> anyhow::Error {
        flag_error(self.flag, why)
    }

    /// A parameter that says something.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.values.get(name).filter(|text| !text.is_empty()).map(|text| (*text).to_owned())
    }

    /// A parameter that has to be there.
    pub(super) fn required(&self, name: &str) -> anyhow::Result<String> {
        self.text(name).ok_or_else(|| self.error(format!("{name} must be specified")))
    }

    /// A whole number.
    pub(super) fn number(&self, name: &str) -> anyhow::Result<Option<i32>> {
        let Some(text) = self.values.get(name) else { return Ok(None) };
        let number: Option<i32> = text.parse().ok().filter(|number| *number >= 0);
        number.map(Some).ok_or_else(|| {
            self.error(format!("failed to parse param \"{name}\": \"{text}\" is not a number"))
        })
    }

    /// An amount of bytes.
    pub(super) fn size(&self, name: &str) -> anyhow::Result<Option<Quantity>> {
        let Some(text) = self.values.get(name) else { return Ok(None) };
        let parsed = size(text);
        parsed.map(Some).map_err(|error| self.error(format!("failed to parse param \"{name}\": {error}")))
    }

    /// Words between semicolons.
    pub(super) fn list(&self, name: &str) -> Vec<String> {
        self.text(name).iter().flat_map(|text| text.split(';')).map(str::to_owned).collect()
    }

    /// A name, with or without the namespace that stands before a slash.
    pub(super) fn prefixed(&self, name: &str) -> anyhow::Result<(Option<String>, String)> {
        let text = self.required(name)?;
        prefixed(&text).map_err(|why| self.error(format!("{name} invalid: {why}")))
    }

    /// The same where a namespace makes no sense.
    pub(super) fn local(&self, name: &str, what: &str) -> anyhow::Result<String> {
        match self.prefixed(name)? {
            (None, name) => Ok(name),
            (Some(_), name) => {
                Err(self.error(format!("not allowed to specify namespace of {what} \"{name}\"")))
            }
        }
    }
}

/// Splits `prefix/name`.
pub(super) fn prefixed(text: &str) -> anyhow::Result<(Option<String>, String)> {
    let (prefix, name) = match text.split('/').collect::<Vec<_>>().as_slice() {
        [name] => (None, *name),
        [prefix, name] => (Some(*prefix).filter(|prefix| !prefix.is_empty()), *name),
        more => bail!("invalid count {} of slashes in prefix/name", more.len() - 1),
    };
    if name.is_empty() {
        bail!("name cannot be empty");
    }
    Ok((prefix.map(str::to_owned), name.to_owned()))
}

/// A quantity as it was written, when it is one.
pub(super) fn size(text: &str) -> anyhow::Result<Quantity> {
    let size = Quantity(text.to_owned());
    quantity::bytes(&size)?;
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error<T: std::fmt::Debug>(result: anyhow::Result<T>) -> String {
        result.unwrap_err().to_string().replace("failed to parse \"--flag\" flag: ", "")
    }

    #[test]
    fn parameters_are_read() {
        let params = Params::read("flag", "src:docker://a:b,bootorder:2,size:1Gi,list:a;b,none:").unwrap();
        assert_eq!(params.text("src").as_deref(), Some("docker://a:b"));
        assert_eq!(params.number("bootorder").unwrap(), Some(2));
        assert_eq!(params.size("size").unwrap(), Some(Quantity("1Gi".to_owned())));
        assert_eq!(params.list("list"), ["a", "b"]);
        assert_eq!((params.text("none"), params.text("other")), (None, None));
        assert_eq!(error(params.required("none")), "none must be specified");
        assert_eq!(error(params.only(&["src", "size", "none", "list"])), "unknown param(s): bootorder:2");
    }

    #[test]
    fn invalid_params_are_refused() {
        assert_eq!(error(Params::read("flag", "")), "params may not be empty");
        assert_eq!(error(Params::read("flag", "a:1,b")), "params need to have at least one colon: b");
        let params = Params::read("flag", "n:-1,s:1Zi,p:a/b/c,e:a/").unwrap();
        assert!(error(params.number("n")).starts_with("failed to parse param \"n\""));
        assert!(error(params.size("s")).starts_with("failed to parse param \"s\""));
        assert_eq!(error(params.prefixed("p")), "p invalid: invalid count 2 of slashes in prefix/name");
        assert_eq!(error(params.prefixed("e")), "e invalid: name cannot be empty");
        let params = Params::read("flag", "p:a/b").unwrap();
        assert_eq!(error(params.local("p", "pvc")), "not allowed to specify namespace of pvc \"b\"");
    }
}
