//! A pod's resolver settings, which DHCP passes to the guest.

use crate::addresses;
use std::net::IpAddr;

/// More servers than glibc uses, and as many as fit into a DHCP answer.
const MOST_SERVERS: usize = 3;
/// Kubernetes' limit for `dnsConfig.searches`.
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
    /// Parses the text of a `resolv.conf`. Lines that are not understood are skipped, as resolvers do.
    pub fn parse(text: &str) -> Self {
        let mut resolver = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    resolver.servers.extend(words.next().and_then(addresses::ip));
                }
                // The last such line counts.
                Some("search" | "domain") => {
                    resolver.search = words
                        .take_while(|word| !word.starts_with(['#', ';']))
                        .map(|word| word.trim_end_matches('.').to_owned())
                        // The root domain adds nothing.
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

    /// Adds the machine's subdomain as the first search domain, as KubeVirt does: so `hostname -f` finds the
    /// name that a headless service with the subdomain's name gives the machine. The pod's own settings do
    /// not contain that domain.
    pub fn below(mut self, subdomain: &str) -> Self {
        let services = self.search.iter().filter(|domain| domain.contains(".svc."));
        // The longest domain is the most specific one.
        let Some(services) = services.max_by_key(|domain| domain.len()) else { return self };
        let below = format!("{subdomain}.");
        if !subdomain.is_empty() && !services.starts_with(&below) {
            self.search.insert(0, format!("{below}{services}"));
            self.search.truncate(MOST_SEARCHES);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_a_subdomain_looks_there_first() {
        let search = |text: &str, subdomain: &str| Resolver::parse(text).below(subdomain).search.join(" ");
        let usual = "search a.svc.cluster.local svc.cluster.local cluster.local much.longer.example.com";
        assert_eq!(
            search(usual, "sites"),
            "sites.a.svc.cluster.local a.svc.cluster.local svc.cluster.local cluster.local much.longer.example.com"
        );
        assert_eq!(search(usual, ""), usual.trim_start_matches("search "));
        assert_eq!(search("search sites.a.svc.cluster.local", "sites"), "sites.a.svc.cluster.local");
        assert_eq!(search("search example.com", "sites"), "example.com");
        let many = (0..40).map(|at| format!("n{at}.svc.x")).collect::<Vec<_>>().join(" ");
        assert_eq!(Resolver::parse(&format!("search {many}")).below("sites").search.len(), MOST_SEARCHES);
    }

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
