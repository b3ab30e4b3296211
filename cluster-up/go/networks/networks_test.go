package main

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
)

func TestBothFormsOfTheAnnotationAreRead(t *testing.T) {
	for text, wanted := range map[string]string{
		"":                   "",
		"[]":                 "",
		"red":                "shop/red@net1",
		"red, net/blue@lan9": "shop/red@net1 net/blue@lan9",
		`[{"name":"red"}]`:   "shop/red@net1",
		`[{"name":"red","namespace":"net","mac":"02:00:00:00:00:05","interface":"pod1","cni-args":null}]`: "net/red@pod1",
	} {
		read, err := selections(text, "shop")
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var words []string
		for _, one := range read {
			words = append(words, one.definition()+"@"+one.Interface)
		}
		if found := strings.Join(words, " "); found != wanted {
			t.Errorf("%q is read as %q", text, found)
		}
	}
}

func TestWhatCannotBeAttachedIsRefused(t *testing.T) {
	for _, text := range []string{
		"[", ",", "a/b/c", `[{"interface":"x"}]`, "red@eth0", "red@a,blue@a", `[{"name":"red","ips":["10.0.0.1"]}]`,
		`[{"name":"red","cni-args":{"a":"b"}}]`, `[{"name":"red","mac":"a;b=c"}]`,
	} {
		if read, err := selections(text, "shop"); err == nil {
			t.Errorf("%q is read as %v", text, read)
		}
	}
}

func TestADefinitionIsOneOrSeveralPlugins(t *testing.T) {
	for _, config := range []string{
		`{"type":"bridge"}`, `{"cniVersion":"0.4.0","name":"red","type":"bridge"}`, `{"plugins":[{"type":"bridge"}]}`,
	} {
		list, err := network("red", config)
		if err != nil {
			t.Fatalf("%s: %v", config, err)
		}
		if list.Name != "red" || len(list.Plugins) != 1 || list.Plugins[0].Network.Type != "bridge" {
			t.Errorf("%s is read as %+v", config, list)
		}
	}
	if _, err := network("red", ""); err == nil {
		t.Error("nothing is a configuration")
	}
}

func TestALinkIsNotedAsMultusDoes(t *testing.T) {
	result := &current.Result{
		Interfaces: []*current.Interface{{Name: "lan0", Mac: "a"}, {Name: "net1", Mac: "b", Mtu: 1400, Sandbox: "/run/netns/x"}},
		IPs:        []*current.IPConfig{{Address: net.IPNet{IP: net.IPv4(10, 1, 2, 3), Mask: net.CIDRMask(24, 32)}}},
	}
	text, err := json.Marshal(entryOf("shop/red", "net1", result))
	if err != nil {
		t.Fatal(err)
	}
	wanted := `{"name":"shop/red","interface":"net1","ips":["10.1.2.3"],"mac":"b","mtu":1400,"dns":{}}`
	if string(text) != wanted {
		t.Errorf("noted is %s", text)
	}
}
