package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v10/controller"
)

// Where a node has its local volumes. Only this directory of the node survives the end of the node's first process.
const localVolumes = "/var/lib/kubelet/local-volumes"

// The annotation with the node that a local volume is on.
const localNode = "barevirt.dev/local-node"

// localProvisioner makes volumes that are directories of one node, as a local disk is. Nodes are mount namespaces of this
// machine, so it reaches their directories by itself, and no pod has to run on the node for each volume.
type localProvisioner struct {
	onlyEmpty
	// Has a directory for each node, in which kubelet is what the node sees as /var/lib/kubelet.
	nodes string
}

// Provision makes a directory on the selected node, in which everyone may write.
func (p *localProvisioner) Provision(_ context.Context, options controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	if err := servedByNode(options); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	node := options.SelectedNode.Name
	name := strings.Join([]string{options.PVName, options.PVC.Namespace, options.PVC.Name}, "_")
	directory := p.directory(node, name)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, controller.ProvisioningFinished, fmt.Errorf("make the directory of %s on %s: %w", options.PVName, node, err)
	}
	if err := os.Chmod(directory, 0o777); err != nil {
		return nil, controller.ProvisioningFinished, fmt.Errorf("open the directory of %s to everyone: %w", options.PVName, err)
	}
	made := v1.HostPathDirectoryOrCreate
	source := v1.HostPathVolumeSource{Path: filepath.Join(localVolumes, name), Type: &made}
	volume := newVolume(options, v1.PersistentVolumeSource{HostPath: &source})
	volume.Annotations = map[string]string{localNode: node}
	volume.Spec.NodeAffinity = onNode(options.SelectedNode.Labels[v1.LabelHostname])
	return volume, controller.ProvisioningFinished, nil
}

// Delete removes the directory with its contents, also while its node is down.
func (p *localProvisioner) Delete(_ context.Context, volume *v1.PersistentVolume) error {
	node := volume.Annotations[localNode]
	if node == "" || volume.Spec.HostPath == nil {
		return fmt.Errorf("%s does not say on which node its directory is", volume.Name)
	}
	return os.RemoveAll(p.directory(node, filepath.Base(volume.Spec.HostPath.Path)))
}

func (p *localProvisioner) directory(node, name string) string {
	return filepath.Join(p.nodes, node, "kubelet", "local-volumes", name)
}

// servedByNode says why one node's directory cannot be what the claim asks for.
func servedByNode(options controller.ProvisionOptions) error {
	for _, mode := range options.PVC.Spec.AccessModes {
		if mode != v1.ReadWriteOnce && mode != v1.ReadWriteOncePod {
			return fmt.Errorf("a local volume is used by one node only, and not %s", mode)
		}
	}
	if options.PVC.Spec.Selector != nil {
		return errors.New("a selector of volumes is not served")
	}
	if options.SelectedNode == nil {
		return errors.New("no node was selected")
	}
	return nil
}
