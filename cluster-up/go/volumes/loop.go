package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v10/controller"
)

// loopProvisioner makes volumes that are loop devices over sparse files.
type loopProvisioner struct {
	onlyEmpty
	directory string
}

func (p *loopProvisioner) SupportsBlock(context.Context) bool { return true }

// Provision makes the file and the device. A volume for one node stays with the selected node, as on local disks; a
// volume for many nodes can be used on all.
func (p *loopProvisioner) Provision(_ context.Context, options controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	size := options.PVC.Spec.Resources.Requests[v1.ResourceStorage]
	device, err := attach(backingFile(p.directory, options.PVName), size.Value())
	if err != nil {
		return nil, controller.ProvisioningFinished, fmt.Errorf("attach a loop device for %s: %w", options.PVName, err)
	}
	affinity := onAnyNode()
	if options.SelectedNode != nil && !usedByMany(options.PVC.Spec.AccessModes) {
		affinity = onNode(options.SelectedNode.Labels[v1.LabelHostname])
	}
	volume := newVolume(options, v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: device}})
	volume.Spec.NodeAffinity = affinity
	return volume, controller.ProvisioningFinished, nil
}

// Delete removes the device and the file, with all data.
func (p *loopProvisioner) Delete(_ context.Context, volume *v1.PersistentVolume) error {
	file := backingFile(p.directory, volume.Name)
	if err := detach(file); err != nil {
		return fmt.Errorf("detach the loop device of %s: %w", volume.Name, err)
	}
	if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// backingFile is the file with the content of a block volume.
func backingFile(directory, volume string) string {
	return filepath.Join(directory, "block", volume+".img")
}

// deviceOf finds the loop device over a file, or nothing.
func deviceOf(file string) (string, error) {
	links, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, link := range links {
		// A device may be detached between the listing and here.
		content, err := os.ReadFile(link)
		if err == nil && filepath.Base(strings.TrimSpace(string(content))) == filepath.Base(file) {
			return "/dev/" + strings.Split(link, "/")[3], nil
		}
	}
	return "", nil
}

// attach makes the file, at least of the requested size, and a loop device over it; or finds them.
func attach(file string, size int64) (string, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", err
	}
	if device, err := deviceOf(file); device != "" || err != nil {
		return device, err
	}
	backing, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer backing.Close()
	if err := extend(backing, size); err != nil {
		return "", err
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer control.Close()
	// Another process, such as the kubelet, may take the free device first.
	for tries := 0; ; tries++ {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", err
		}
		device := fmt.Sprintf("/dev/loop%d", number)
		if err = configure(device, backing); err == nil || tries == 9 || err != unix.EBUSY {
			return device, err
		}
	}
}

func configure(device string, backing *os.File) error {
	loop, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer loop.Close()
	config := unix.LoopConfig{Fd: uint32(backing.Fd())}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], filepath.Base(backing.Name()))
	return unix.IoctlLoopConfigure(int(loop.Fd()), &config)
}

func detach(file string) error {
	device, err := deviceOf(file)
	if device == "" || err != nil {
		return err
	}
	loop, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer loop.Close()
	_, err = unix.IoctlRetInt(int(loop.Fd()), unix.LOOP_CLR_FD)
	return err
}

// grow expands a block volume to that size while it is in use.
func grow(file string, size int64) error {
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer backing.Close()
	if err := extend(backing, size); err != nil {
		return err
	}
	device, err := deviceOf(file)
	if err != nil {
		return err
	}
	if device == "" {
		return fmt.Errorf("%s has no loop device", file)
	}
	loop, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer loop.Close()
	_, err = unix.IoctlRetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY)
	return err
}

// extend never shrinks a file.
func extend(file *os.File, size int64) error {
	status, err := file.Stat()
	if err != nil || status.Size() >= size {
		return err
	}
	return file.Truncate(size)
}
