//! Rules for texts: names, labels, paths, and parts of a command line.

/// At most this many characters of a user's text are repeated in a message.
const QUOTED: usize = 64;

/// A user's text for a message: of bounded length, without control characters.
pub fn quoted(text: &str) -> String {
    let mut quoted: String =
        text.chars().take(QUOTED).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(QUOTED).is_some() {
        quoted.push_str("...");
    }
    quoted
}

/// Whether the text is a DNS label (RFC 1123): lower case letters, digits and `-`, up to 63, not starting or
/// ending with `-`.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// What a DNS label is, for messages.
pub(crate) const DNS_LABEL: &str =
    "lower case letters, digits and '-', at most 63, starting and ending with a letter or digit";

/// Whether the text is a DNS subdomain (RFC 1123): labels joined by dots, up to 253.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

/// Whether the text is an IANA service name: up to 15 lower case letters, digits and single `-`, with a
/// letter.
pub(crate) fn is_port_name(text: &str) -> bool {
    is_dns_label(text)
        && text.len() <= 15
        && text.bytes().any(|b| b.is_ascii_lowercase())
        && !text.contains("--")
}

/// Whether the text is a UUID in its usual form.
fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(index, byte)| match index {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// A UUID in its usual form. The dashes may be left out, as libvirt permits. `None` if the text is no UUID.
pub(crate) fn uuid(text: &str) -> Option<String> {
    if is_uuid(text) {
        return Some(text.to_owned());
    }
    let is_plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_plain.then(|| [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]].join("-"))
}

/// Whether the text is printable ASCII of at most this length.
pub(crate) fn is_printable(text: &str, limit: usize) -> bool {
    text.len() <= limit && text.bytes().all(|b| (b' '..=b'~').contains(&b))
}

/// Whether the text consists of letters, digits and `_ . + -`, and is not empty.
pub(crate) fn is_serial(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'+' | b'-'))
}

/// Whether a path is absolute, has no part that is empty, `.` or `..`, and has only characters that are usual
/// in file names.
pub(crate) fn is_plain_path(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| {
        rest.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
            && !path.contains(char::is_control)
    })
}

/// Whether the text may be the value of a label: up to 63 letters, digits and `-_.`, with a letter or digit
/// at both ends.
pub(crate) fn is_label_value(text: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.is_empty()
        || (text.len() <= 63
            && edge(text.bytes().next())
            && edge(text.bytes().next_back())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')))
}

/// Whether the text may be the key of a label: a value that is not empty, optionally after a DNS subdomain
/// and a slash.
pub(crate) fn is_label_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(is_dns_subdomain)
}

/// Whether the text is empty or may be the name of a CPU model. The name becomes part of QEMU's command line,
/// where a comma starts a property.
pub fn is_cpu_model(text: &str) -> bool {
    text.len() <= 64 && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Whether pods can request a resource of this name.
pub(crate) fn is_resource_name(text: &str) -> bool {
    text.contains('/') && is_label_key(text)
}
