//! A cause: a field, what is wrong with it, and its machine-readable kind.

use crate::advice;
use std::fmt;

/// The end of a message about a feature that this version does not have.
const NOT_YET: &str = " is not supported yet";

/// One fault of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Path of the field, such as `spec.domain.devices.disks[1].name`; empty if no field is at fault.
    pub field: String,
    /// What is wrong, as a message for users that names the field or the object.
    pub message: String,
    /// What is wrong, for programs.
    pub kind: CauseKind,
}

/// What is wrong, for programs: the cause types of `meta/v1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CauseKind {
    /// Something must be given.
    Required,
    /// A value is wrong.
    Invalid,
    /// A value is given twice.
    Duplicate,
    /// A value is known but not supported.
    NotSupported,
    /// A value names an object that does not exist.
    NotFound,
    /// A value is valid but not allowed here.
    Forbidden,
}

impl CauseKind {
    /// The name that the API machinery uses for this kind (`status.details.causes[].reason`).
    pub fn reason(self) -> &'static str {
        match self {
            CauseKind::Required => "FieldValueRequired",
            CauseKind::Invalid => "FieldValueInvalid",
            CauseKind::Duplicate => "FieldValueDuplicate",
            CauseKind::NotSupported => "FieldValueNotSupported",
            CauseKind::NotFound => "FieldValueNotFound",
            CauseKind::Forbidden => "FieldValueForbidden",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // KubeVirt's messages often begin with the path of the field or of its parent.
        let root = self.field.split_inclusive('.').next().unwrap_or_default();
        if self.message.contains(&self.field) || self.message.starts_with(root) {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.field, self.message)
        }
    }
}

impl Cause {
    /// All causes in one line, each with its field.
    pub fn joined(causes: &[Cause]) -> String {
        let texts: Vec<String> =
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        texts.join("; ")
    }

    /// The same with advice, as users read it: what to use instead of a field that is not supported yet, and which page says
    /// more. All other causes stay as they are.
    #[must_use]
    pub fn advised(&self) -> Self {
        let is_ours = self.kind == CauseKind::NotSupported && self.message.ends_with(NOT_YET);
        let advice = advice::about(&without_indices(&self.field)).filter(|_| is_ours);
        let with =
            |advice: &advice::Advice| format!("{}; {} ({})", self.message, advice.instead, advice.page);
        Cause { message: advice.map_or_else(|| self.message.clone(), with), ..self.clone() }
    }

    /// A cause of this kind.
    pub fn new(kind: CauseKind, field: &Path, message: impl Into<String>) -> Self {
        Cause { field: field.to_string(), message: message.into(), kind }
    }

    /// A wrong value.
    pub fn invalid(field: &Path, message: impl Into<String>) -> Self {
        Self::new(CauseKind::Invalid, field, message)
    }

    /// A value that must be given.
    pub fn required(field: &Path, message: impl Into<String>) -> Self {
        Self::new(CauseKind::Required, field, message)
    }

    /// A named object that does not exist or is not sufficient.
    pub fn not_found(field: &Path, message: impl Into<String>) -> Self {
        Self::new(CauseKind::NotFound, field, message)
    }

    /// A value that is given twice.
    pub fn duplicate(field: &Path, message: impl Into<String>) -> Self {
        Self::new(CauseKind::Duplicate, field, message)
    }

    /// A known value that is not supported, at all or in this place.
    pub fn not_supported(field: &Path, message: impl Into<String>) -> Self {
        Self::new(CauseKind::NotSupported, field, message)
    }

    /// A feature of KubeVirt that this version does not have yet. `what` is the value, for fields whose name
    /// alone says too little.
    pub fn not_supported_yet(field: &Path, what: &str) -> Self {
        let space = if what.is_empty() { "" } else { " " };
        Self::new(CauseKind::NotSupported, field, format!("{field}{space}{what}{NOT_YET}"))
    }
}

/// A path without indices of lists. A key of a map, which users choose, may have any brackets.
pub(crate) fn without_indices(path: &str) -> String {
    let (mut plain, mut is_inside) = (String::new(), false);
    for letter in path.chars() {
        match letter {
            '[' => is_inside = true,
            ']' => is_inside = false,
            _ if is_inside => {}
            _ => plain.push(letter),
        }
    }
    plain
}

/// Path of a field, as Kubernetes writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// A path that starts with this field.
    pub fn new(root: &str) -> Self {
        Path(root.to_owned())
    }

    /// A field of this object, or several levels of it joined by dots.
    #[must_use]
    pub fn child(&self, field: &str) -> Self {
        Path(format!("{}.{field}", self.0))
    }

    /// The object that this field is a member of.
    pub(super) fn holder(&self) -> Self {
        Path(self.0.rsplit_once('.').map_or_else(String::new, |(holder, _)| holder.to_owned()))
    }

    /// The list that this is an element of.
    pub(super) fn list(&self) -> Self {
        Path(self.0.rsplit_once('[').map_or_else(|| self.0.clone(), |(list, _)| list.to_owned()))
    }

    /// Whether `field` is the path of this field or of one inside it.
    pub(super) fn holds(&self, field: &str) -> bool {
        field.strip_prefix(&self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }

    /// An element of this list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Path(format!("{}[{index}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
