// Program networks replaces Multus on the nodes of the test bed: it attaches a pod to its first network as usual, then to
// the networks that the pod's annotation names, by the reference plugins, and records the attachments on the pod.
//
//	containerd --ADD--> networks --ADD--> bridge, portmap            the node's own network: eth0
//	                       |------ADD--> what each definition says   podb1f51a511f1, net1, ...
//	                       '------PATCH--> k8s.v1.cni.cncf.io/network-status
//	networks watch --ADD, DEL-->                                     where the annotation of a running pod has changed
//
// libcni records attachments in files beneath cacheDirectory: detaching needs nothing else. A pod without the annotation
// costs only the start of this program.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

const (
	cacheDirectory = "/var/lib/cni/attached"
	lockDirectory  = "/run/networks"
	// containerd's name for the first link of every pod.
	firstLink = "eth0"
	// The capability by which containerd passes on a pod's annotations.
	podAnnotations = "io.kubernetes.cri.pod-annotations"
	// Time limit for one command.
	deadline = 60 * time.Second
)

// settings are the node's CNI configuration.
type settings struct {
	// The node's own credentials.
	Kubeconfig string `json:"kubeconfig"`
	// The configuration of the first network.
	Primary json.RawMessage `json:"primary"`
	// containerd's data about the pod.
	Runtime map[string]any `json:"runtimeConfig"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "watch" {
		if err := watchCommand(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "networks:", err)
			os.Exit(1)
		}
		return
	}
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del}, version.PluginSupports("1.0.0"), "networks of the test bed")
}

func readSettings(bytes []byte) (settings, error) {
	var read settings
	if err := json.Unmarshal(bytes, &read); err != nil {
		return read, fmt.Errorf("read the configuration: %w", err)
	}
	return read, nil
}

// annotations removes the pod's annotations from containerd's data and returns them; the rest is kept.
func (s *settings) annotations() map[string]string {
	found := map[string]string{}
	given, _ := s.Runtime[podAnnotations].(map[string]any)
	for name, value := range given {
		if text, ok := value.(string); ok {
			found[name] = text
		}
	}
	delete(s.Runtime, podAnnotations)
	return found
}

// podOf reads the pod's identity from the arguments of the command.
func podOf(arguments string) (pod, error) {
	var read struct {
		types.CommonArgs
		K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID types.UnmarshallableString
	}
	if err := types.LoadArgs(arguments, &read); err != nil {
		return pod{}, fmt.Errorf("read the arguments: %w", err)
	}
	return pod{string(read.K8S_POD_NAMESPACE), string(read.K8S_POD_NAME), string(read.K8S_POD_UID)}, nil
}

func plugins(path string) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(filepath.SplitList(path), cacheDirectory, nil)
}

// lock prevents other processes from changing a pod's links until the returned function is called.
func lock(container string) (func(), error) {
	if err := os.MkdirAll(lockDirectory, 0o700); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(lockDirectory, container), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock: %w", err)
	}
	return func() { file.Close() }, nil
}

// begin reads the configuration of a command, and locks the pod's links until the returned function is called.
func begin(args *skel.CmdArgs) (settings, func(), error) {
	read, err := readSettings(args.StdinData)
	if err != nil {
		return read, nil, err
	}
	unlock, err := lock(args.ContainerID)
	return read, unlock, err
}

func add(args *skel.CmdArgs) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	pod, err := podOf(args.Args)
	if err != nil {
		return err
	}
	settings, unlock, err := begin(args)
	if err != nil {
		return err
	}
	defer unlock()
	annotations := settings.annotations()
	sandbox := sandbox{plugins: plugins(args.Path), container: args.ContainerID, netns: args.Netns, pod: pod}
	if annotations[networksAnnotation] != "" || annotations[defaultAnnotation] != "" {
		if sandbox.client, err = newClient(settings.Kubeconfig); err != nil {
			return err
		}
	}
	result, err := sandbox.attachFirst(ctx, args.IfName, annotations[defaultAnnotation], settings)
	if err != nil {
		return err
	}
	// If this fails, containerd calls DEL, which removes what was attached by then.
	if sandbox.client != nil {
		if _, err := sandbox.follow(ctx, annotations[networksAnnotation], ""); err != nil {
			return err
		}
	}
	return types.PrintResult(result, "1.0.0")
}

func del(args *skel.CmdArgs) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	settings, unlock, err := begin(args)
	if err != nil {
		return err
	}
	defer unlock()
	settings.annotations()
	sandbox := sandbox{plugins: plugins(args.Path), container: args.ContainerID, netns: args.Netns}
	attached, err := sandbox.attached()
	if err != nil {
		return err
	}
	var failed []error
	config := []byte(settings.Primary)
	for _, attachment := range attached {
		if attachment.IfName == firstLink {
			config = attachment.Config
		} else {
			failed = append(failed, sandbox.detach(ctx, attachment))
		}
	}
	first, err := libcni.NetworkConfFromBytes(config)
	if err != nil {
		return errors.Join(append(failed, fmt.Errorf("read the first network: %w", err))...)
	}
	arguments, err := podArguments(args.Args)
	if err != nil {
		return err
	}
	failed = append(failed, sandbox.plugins.DelNetworkList(ctx, first, &libcni.RuntimeConf{
		ContainerID: args.ContainerID, NetNS: args.Netns, IfName: args.IfName, Args: arguments, CapabilityArgs: settings.Runtime,
	}))
	if err := errors.Join(failed...); err != nil {
		return err
	}
	return os.Remove(filepath.Join(lockDirectory, args.ContainerID))
}
