//! The metrics in a Prometheus expression, for tests: a rule over a metric that no component exports would have no effect.
#![cfg(test)]

use std::collections::BTreeSet;

const WORDS: [&str; 12] = [
    "and",
    "or",
    "unless",
    "on",
    "by",
    "without",
    "ignoring",
    "group_left",
    "group_right",
    "bool",
    "offset",
    "inf",
];

/// Names of metrics: words that are not functions or keywords, and not within the braces of labels or the parentheses of
/// label lists.
pub(super) fn metrics(expression: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut rest = expression;
    while let Some(letter) = rest.chars().next() {
        if letter == '"' || letter == '\'' {
            rest = after(&rest[1..], letter);
        } else if letter == '{' {
            rest = after_labels(&rest[1..]);
        } else if letter == '[' {
            rest = after(&rest[1..], ']');
        } else if letter.is_ascii_alphabetic() || letter == '_' {
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
            let (word, next) = rest.split_at(end.unwrap_or(rest.len()));
            let arguments = next.trim_start().strip_prefix('(');
            let keyword = WORDS.contains(&word);
            rest = match arguments {
                Some(labels) if keyword && !["and", "or", "unless"].contains(&word) => after(labels, ')'),
                _ => next,
            };
            if !keyword && arguments.is_none() && !is_aggregation(word, next) {
                names.insert(word.to_owned());
            }
        } else if letter.is_ascii_digit() {
            rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
        } else {
            rest = &rest[letter.len_utf8()..];
        }
    }
    names
}

/// `sum by (node) (...)`: the labels come before the arguments.
fn is_aggregation(word: &str, next: &str) -> bool {
    let next = next.trim_start();
    ["sum", "count", "max", "min", "avg", "topk", "group"].contains(&word)
        && (next.starts_with("by ") || next.starts_with("by(") || next.starts_with("without"))
}

fn after(text: &str, end: char) -> &str {
    text.find(end).map_or("", |at| &text[at + end.len_utf8()..])
}

fn after_labels(mut text: &str) -> &str {
    loop {
        match text.chars().next() {
            None => return text,
            Some('}') => return &text[1..],
            Some(quote @ ('"' | '\'')) => text = after(&text[1..], quote),
            Some(other) => text = &text[other.len_utf8()..],
        }
    }
}

#[test]
fn names_are_found() {
    for (expression, expected) in [
        ("sum(up{namespace='x', pod=~'virt-.*'}) or vector(0)", &["up"][..]),
        ("a:b:sum < c and a:b:sum > 0", &["a:b:sum", "c"]),
        ("max by (node) (a{b=\"}\"} * on(pod) group_left(node) max by(pod,node)(c{d=''})) == 1", &["a", "c"]),
        ("rate ( a_total{code=~\"(4|5)[0-9]\"} [5m] ) / b offset 10m", &["a_total", "b"]),
        ("(x - y) != 0", &["x", "y"]),
        ("group by (a) (b{c='d'}) * on(a) group_right() sum by (a, e) (f)", &["b", "f"]),
    ] {
        let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(metrics(expression), expected, "{expression}");
    }
}
