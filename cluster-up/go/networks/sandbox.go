package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// Arguments of plugins, which later identify the definition of an attachment.
const (
	definitionArgument = "NETWORK_DEFINITION"
	macArgument        = "MAC"
	uidArgument        = "K8S_POD_UID"
)

type pod struct{ namespace, name, uid string }

// sandbox is a pod's network namespace and its attachments. Its user holds its lock.
type sandbox struct {
	plugins   *libcni.CNIConfig
	client    *client
	container string
	netns     string
	pod       pod
}

// podArguments splits the arguments of a command.
func podArguments(text string) ([][2]string, error) {
	var arguments [][2]string
	for _, pair := range strings.Split(text, ";") {
		name, value, has := strings.Cut(pair, "=")
		if !has && pair != "" {
			return nil, fmt.Errorf("argument %q has no value", pair)
		}
		if has {
			arguments = append(arguments, [2]string{name, value})
		}
	}
	return arguments, nil
}

func (p pod) arguments(more ...[2]string) [][2]string {
	return append([][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.namespace}, {"K8S_POD_NAME", p.name}, {uidArgument, p.uid},
	}, more...)
}

func argument(of *libcni.NetworkAttachment, name string) string {
	for _, pair := range of.CniArgs {
		if pair[0] == name {
			return pair[1]
		}
	}
	return ""
}

func (s *sandbox) attached() ([]*libcni.NetworkAttachment, error) {
	attached, err := s.plugins.GetCachedAttachments(s.container)
	if err != nil {
		return nil, fmt.Errorf("read what is attached: %w", err)
	}
	return attached, nil
}

