//! Queries of requests: `name=value` pairs. Nothing is decoded, because our names and values need no escapes.

/// Every value of this name, in order.
pub fn values<'q>(query: Option<&'q str>, name: &str) -> impl Iterator<Item = &'q str> {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(move |(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_name() {
        let of = |query| values(query, "a").collect::<Vec<_>>();
        assert_eq!(of(None), [""; 0]);
        assert_eq!(of(Some("b=1&a=2&aa=3&a&a=4=5&a=")), ["2", "4=5", ""]);
    }
}
