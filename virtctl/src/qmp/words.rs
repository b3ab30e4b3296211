//! Turns what a user types into QMP: `key=value` and JSON, as in QEMU's qmp-shell. Pure.

use anyhow::{Context, bail};
use serde_json::{Map, Value};

/// Arguments of a command: none, one JSON object, or `key=value` with dots for nested keys.
pub(crate) fn arguments(words: &[String]) -> anyhow::Result<Value> {
    match words {
        [] => Ok(Value::Null),
        [object] if object.trim_start().starts_with('{') => {
            let value: Value = serde_json::from_str(object).context("the arguments are not JSON")?;
            if value.is_object() { Ok(value) } else { bail!("the arguments are not a JSON object") }
        }
        words => {
            let mut all = Map::new();
            for word in words {
                let Some((key, text)) = word.split_once('=') else {
                    bail!("argument \"{word}\" is neither key=value nor a JSON object");
                };
                put(&mut all, key, value(text)).with_context(|| format!("argument \"{word}\""))?;
            }
            Ok(Value::Object(all))
        }
    }
}

/// JSON when it is a number, a boolean, a list or an object; else text. Quotes make anything text.
fn value(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(Value::Null) | Err(_) => match text {
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            _ => Value::String(text.to_owned()),
        },
        Ok(value) => value,
    }
}

fn put(all: &mut Map<String, Value>, key: &str, value: Value) -> anyhow::Result<()> {
    let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    if first.is_empty() {
        bail!("there is no key");
    }
    match rest {
        None if all.contains_key(first) => bail!("{first} is given twice"),
        None => {
            all.insert(first.to_owned(), value);
            Ok(())
        }
        Some(rest) => match all.entry(first).or_insert_with(|| Value::Object(Map::new())) {
            Value::Object(within) => put(within, rest, value),
            _ => bail!("{first} is not an object"),
        },
    }
}

/// Splits a line into words at spaces outside quotes, braces and brackets. Double quotes around a whole value
/// stay, since they mark it as text; single quotes are removed.
pub(crate) fn split(line: &str) -> anyhow::Result<Vec<String>> {
    let (mut words, mut word, mut depth) = (Vec::new(), String::new(), 0_usize);
    let (mut quote, mut escaped) = (None, false);
    for letter in line.trim().chars() {
        match (quote, letter) {
            (Some('"'), '\\') if !escaped => {
                escaped = true;
                word.push(letter);
                continue;
            }
            (Some(open), letter) if letter == open && !escaped => {
                quote = None;
                if open == '"' {
                    word.push(letter);
                }
            }
            (Some(_), letter) => word.push(letter),
            (None, '\'') if depth == 0 => quote = Some('\''),
            (None, '"') => {
                quote = Some('"');
                word.push('"');
            }
            (None, ' ' | '\t') if depth == 0 => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            (None, letter) => {
                match letter {
                    '{' | '[' => depth += 1,
                    '}' | ']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                word.push(letter);
            }
        }
        escaped = false;
    }
    if quote.is_some() || depth > 0 {
        bail!("a quote or a bracket is open");
    }
    if !word.is_empty() {
        words.push(word);
    }
    Ok(words)
}

/// Whether a pattern matches the event.
pub(crate) fn stands_for(pattern: &str, event: &str) -> bool {
    let (pattern, event) = (pattern.to_uppercase(), event.to_uppercase());
    pattern.strip_suffix('*').map_or(pattern == event, |start| event.starts_with(start))
}

/// QEMU's error as a sentence.
pub(crate) fn error(error: &Value) -> String {
    let word = |key: &str| error[key].as_str().unwrap_or("unknown");
    format!("{}: {}", word("class"), word("desc"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn typed(line: &str) -> anyhow::Result<Value> {
        arguments(&split(line)?)
    }

    #[test]
    fn key_and_value_are_what_qmp_shell_makes_of_them() {
        let line = r#"a=1 b=true c=text d.e=-2.5 d.f="7" g=[1,2] h={"x": "y z"} i='two words' j= k=False"#;
        let wanted = json!({
            "a": 1, "b": true, "c": "text", "d": {"e": -2.5, "f": "7"}, "g": [1, 2], "h": {"x": "y z"},
            "i": "two words", "j": "", "k": false,
        });
        assert_eq!(typed(line).unwrap(), wanted);
        assert_eq!(
            typed(r#"{"path": "/a b", "n": {"m": 1}}"#).unwrap(),
            json!({"path": "/a b", "n": {"m": 1}})
        );
        assert_eq!(typed("").unwrap(), Value::Null);
    }

    #[test]
    fn invalid_qmp_lines_are_refused() {
        for line in ["word", "=1", "a=1 a=2", "a=1 a.b=2", "{", "{\"a\"}", "a=\"x", ".=1"] {
            assert!(typed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn patterns_of_events() {
        assert!(
            stands_for("stop", "STOP") && stands_for("BLOCK_*", "BLOCK_IO_ERROR") && stands_for("*", "X")
        );
        assert!(!stands_for("STOP", "STOPPED") && !stands_for("BLOCK_*", "STOP"));
    }
}
