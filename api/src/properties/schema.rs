//! Objects made by walking a definition's schema. In the long run they contain every field of a kind.
//!
//! The choices come from a tape of bytes. A shorter tape with lower bytes makes a simpler object, so proptest
//! can shrink it.

use crate::crd;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::{Map, Value, json};

/// Choices, one byte each. After its end each choice is the first possibility.
#[derive(Debug)]
pub(super) struct Tape<'a>(std::slice::Iter<'a, u8>);

impl<'a> Tape<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Tape(bytes.iter())
    }

    /// A number below `count`, which is not zero.
    fn below(&mut self, count: usize) -> usize {
        let high = if count > 256 { self.byte() << 8 } else { 0 };
        (high | self.byte()) % count
    }

    fn byte(&mut self) -> usize {
        self.0.next().copied().map_or(0, usize::from)
    }

    /// True once in `times` calls.
    fn rarely(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    fn one<'b, T>(&mut self, of: &'b [T]) -> &'b T {
        &of[self.below(of.len())]
    }
}

/// The schema of a kind's specification, in its first version.
pub(super) fn specification(kind: &str) -> JSONSchemaProps {
    let definition = crd::all().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    let schema = definition.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
    schema.properties.unwrap()["spec"].clone()
}

/// Texts that fields accept: names, enumerated values, amounts, addresses.
const WORDS: [&str; 70] = [
    "a",
    "b",
    "default",
    "c.d",
    "",
    "virtio",
    "sata",
    "scsi",
    "usb",
    "ide",
    "e1000e",
    "64Mi",
    "1Gi",
    "2Mi",
    "1",
    "100m",
    "-1",
    "0",
    "99Ei",
    "q35",
    "pc-q35-9.2",
    "virt",
    "amd64",
    "arm64",
    "s390x",
    "None",
    "LiveMigrate",
    "TCP",
    "UDP",
    "Paused",
    "02:00:00:00:00:01",
    "02:00:00:00:00:00",
    "0000:81:01.0",
    "10.0.0.1",
    "::1",
    "none",
    "writethrough",
    "native",
    "threads",
    "stop",
    "report",
    "shared",
    "auto",
    "supplementalPool",
    "require",
    "force",
    "absent",
    "up",
    "Disk",
    "DiskOrCreate",
    "/disk/a.img",
    "/",
    "../x",
    "eA==",
    "%",
    "tablet",
    "ich9",
    "pvpanic",
    "vga",
    "ramfb",
    "reset",
    "host-model",
    "host-passthrough",
    "Terminate",
    "Always",
    "IfNotPresent",
    "WaitAsReceiver",
    "Halted",
    "5d307ca9-b3ef-428c-8861-06e72d69f223",
    "é\u{1b}\n,=\"",
];
const NUMBERS: [i64; 14] =
    [1, 0, 2, 3, 224, 512, 4096, -1, 255, 65_535, 65_536, i32::MAX as i64, u32::MAX as i64, i64::MAX];

/// A value that the schema allows, most of the time.
pub(super) fn value(schema: &JSONSchemaProps, tape: &mut Tape<'_>) -> Value {
    if tape.rarely(250) {
        return tape
            .one(&[json!(null), json!({}), json!([]), json!("a"), json!(1), json!(true), json!([[]])])
            .clone();
    }
    if schema.x_kubernetes_int_or_string == Some(true) {
        return if tape.rarely(4) { json!(tape.one(&NUMBERS)) } else { json!(tape.one(&WORDS[11..19])) };
    }
    match schema.type_.as_deref() {
        Some("string") => text(tape),
        Some("integer") => {
            let fits =
                |number: &i64| schema.format.as_deref() != Some("int32") || i32::try_from(*number).is_ok();
            json!(Some(*tape.one(&NUMBERS)).filter(fits).unwrap_or(1))
        }
        Some("number") => json!(1.5),
        Some("boolean") => json!(tape.below(2) == 1),
        Some("array") => {
            let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items else { return json!([]) };
            let count = if tape.rarely(200) { 300 } else { tape.below(3) };
            (0..count).map(|_| value(items, tape)).collect()
        }
        _ => object(schema, tape),
    }
}

fn text(tape: &mut Tape<'_>) -> Value {
    if tape.rarely(100) { json!("x".repeat(40_000)) } else { json!(tape.one(&WORDS)) }
}

fn object(schema: &JSONSchemaProps, tape: &mut Tape<'_>) -> Value {
    let mut members = Map::new();
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        for _ in 0..tape.below(3) {
            let name = *tape.one(&["cpu", "memory", "a", "hugepages-2Mi", "kubevirt.io/nodeName"]);
            members.insert(name.to_owned(), value(values, tape));
        }
    }
    let Some(properties) = &schema.properties else { return Value::Object(members) };
    let properties: Vec<(&String, &JSONSchemaProps)> = properties.iter().collect();
    for name in schema.required.iter().flatten() {
        if let Some((_, schema)) =
            properties.iter().find(|(known, _)| *known == name).filter(|_| !tape.rarely(250))
        {
            members.insert(name.clone(), value(schema, tape));
        }
    }
    if !properties.is_empty() {
        for _ in 0..tape.below(5) {
            let (name, schema) = *tape.one(&properties);
            members.insert(name.clone(), value(schema, tape));
        }
    }
    Value::Object(members)
}

/// The object with one member, at any depth, replaced by another value that the schema allows there.
pub(super) fn grafted(mut object: Value, schema: &JSONSchemaProps, tape: &mut Tape<'_>) -> Value {
    graft(&mut object, schema, tape);
    object
}

fn graft(at: &mut Value, schema: &JSONSchemaProps, tape: &mut Tape<'_>) {
    match (at, &schema.properties, &schema.items) {
        (Value::Object(members), Some(properties), _) if !properties.is_empty() => {
            let properties: Vec<(&String, &JSONSchemaProps)> = properties.iter().collect();
            let (name, schema) = *tape.one(&properties);
            match members.get_mut(name) {
                Some(member) if !tape.rarely(4) => graft(member, schema, tape),
                _ => {
                    members.insert(name.clone(), value(schema, tape));
                }
            }
        }
        (Value::Array(items), _, Some(JSONSchemaPropsOrArray::Schema(schema))) => {
            let index = tape.below(items.len() + 1);
            match items.get_mut(index) {
                Some(item) => graft(item, schema, tape),
                None => items.push(value(schema, tape)),
            }
        }
        (at, ..) => *at = value(schema, tape),
    }
}

/// Paths of the fields of a schema: joined by dots, without indices.
pub(super) fn fields(schema: &JSONSchemaProps, path: &str, found: &mut Vec<String>) {
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        fields(items, path, found);
    }
    for (name, schema) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        fields(schema, &path, found);
        found.push(path);
    }
}

/// Paths of the fields that a value contains.
pub(super) fn given(value: &Value, path: &str, found: &mut impl Extend<String>) {
    match value {
        Value::Array(items) => {
            for item in items {
                given(item, path, found);
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                let path = format!("{path}.{name}");
                given(member, &path, found);
                found.extend([path]);
            }
        }
        _ => {}
    }
}