// attachFirst attaches the pod to the node's own network, or to the network that replaces it for this pod.
func (s *sandbox) attachFirst(ctx context.Context, link, override string, settings settings) (types.Result, error) {
	runtime := &libcni.RuntimeConf{
		ContainerID: s.container, NetNS: s.netns, IfName: link, Args: s.pod.arguments(), CapabilityArgs: settings.Runtime,
	}
	if override == "" {
		list, err := libcni.NetworkConfFromBytes(settings.Primary)
		if err != nil {
			return nil, fmt.Errorf("read the first network: %w", err)
		}
		return s.plugins.AddNetworkList(ctx, list, runtime)
	}
	namespace, name, qualified := strings.Cut(override, "/")
	if !qualified {
		namespace, name = defaultNamespace, override
	}
	list, err := s.definition(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	runtime.Args = s.pod.arguments([2]string{definitionArgument, namespace + "/" + name})
	return s.plugins.AddNetworkList(ctx, list, runtime)
}

func (s *sandbox) definition(ctx context.Context, namespace, name string) (*libcni.NetworkConfigList, error) {
	config, err := s.client.definition(ctx, namespace, name)
	if err != nil {
		return nil, fmt.Errorf("network attachment definition %s/%s: %w", namespace, name, err)
	}
	list, err := network(name, config)
	if err != nil {
		return nil, fmt.Errorf("network attachment definition %s/%s: %w", namespace, name, err)
	}
	return list, nil
}

func (s *sandbox) attach(ctx context.Context, selection selection) error {
	list, err := s.definition(ctx, selection.Namespace, selection.Name)
	if err != nil {
		return err
	}
	runtime := &libcni.RuntimeConf{
		ContainerID: s.container, NetNS: s.netns, IfName: selection.Interface,
		Args: s.pod.arguments([2]string{definitionArgument, selection.definition()}),
	}
	if selection.MAC != "" {
		runtime.Args = append(runtime.Args, [2]string{macArgument, selection.MAC})
		runtime.CapabilityArgs = map[string]any{"mac": selection.MAC}
	}
	if _, err := s.plugins.AddNetworkList(ctx, list, runtime); err != nil {
		// A partial attachment is not recorded.
		undone := s.plugins.DelNetworkList(ctx, list, runtime)
		return errors.Join(fmt.Errorf("attach %s as %s: %w", selection.definition(), selection.Interface, err), undone)
	}
	return nil
}

func (s *sandbox) detach(ctx context.Context, attachment *libcni.NetworkAttachment) error {
	list, err := libcni.NetworkConfFromBytes(attachment.Config)
	if err != nil {
		return fmt.Errorf("detach %s: %w", attachment.IfName, err)
	}
	err = s.plugins.DelNetworkList(ctx, list, &libcni.RuntimeConf{
		ContainerID: s.container, NetNS: s.netns, IfName: attachment.IfName,
		Args: attachment.CniArgs, CapabilityArgs: attachment.CapabilityArgs,
	})
	if err != nil {
		return fmt.Errorf("detach %s: %w", attachment.IfName, err)
	}
	return nil
}

// follow attaches and detaches until the pod has what its annotation asks for, and updates the record on the pod if it
// differs. It returns whether anything had to be done.
func (s *sandbox) follow(ctx context.Context, annotation, noted string) (bool, error) {
	asked, err := selections(annotation, s.pod.namespace)
	if err != nil {
		return false, err
	}
	attached, err := s.attached()
	if err != nil {
		return false, err
	}
	changed := false
	has := map[string]bool{}
	for _, attachment := range attached {
		if attachment.IfName == firstLink {
			continue
		}
		stays := slices.ContainsFunc(asked, func(one selection) bool {
			return one.Interface == attachment.IfName && one.definition() == argument(attachment, definitionArgument) &&
				one.MAC == argument(attachment, macArgument)
		})
		if stays {
			has[attachment.IfName] = true
			continue
		}
		changed = true
		if err := s.detach(ctx, attachment); err != nil {
			return changed, err
		}
	}
	for _, one := range asked {
		if has[one.Interface] {
			continue
		}
		changed = true
		if err := s.attach(ctx, one); err != nil {
			return changed, err
		}
	}
	status, err := s.status(asked)
	if err != nil || status == noted {
		return changed, err
	}
	return true, s.client.note(ctx, s.pod, status)
}

// entry is the record of one link, as Multus writes it.
type entry struct {
	Name      string    `json:"name"`
	Interface string    `json:"interface"`
	IPs       []string  `json:"ips,omitempty"`
	MAC       string    `json:"mac,omitempty"`
	MTU       int       `json:"mtu,omitempty"`
	Default   bool      `json:"default,omitempty"`
	DNS       types.DNS `json:"dns"`
}

// status is the record for the pod: the first network, then the others in the order of the annotation.
func (s *sandbox) status(asked []selection) (string, error) {
	attached, err := s.attached()
	if err != nil {
		return "", err
	}
	place := func(attachment *libcni.NetworkAttachment) int {
		return slices.IndexFunc(asked, func(one selection) bool { return one.Interface == attachment.IfName })
	}
	slices.SortFunc(attached, func(a, b *libcni.NetworkAttachment) int { return place(a) - place(b) })
	entries := []entry{}
	for _, attachment := range attached {
		list, err := libcni.NetworkConfFromBytes(attachment.Config)
		if err != nil {
			return "", fmt.Errorf("read what is attached: %w", err)
		}
		runtime := &libcni.RuntimeConf{ContainerID: s.container, IfName: attachment.IfName}
		kept, err := s.plugins.GetNetworkListCachedResult(list, runtime)
		if err != nil {
			return "", fmt.Errorf("read what is attached: %w", err)
		}
		if kept == nil {
			return "", fmt.Errorf("nothing is kept of link %s", attachment.IfName)
		}
		result, err := current.NewResultFromResult(kept)
		if err != nil {
			return "", fmt.Errorf("read what is attached: %w", err)
		}
		name := argument(attachment, definitionArgument)
		if name == "" {
			name = attachment.Network
		}
		entries = append(entries, entryOf(name, attachment.IfName, result))
	}
	text, err := json.Marshal(entries)
	return string(text), err
}

func entryOf(name, link string, result *current.Result) entry {
	entry := entry{Name: name, Interface: link, Default: link == firstLink, DNS: result.DNS}
	for _, one := range result.Interfaces {
		if one.Name == link && one.Sandbox != "" {
			entry.MAC, entry.MTU = one.Mac, one.Mtu
		}
	}
	for _, address := range result.IPs {
		entry.IPs = append(entry.IPs, address.Address.IP.String())
	}
	return entry
}
