package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

const (
	networksAnnotation = "k8s.v1.cni.cncf.io/networks"
	statusAnnotation   = "k8s.v1.cni.cncf.io/network-status"
	defaultAnnotation  = "v1.multus-cni.io/default-network"
	// The namespace in which Multus looks for a default network without a namespace.
	defaultNamespace = "kube-system"
)

// selection is one network that a pod asks for.
type selection struct {
	Name      string         `json:"name"`
	Namespace string         `json:"namespace"`
	Interface string         `json:"interface"`
	MAC       string         `json:"mac"`
	Arguments map[string]any `json:"cni-args"`
}

// definition is the name of the definition with its namespace.
func (s selection) definition() string { return s.Namespace + "/" + s.Name }

// selections reads an annotation: JSON, or namespace/name@interface with commas between.
func selections(text, namespace string) ([]selection, error) {
	text = strings.TrimSpace(text)
	var read []selection
	if strings.HasPrefix(text, "[") {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&read); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", networksAnnotation, err)
		}
	} else if text != "" {
		for _, word := range strings.Split(text, ",") {
			name, link, _ := strings.Cut(strings.TrimSpace(word), "@")
			space, rest, qualified := strings.Cut(name, "/")
			if !qualified {
				space, rest = "", name
			}
			read = append(read, selection{Name: rest, Namespace: space, Interface: link})
		}
	}
	taken := map[string]bool{firstLink: true}
	for at := range read {
		one := &read[at]
		if one.Namespace == "" {
			one.Namespace = namespace
		}
		if one.Interface == "" {
			one.Interface = fmt.Sprintf("net%d", at+1)
		}
		if one.Name == "" || strings.ContainsAny(one.Name+one.Namespace, "/;=") || strings.ContainsAny(one.MAC, ";=") {
			return nil, fmt.Errorf("annotation %s: entry %d names no definition", networksAnnotation, at)
		}
		if taken[one.Interface] {
			return nil, fmt.Errorf("annotation %s: entry %d: link %s is there already", networksAnnotation, at, one.Interface)
		}
		if len(one.Arguments) > 0 {
			return nil, fmt.Errorf("annotation %s: entry %d: cni-args are not read by the test bed", networksAnnotation, at)
		}
		taken[one.Interface] = true
	}
	return read, nil
}

// network reads a definition's configuration, of one plugin or of several. If it has no name, it gets the definition's.
func network(name, config string) (*libcni.NetworkConfigList, error) {
	var fields map[string]any
	if err := json.Unmarshal([]byte(config), &fields); err != nil {
		return nil, fmt.Errorf("spec.config: %w", err)
	}
	if _, has := fields["name"]; !has {
		fields["name"] = name
	}
	if _, several := fields["plugins"]; !several {
		fields = map[string]any{"name": fields["name"], "cniVersion": fields["cniVersion"], "plugins": []any{fields}}
	}
	if fields["cniVersion"] == nil {
		fields["cniVersion"] = "1.0.0"
	}
	whole, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("spec.config: %w", err)
	}
	return libcni.NetworkConfFromBytes(whole)
}
