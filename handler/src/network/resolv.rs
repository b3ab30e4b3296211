//! The pod's resolver settings, as DHCP hands them to the guest.

use barevirt_api::addresses;
use std::net::IpAddr;

/// More than glibc reads, and what a DHCP answer has room for.
const MOST_SERVERS: usize = 3;
/// What Kubernetes allows in `dnsConfig.searches`.
const MOST_SEARCHES: usize = 32;

/// Name servers and search domains of a `resolv.conf`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resolver {
    /// Addresses, in order.
    pub servers: Vec<IpAddr>,
    /// Domains, in order.
    pub search: Vec<String>,
}

impl Resolver {
    /// Reads the text of a `resolv.conf`; what is not understood is passed over, as resolvers do.
    pub fn parse(text: &str) -> Self {
        let mut resolver = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    resolver.servers.extend(words.next().and_then(addresses::ip));
                }
                // The last one counts.
                Some("search" | "domain") => {
                    resolver.search = words
                        .take_while(|word| !word.starts_with(['#', ';']))
                        .map(|word| word.trim_end_matches('.').to_owned())
                        // The root says nothing.
                        .filter(|word| !word.is_empty())
                        .collect();
                }
                _ => {}
            }
        }
        resolver.servers.truncate(MOST_SERVERS);
        resolver.search.truncate(MOST_SEARCHES);
        resolver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_kubelet_writes() {
        let resolver = Resolver::parse(
            "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 010.96.0.10\nnameserver fd00::a\noptions ndots:5\n",
        );
        assert_eq!(resolver.servers, ["10.96.0.10".parse::<IpAddr>().unwrap(), "fd00::a".parse().unwrap()]);
        assert_eq!(resolver.search, ["default.svc.cluster.local", "svc.cluster.local", "cluster.local"]);
    }

    #[test]
    fn bad_lines_are_passed_over_and_the_rest_is_bounded() {
        let mut text =
            "# comment\nnameserver\nnameserver not-an-address\nsearch . ..\nnameserver fe80::1%eth0\n"
                .to_owned();
        assert_eq!(Resolver::parse(&text), Resolver::default());
        for last in 0..200 {
            text.push_str(&format!("nameserver 10.0.0.{last}\n"));
        }
        assert_eq!(Resolver::parse(&text).servers.len(), MOST_SERVERS);
    }
}
