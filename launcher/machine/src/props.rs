//! The properties of a QEMU object, in the order in which they were added.
//!
//! One value has two forms: as text it is the JSON argument of `-device`, `-blockdev`, `-netdev` or
//! `-object`; as a value it is the arguments of the corresponding QMP command.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// An ordered JSON object.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) struct Props(Vec<(&'static str, Value)>);

impl Props {
    pub(crate) fn new(key: &'static str, value: impl Into<Value>) -> Self {
        Self(vec![(key, value.into())])
    }

    /// A device: its driver, then its id.
    pub(crate) fn device(driver: &'static str, id: &str) -> Self {
        Self::new("driver", driver).with("id", id)
    }

    pub(crate) fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.0.push((key, value.into()));
        self
    }

    pub(crate) fn maybe(self, key: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    pub(crate) fn nest(self, key: &'static str, inner: &Props) -> Self {
        let value = inner.to_value();
        self.with(key, value)
    }

    /// The arguments of the QMP command.
    pub(crate) fn to_value(&self) -> Value {
        Value::Object(self.0.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect())
    }

    /// The argument of the command line option.
    pub(crate) fn to_text(&self) -> String {
        let pairs: Vec<String> =
            self.0.iter().map(|(key, value)| format!("{}:{value}", Value::from(*key))).collect();
        format!("{{{}}}", pairs.join(","))
    }
}

impl Serialize for Props {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_value_say_the_same() {
        let props = Props::device("virtio-blk-pci", "disk-a")
            .with("serial", "a\"b,c")
            .maybe("bootindex", Some(1))
            .maybe("x", None::<u32>);
        assert_eq!(
            props.to_text(),
            r#"{"driver":"virtio-blk-pci","id":"disk-a","serial":"a\"b,c","bootindex":1}"#
        );
        let read: Value = serde_json::from_str(&props.to_text()).unwrap();
        assert_eq!(read, props.to_value());
    }
}
