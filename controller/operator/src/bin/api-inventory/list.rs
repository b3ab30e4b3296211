//! The list of types.

use std::collections::BTreeMap;

/// Types by name, their fields by name.
pub(crate) type Types = BTreeMap<String, BTreeMap<String, Field>>;

/// Marks a type without fields.
const NONE: &str = "-";

/// A field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Its JSON form.
    pub(crate) form: Form,
    /// Whether it is required.
    pub(crate) required: bool,
}

/// The JSON form of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A string.
    String,
    /// A boolean.
    Boolean,
    /// An integer, with its format.
    Integer(String),
    /// Any number.
    Number,
    /// An integer or a string: quantities, and Kubernetes' type of this name.
    IntOrString,
    /// An object of a type of the list.
    Object(String),
    /// An object whose properties are not compared: Kubernetes' own types, and free-form objects.
    AnyObject,
    /// A list.
    Array(Box<Form>),
    /// An object with keys of the user's choice.
    Map(Box<Form>),
}

/// Why the list cannot be parsed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ListError {
    /// A line without four columns.
    #[error("line {0} does not have four columns")]
    Columns(usize),
    /// An unknown JSON type.
    #[error("line {0} has the JSON type {1:?}, which is not known")]
    Form(usize, String),
}

/// Parses a list. Lines that start with `#` are comments, the first other line is the heading.
///
/// # Errors
/// A line cannot be parsed; the error has its number.
pub(crate) fn parse(text: &str) -> Result<Types, ListError> {
    let mut types = Types::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    for (index, line) in lines.skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [name, field, form, required] = columns.as_slice() else {
            return Err(ListError::Columns(index + 1));
        };
        let fields = types.entry((*name).to_owned()).or_default();
        if *field == NONE {
            continue;
        }
        let form = read(form).ok_or_else(|| ListError::Form(index + 1, (*form).to_owned()))?;
        fields.entry((*field).to_owned()).or_insert(Field { form, required: *required == "required" });
    }
    Ok(types)
}

fn read(text: &str) -> Option<Form> {
    if let Some(item) = text.strip_prefix("array of ") {
        return read(item).map(Box::new).map(Form::Array);
    }
    if let Some(value) = text.strip_prefix("map of ") {
        return read(value).map(Box::new).map(Form::Map);
    }
    if let Some(name) = text.strip_prefix("object:") {
        return Some(object(name));
    }
    // After a space: the values of an enumeration, or a default.
    let (form, format) = text.split_once(':').unwrap_or((text, ""));
    match form.split(' ').next()? {
        "string" | "string|null" => Some(Form::String),
        "boolean" => Some(Form::Boolean),
        "integer" => Some(Form::Integer(format.to_owned())),
        "number" => Some(Form::Number),
        "object" => Some(Form::AnyObject),
        _ => None,
    }
}

fn object(name: &str) -> Form {
    match name.strip_prefix("k8s.io.") {
        None => Form::Object(name.to_owned()),
        Some(own) => match own.rsplit('.').next() {
            Some("Quantity" | "IntOrString") => Form::IntOrString,
            Some("Time" | "Duration") => Form::String,
            _ => Form::AnyObject,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_form() {
        let text = "# a comment\ntype\tfield\tjson type\trequired\nA\tx\tarray of object:B\trequired\n\
                    A\ty\tmap of integer default=0:int32\t\nB\tz\tstring {C,D}\t\n\
                    B\tq\tobject:k8s.io.apimachinery.pkg.api.resource.Quantity\t\nB\tf\tnumber:double\t\nC\t-\t-\t\n";
        let types = parse(text).unwrap();
        let field = |form, required| Field { form, required };
        let of = |form| Box::new(form);
        assert_eq!(types["A"]["x"], field(Form::Array(of(Form::Object("B".into()))), true));
        assert_eq!(types["A"]["y"], field(Form::Map(of(Form::Integer("int32".into()))), false));
        assert_eq!(types["B"]["z"].form, Form::String);
        assert_eq!(types["B"]["q"].form, Form::IntOrString);
        assert_eq!(types["B"]["f"].form, Form::Number);
        assert!(types["C"].is_empty());
    }

    #[test]
    fn an_error_names_the_line_that_cannot_be_parsed() {
        assert_eq!(parse("heading\nA\tb\n"), Err(ListError::Columns(2)));
        assert_eq!(parse("heading\nA\tb\tfoo\t\n"), Err(ListError::Form(2, "foo".into())));
    }
}
