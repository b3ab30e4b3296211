package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func pod(name string, address string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "here", UID: types.UID("uid-" + name), Labels: labels},
		Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{
			Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
		}}},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: address}}},
	}
}

func policy(spec v1.NetworkPolicySpec) world {
	client := pod("client", "10.0.0.2", map[string]string{"app": "client"})
	client.Spec.NodeName = "other"
	return world{
		pods:       []*corev1.Pod{pod("server", "10.0.0.1", map[string]string{"app": "server"}), client},
		namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{"team": "a"}}}},
		policies:   []*v1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "policy", Namespace: "here"}, Spec: spec}},
	}
}

func expect(t *testing.T, rules string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(rules, part) {
			t.Errorf("%q is not in\n%s", part, rules)
		}
	}
}

func TestPodsThatNoPolicySelectsAreLeftAlone(t *testing.T) {
	rules := policy(v1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}).rules("node")
	if strings.Contains(rules, "drop") {
		t.Error(rules)
	}
}

func TestAPolicyWithoutRulesLetsNothingIn(t *testing.T) {
	rules := policy(v1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}}}).rules("node")
	expect(t, rules, "chain ingress-uid-server {\n    ip saddr 10.0.0.1 return\n    drop\n  }", "ip daddr vmap { 10.0.0.1 : jump ingress-uid-server }")
	if strings.Contains(rules, "egress-") {
		t.Error(rules)
	}
}

func TestPeersPortsAndBlocksAreCombined(t *testing.T) {
	web, end := intstr.FromString("web"), int32(9)
	low, udp := intstr.FromInt32(5), corev1.ProtocolUDP
	rules := policy(v1.NetworkPolicySpec{
		Ingress: []v1.NetworkPolicyIngressRule{{
			From: []v1.NetworkPolicyPeer{
				{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}, NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}},
				{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}}},
				{IPBlock: &v1.IPBlock{CIDR: "fd00::/8", Except: []string{"fd00:1::/64"}}},
			},
			Ports: []v1.NetworkPolicyPort{{Port: &web}, {Port: &low, EndPort: &end, Protocol: &udp}},
		}},
	}).rules("node")
	expect(t, rules,
		"ip saddr 10.0.0.2 tcp dport 8080 return", "ip saddr 10.0.0.2 udp dport 5-9 return",
		"ip6 saddr fd00::/8 ip6 saddr != fd00:1::/64 tcp dport 8080 return")
	if strings.Count(rules, "8080") != 2 {
		t.Error("a peer of another team may enter:\n" + rules)
	}
}

func TestEgressLooksAPortUpInItsPeer(t *testing.T) {
	web := intstr.FromString("web")
	rules := policy(v1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}},
		PolicyTypes: []v1.PolicyType{v1.PolicyTypeEgress},
		Egress:      []v1.NetworkPolicyEgressRule{{To: []v1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}, Ports: []v1.NetworkPolicyPort{{Port: &web}}}},
	}).rules("node")
	expect(t, rules, "ip daddr 10.0.0.2 tcp dport 8080 return", "ip saddr vmap { 10.0.0.1 : jump egress-uid-server }")
	if strings.Contains(rules, "ingress-") {
		t.Error(rules)
	}
}
