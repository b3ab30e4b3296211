package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Name of the engine's own table.
const table = "test-bed-policy"

// world is the input for the rules.
type world struct {
	pods       []*corev1.Pod
	namespaces []*corev1.Namespace
	policies   []*v1.NetworkPolicy
}

// direction of packets, seen from the guarded pod. `own` and `other` are the keywords of nft for its address and the peer's.
type direction struct{ name, own, other string }

var (
	ingress = direction{"ingress", "daddr", "saddr"}
	egress  = direction{"egress", "saddr", "daddr"}
)

// rule is one rule of a policy, in a form for both directions.
type rule struct {
	peers []v1.NetworkPolicyPeer
	ports []v1.NetworkPolicyPort
}

// rules is a script for nft that replaces the whole table. Replies always pass. So does traffic from the node to its pods,
// since only forwarded packets and those for the node are checked. Neighbour discovery always passes, because it precedes
// any connection.
func (w world) rules(node string) string {
	var chains strings.Builder
	dispatch := map[string][]string{}
	for _, pod := range w.sortedPods() {
		if pod.Spec.NodeName != node || pod.Spec.HostNetwork || over(pod) {
			continue
		}
		for _, way := range []direction{ingress, egress} {
			rules, isolated := w.rulesFor(pod, way)
			if !isolated {
				continue
			}
			chain := fmt.Sprintf("%s-%s", way.name, pod.UID)
			fmt.Fprintf(&chains, "  chain %s {\n", chain)
			for _, address := range addresses(pod) {
				fmt.Fprintf(&chains, "    %s return\n", match(way.other, address.String()))
				family := family(address)
				dispatch[way.name+family] = append(dispatch[way.name+family], fmt.Sprintf("%s : jump %s", address, chain))
			}
			for _, rule := range rules {
				for _, line := range w.lines(pod, way, rule) {
					fmt.Fprintf(&chains, "    %s\n", strings.TrimSpace(line+" return"))
				}
			}
			chains.WriteString("    drop\n  }\n")
		}
	}
	lookup := func(way direction) string {
		var lines strings.Builder
		for _, family := range []string{"ip", "ip6"} {
			if elements := dispatch[way.name+family]; len(elements) > 0 {
				fmt.Fprintf(&lines, "    %s %s vmap { %s }\n", family, way.own, strings.Join(elements, ", "))
			}
		}
		return lines.String()
	}
	const pass = "    ct state established,related accept\n" +
		"    icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, mld-listener-query, mld-listener-report, mld2-listener-report } accept\n"
	return "table inet " + table + "\ndelete table inet " + table + "\ntable inet " + table + " {\n" + chains.String() +
		"  chain forward {\n    type filter hook forward priority filter - 5; policy accept;\n" + pass + lookup(egress) + lookup(ingress) + "  }\n" +
		"  chain input {\n    type filter hook input priority filter - 5; policy accept;\n" + pass + lookup(egress) + "  }\n}\n"
}

// rulesFor returns the rules that allow traffic to or from a pod, and whether any policy applies to that direction.
func (w world) rulesFor(pod *corev1.Pod, way direction) (rules []rule, isolated bool) {
	for _, policy := range w.sortedPolicies() {
		if policy.Namespace != pod.Namespace || !selects(&policy.Spec.PodSelector, pod.Labels) || !speaksOf(policy, way) {
			continue
		}
		isolated = true
		if way == ingress {
			for _, from := range policy.Spec.Ingress {
				rules = append(rules, rule{from.From, from.Ports})
			}
		} else {
			for _, to := range policy.Spec.Egress {
				rules = append(rules, rule{to.To, to.Ports})
			}
		}
	}
	return rules, isolated
}

// speaksOf follows the API's default: every policy applies to ingress, and to egress only if it has such rules.
func speaksOf(policy *v1.NetworkPolicy, way direction) bool {
	if len(policy.Spec.PolicyTypes) == 0 {
		return way == ingress || len(policy.Spec.Egress) > 0
	}
	wanted := v1.PolicyTypeIngress
	if way == egress {
		wanted = v1.PolicyTypeEgress
	}
	return slices.Contains(policy.Spec.PolicyTypes, wanted)
}

