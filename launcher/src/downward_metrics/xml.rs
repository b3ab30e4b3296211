//! vhostmd's XML. Pure.

use std::fmt::Write as _;

/// The subject of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The node.
    Host,
    /// The machine.
    Guest,
}

/// A value with its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Amount {
    /// `string`.
    Text(String),
    /// `int64`.
    Signed(i64),
    /// `uint64`.
    Unsigned(u64),
    /// `real64`, in millionths.
    Micros(u64),
}

/// A metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    subject: Subject,
    name: &'static str,
    amount: Amount,
    /// Empty if it has no unit.
    unit: &'static str,
}

impl Metric {
    /// A metric with this name.
    #[must_use]
    pub fn new(subject: Subject, name: &'static str, amount: Amount, unit: &'static str) -> Self {
        Self { subject, name, amount, unit }
    }

    fn write(&self, text: &mut String) {
        let context = match self.subject {
            Subject::Host => "host",
            Subject::Guest => "vm",
        };
        let (kind, value) = match &self.amount {
            Amount::Text(text) => ("string", escaped(text)),
            Amount::Signed(number) => ("int64", number.to_string()),
            Amount::Unsigned(number) => ("uint64", number.to_string()),
            Amount::Micros(micros) => ("real64", format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)),
        };
        let unit = if self.unit.is_empty() { String::new() } else { format!(" unit=\"{}\"", self.unit) };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\n  <metric type=\"{kind}\" context=\"{context}\"{unit}>\n    <name>{}</name>\n    <value>{value}</value>\n  </metric>",
            self.name
        );
    }
}

/// All metrics in one document.
#[must_use]
pub fn document(metrics: &[Metric]) -> String {
    let mut text = "<metrics>".to_owned();
    for metric in metrics {
        metric.write(&mut text);
    }
    text.push_str(if metrics.is_empty() { "</metrics>" } else { "\n</metrics>" });
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_what_readers_of_vhostmd_expect() {
        let metrics = [
            Metric::new(Subject::Host, "HostName", Amount::Text("a<&>".to_owned()), ""),
            Metric::new(Subject::Guest, "TotalCPUTime", Amount::Micros(2_000_030), "s"),
        ];
        let expected = "<metrics>
  <metric type=\"string\" context=\"host\">
    <name>HostName</name>
    <value>a&lt;&amp;&gt;</value>
  </metric>
  <metric type=\"real64\" context=\"vm\" unit=\"s\">
    <name>TotalCPUTime</name>
    <value>2.000030</value>
  </metric>
</metrics>";
        assert_eq!(document(&metrics), expected);
        assert_eq!(document(&[]), "<metrics></metrics>");
    }
}
