//! Compares schemas with types, from a kind's root down.

use crate::list::{Field, Form, Types};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A kind of difference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// The list has the field, our schema does not.
    Missing,
    /// Our schema has the field, the list does not.
    Surplus,
    /// The JSON types differ: the list's, and ours.
    Form(String, String),
    /// The list requires the field.
    NotRequired,
    /// Our schema requires the field.
    Required,
}

/// A difference, at the place where it was found first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Type and field, joined by a dot; only the kind if the list does not contain it.
    pub(crate) place: String,
    /// The kind of difference.
    pub(crate) what: What,
    /// Path in the first kind that has the field.
    pub(crate) path: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): ", self.place, self.path)?;
        match &self.what {
            What::Missing => f.write_str("is missing here"),
            What::Surplus => f.write_str("is not in the list"),
            What::Form(list, ours) => write!(f, "is {list} in the list and {ours} here"),
            What::NotRequired => f.write_str("is required in the list and not here"),
            What::Required => f.write_str("is required here and not in the list"),
        }
    }
}

/// A comparison in progress.
#[derive(Debug)]
pub(crate) struct Comparison<'a> {
    types: &'a Types,
    seen: BTreeSet<(String, What)>,
    /// The differences in the order in which they were found.
    pub(crate) differences: Vec<Difference>,
    /// Types that a kind leads to, each with its schemas.
    pub(crate) reached: BTreeMap<String, Vec<Value>>,
    /// Number of compared properties.
    pub(crate) compared: usize,
}

impl<'a> Comparison<'a> {
    /// A comparison that has seen nothing.
    pub(crate) fn new(types: &'a Types) -> Self {
        Comparison {
            types,
            seen: BTreeSet::new(),
            differences: Vec::new(),
            reached: BTreeMap::new(),
            compared: 0,
        }
    }

    /// Compares a definition. All versions of a kind have one schema; the first version's name is the type's.
    pub(crate) fn kind(&mut self, definition: &Value) {
        let version = &definition["spec"]["versions"][0];
        let kind = text(&definition["spec"]["names"]["kind"]);
        let name = format!("{}.{kind}", text(&version["name"]));
        let mut root = version["schema"]["openAPIV3Schema"].clone();
        // The API machinery defines these fields for every object.
        let own = ["apiVersion", "kind", "metadata"];
        if let Some(properties) = root["properties"].as_object_mut() {
            properties.retain(|name, _| !own.contains(&name.as_str()));
        }
        self.object(&name, &root, kind, &own);
    }

    fn object(&mut self, name: &str, schema: &Value, path: &str, without: &[&str]) {
        let types = self.types;
        let Some(fields) = types.get(name) else {
            return self.differs(name, What::Surplus, path);
        };
        let before = self.reached.entry(name.to_owned()).or_default();
        // The same type in another place; a different schema for it is compared like the first.
        if before.contains(schema) {
            return;
        }
        before.push(schema.clone());
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (field, wanted) in fields.iter().filter(|(field, _)| !without.contains(&field.as_str())) {
            let place = format!("{name}.{field}");
            let path = format!("{path}.{field}");
            match properties.get(field) {
                None => self.differs(&place, What::Missing, &path),
                Some(property) => {
                    self.property(&place, wanted, property, required.contains(&field.as_str()), &path);
                }
            }
        }
        for field in properties.keys().filter(|field| !fields.contains_key(*field)) {
            self.differs(&format!("{name}.{field}"), What::Surplus, &format!("{path}.{field}"));
        }
    }

    fn property(&mut self, place: &str, wanted: &Field, schema: &Value, required: bool, path: &str) {
        self.compared += 1;
        match (wanted.required, required) {
            (true, false) => self.differs(place, What::NotRequired, path),
            (false, true) => self.differs(place, What::Required, path),
            (true, true) | (false, false) => {}
        }
        self.form(place, &wanted.form, schema, path);
    }