// lines are the matches of one rule, each complete. A named port is looked up in the pod that has it: the guarded one for
// ingress, each peer for egress.
func (w world) lines(pod *corev1.Pod, way direction, rule rule) []string {
	if len(rule.peers) == 0 {
		return combine([]string{""}, ports(rule.ports, pod, way == ingress))
	}
	var lines []string
	for _, peer := range rule.peers {
		if peer.IPBlock != nil {
			lines = append(lines, combine(block(peer.IPBlock, way), ports(rule.ports, pod, way == ingress))...)
			continue
		}
		for _, other := range w.peers(pod.Namespace, peer) {
			owner := pod
			if way == egress {
				owner = other
			}
			var matches []string
			for _, address := range addresses(other) {
				matches = append(matches, match(way.other, address.String()))
			}
			lines = append(lines, combine(matches, ports(rule.ports, owner, true))...)
		}
	}
	return lines
}

func (w world) peers(namespace string, peer v1.NetworkPolicyPeer) []*corev1.Pod {
	var found []*corev1.Pod
	for _, pod := range w.sortedPods() {
		if pod.Spec.HostNetwork || over(pod) {
			continue
		}
		if peer.NamespaceSelector == nil {
			if pod.Namespace != namespace {
				continue
			}
		} else if !selects(peer.NamespaceSelector, w.namespaceLabels(pod.Namespace)) {
			continue
		}
		if peer.PodSelector == nil || selects(peer.PodSelector, pod.Labels) {
			found = append(found, pod)
		}
	}
	return found
}

func block(block *v1.IPBlock, way direction) []string {
	line := match(way.other, block.CIDR)
	for _, except := range block.Except {
		line += " " + strings.Replace(match(way.other, except), way.other, way.other+" !=", 1)
	}
	return []string{line}
}

// ports returns a match for each port, or one that matches everything if none are given. A name that no container has
// matches nothing.
func ports(ports []v1.NetworkPolicyPort, owner *corev1.Pod, named bool) []string {
	if len(ports) == 0 {
		return []string{""}
	}
	var matches []string
	for _, port := range ports {
		protocol := corev1.ProtocolTCP
		if port.Protocol != nil {
			protocol = *port.Protocol
		}
		word := strings.ToLower(string(protocol))
		switch {
		case port.Port == nil:
			matches = append(matches, "meta l4proto "+word)
		case port.Port.Type == intstr.String:
			for _, container := range owner.Spec.Containers {
				for _, candidate := range container.Ports {
					if named && candidate.Name == port.Port.StrVal && candidate.Protocol == protocol {
						matches = append(matches, fmt.Sprintf("%s dport %d", word, candidate.ContainerPort))
					}
				}
			}
		case port.EndPort != nil:
			matches = append(matches, fmt.Sprintf("%s dport %d-%d", word, port.Port.IntVal, *port.EndPort))
		default:
			matches = append(matches, fmt.Sprintf("%s dport %d", word, port.Port.IntVal))
		}
	}
	return matches
}

// combine joins each element of the first list with each of the second.
func combine(first, second []string) []string {
	var lines []string
	for _, a := range first {
		for _, b := range second {
			lines = append(lines, strings.TrimSpace(a+" "+b))
		}
	}
	return lines
}

// match compares an address of packets with an address or a range.
func match(which, addresses string) string {
	word := "ip"
	if strings.Contains(addresses, ":") {
		word = "ip6"
	}
	return fmt.Sprintf("%s %s %s", word, which, addresses)
}

func family(address netip.Addr) string {
	if address.Is6() {
		return "ip6"
	}
	return "ip"
}

// addresses returns the valid addresses of a pod.
func addresses(pod *corev1.Pod) []netip.Addr {
	var found []netip.Addr
	for _, podIP := range pod.Status.PodIPs {
		if address, err := netip.ParseAddr(podIP.IP); err == nil {
			found = append(found, address)
		}
	}
	return found
}

// over returns whether another pod may have the address by now.
func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// selects returns whether a selector, which the API server has checked, matches these labels.
func selects(selector *metav1.LabelSelector, of map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(of))
}

func (w world) namespaceLabels(name string) map[string]string {
	for _, namespace := range w.namespaces {
		if namespace.Name == name {
			return namespace.Labels
		}
	}
	return nil
}

// Caches have no order, and equal worlds must give equal rules.
func (w world) sortedPods() []*corev1.Pod {
	return slices.SortedFunc(slices.Values(w.pods), func(a, b *corev1.Pod) int { return strings.Compare(string(a.UID), string(b.UID)) })
}

func (w world) sortedPolicies() []*v1.NetworkPolicy {
	return slices.SortedFunc(slices.Values(w.policies), func(a, b *v1.NetworkPolicy) int { return strings.Compare(string(a.UID), string(b.UID)) })
}
