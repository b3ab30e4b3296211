//! Domain names on the wire (RFC 1035, section 3.1), without compression.

/// A valid domain name, stored as its labels on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    text: String,
    wire: Vec<u8>,
}

impl Name {
    /// Parses a name from resolv.conf. `None` if it cannot be sent: an empty or too long label, more than 255
    /// bytes in total, or the root itself.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let mut wire = Vec::with_capacity(text.len() + 2);
        for label in text.split('.') {
            let sound = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
            let length =
                u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length) && sound)?;
            wire.push(length);
            wire.extend(label.as_bytes());
        }
        wire.push(0);
        (wire.len() <= 255).then(|| Self { text: text.to_owned(), wire })
    }

    /// The name as text, without a final dot.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The name as it is sent.
    pub fn wire(&self) -> &[u8] {
        &self.wire
    }
}

/// As many of the names, in order, as fit into `room` bytes.
pub fn list(names: &[Name], room: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in names {
        if bytes.len() + name.wire.len() > room {
            break;
        }
        bytes.extend(&name.wire);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_labels() {
        let name = Name::parse("svc.cluster.local.").unwrap();
        assert_eq!(name.wire(), b"\x03svc\x07cluster\x05local\x00");
        assert_eq!(name.text(), "svc.cluster.local");
    }

    #[test]
    fn invalid_domain_names_are_refused() {
        let long_label = "a".repeat(64);
        let long_name = vec!["a".repeat(60); 5].join(".");
        for bad in ["", ".", "a..b", "a b", "ü.example", &long_label, &long_name] {
            assert_eq!(Name::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_list_holds_whole_names_only() {
        let names = [Name::parse("ab").unwrap(), Name::parse("cd").unwrap()];
        assert_eq!(list(&names, 8), b"\x02ab\x00\x02cd\x00");
        assert_eq!(list(&names, 7), b"\x02ab\x00");
        assert_eq!(list(&names, 0), b"");
    }
}