    fn form(&mut self, place: &str, wanted: &Form, schema: &Value, path: &str) {
        let kind = schema["type"].as_str().unwrap_or("any");
        let int_or_string = schema["x-kubernetes-int-or-string"] == true;
        let good = match wanted {
            Form::String => kind == "string" && !int_or_string,
            Form::Boolean => kind == "boolean",
            Form::Integer(format) => {
                kind == "integer" && (format.is_empty() || schema["format"] == format.as_str())
            }
            Form::Number => kind == "number",
            Form::IntOrString => int_or_string,
            Form::AnyObject => kind == "object",
            Form::Object(name) => {
                let good = kind == "object" && !schema["additionalProperties"].is_object();
                if good {
                    self.object(name, schema, path, &[]);
                }
                good
            }
            Form::Array(item) if kind == "array" => {
                return self.form(place, item, &schema["items"], &format!("{path}[]"));
            }
            Form::Map(value) if schema["additionalProperties"].is_object() => {
                return self.form(place, value, &schema["additionalProperties"], &format!("{path}{{}}"));
            }
            Form::Array(_) | Form::Map(_) => false,
        };
        if !good {
            let ours = match schema["format"].as_str() {
                _ if int_or_string => "int-or-string".to_owned(),
                Some(format) => format!("{kind}:{format}"),
                None if schema["additionalProperties"].is_object() => "map".to_owned(),
                None => kind.to_owned(),
            };
            self.differs(place, What::Form(format!("{wanted:?}"), ours), path);
        }
    }

    fn differs(&mut self, place: &str, what: What, path: &str) {
        if self.seen.insert((place.to_owned(), what.clone())) {
            self.differences.push(Difference { place: place.to_owned(), what, path: path.to_owned() });
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::parse;
    use serde_json::json;

    const LIST: &str = "type\tfield\tjson type\trequired\nv1.A\tkind\tstring\t\nv1.A\tspec\tobject:v1.S\trequired\n\
                        v1.S\tname\tstring\trequired\nv1.S\tsize\tinteger:int32\t\nv1.S\tparts\tarray of object:v1.P\t\n\
                        v1.P\tmore\tmap of string\t\n";

    fn differences(spec: &Value, required: &Value) -> Vec<String> {
        let types = parse(LIST).unwrap();
        let mut comparison = Comparison::new(&types);
        comparison.kind(&json!({"spec": {
            "names": {"kind": "A"},
            "versions": [{"name": "v1", "schema": {"openAPIV3Schema": {
                "type": "object", "required": ["spec"],
                "properties": {"spec": {"type": "object", "required": required, "properties": spec}},
            }}}],
        }}));
        comparison.differences.iter().map(ToString::to_string).collect()
    }

    fn right() -> Value {
        json!({
            "name": {"type": "string"}, "size": {"type": "integer", "format": "int32"},
            "parts": {"type": "array", "items": {"type": "object", "properties": {
                "more": {"type": "object", "additionalProperties": {"type": "string"}},
            }}},
        })
    }

    #[test]
    fn the_same_does_not_differ() {
        assert_eq!(differences(&right(), &json!(["name"])), Vec::<String>::new());
    }

    #[test]
    fn each_difference_is_reported() {
        assert_eq!(
            differences(&right(), &json!(["size"])),
            [
                "v1.S.name (A.spec.name): is required in the list and not here",
                "v1.S.size (A.spec.size): is required here and not in the list",
            ]
        );
        let mut spec = right();
        spec["size"]["format"] = json!("int64");
        spec["color"] = json!({"type": "string"});
        spec["parts"]["items"]["properties"]["more"] = json!({"type": "array", "items": {"type": "string"}});
        spec.as_object_mut().unwrap().remove("name");
        assert_eq!(
            differences(&spec, &json!([])),
            [
                "v1.S.name (A.spec.name): is missing here",
                "v1.P.more (A.spec.parts[].more): is Map(String) in the list and array here",
                "v1.S.size (A.spec.size): is Integer(\"int32\") in the list and integer:int64 here",
                "v1.S.color (A.spec.color): is not in the list",
            ]
        );
    }
}
