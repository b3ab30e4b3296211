//! The request body of a freeze.

use std::time::Duration;

use serde_json::Value;

use crate::duration;

/// When file systems are thawed if the body gives no time, or 0.
pub const DEFAULT: Duration = Duration::from_secs(300);
/// The longest time that they may stay frozen.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The time after which frozen file systems are thawed, from a `FreezeUnfreezeTimeout`.
///
/// # Errors
/// Names the field and what is wrong with it.
pub fn unfreeze_after(body: &[u8]) -> Result<Duration, String> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(DEFAULT);
    }
    let body: Value = serde_json::from_slice(body)
        .map_err(|error| format!("Can not unmarshal Request body to struct, error: {error}"))?;
    let Some(fields) = body.as_object() else {
        return Err("Can not unmarshal Request body to struct, error: it is not an object".to_owned());
    };
    let after = match fields.get("unfreezeTimeout") {
        None | Some(Value::Null) => Some(DEFAULT),
        Some(Value::String(text)) => duration::parse(text),
        Some(_) => None,
    };
    match after {
        None => Err("unfreezeTimeout: not a duration of zero or more, such as \"5m0s\"".to_owned()),
        Some(after) if after > LONGEST => Err("unfreezeTimeout: longer than 24h".to_owned()),
        Some(Duration::ZERO) => Ok(DEFAULT),
        Some(after) => Ok(after),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freeze_has_an_end() {
        for (body, seconds) in [
            ("", 300),
            ("{}", 300),
            (r#"{"unfreezeTimeout": null}"#, 300),
            (r#"{"unfreezeTimeout": "0s"}"#, 300),
            (r#"{"unfreezeTimeout": "1m30s"}"#, 90),
            (r#"{"unfreezeTimeout": "24h"}"#, 86400),
        ] {
            assert_eq!(unfreeze_after(body.as_bytes()), Ok(Duration::from_secs(seconds)), "{body}");
        }
        for body in [
            "x",
            "[]",
            r#"{"unfreezeTimeout": 5}"#,
            r#"{"unfreezeTimeout": "-1s"}"#,
            r#"{"unfreezeTimeout": "soon"}"#,
            r#"{"unfreezeTimeout": "25h"}"#,
        ] {
            assert!(unfreeze_after(body.as_bytes()).is_err(), "{body}");
        }
    }
}
