package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v10/controller"
)

// sharedProvisioner makes volumes that are directories of the machine, which every node sees.
type sharedProvisioner struct {
	onlyEmpty
	directory string
}

// Provision makes a directory in which everyone may write, as an NFS export for tests would be.
func (p *sharedProvisioner) Provision(_ context.Context, options controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	path := sharedDirectory(p.directory, options.PVName)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, controller.ProvisioningFinished, fmt.Errorf("make %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		return nil, controller.ProvisioningFinished, fmt.Errorf("open %s to everyone: %w", path, err)
	}
	existing := v1.HostPathDirectory
	source := v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &existing}}
	return newVolume(options, source), controller.ProvisioningFinished, nil
}

// Delete removes the directory with its contents.
func (p *sharedProvisioner) Delete(_ context.Context, volume *v1.PersistentVolume) error {
	return os.RemoveAll(sharedDirectory(p.directory, volume.Name))
}

// sharedDirectory is the directory with the content of a shared volume.
func sharedDirectory(directory, volume string) string {
	return filepath.Join(directory, "shared", volume)
}
