// The provisioner of the storage classes "local", "block" and "rwx": volumes for tests, on the machine that all nodes share.
//
// A local volume is a directory of one node. A block volume is a sparse file behind a loop device, a shared one is a
// directory. These two are seen by every node, since nodes share the machine's file system and devices.
package main

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v10/controller"
)

// The provisioner names in the storage classes of the three kinds of volumes.
const (
	localName  = "barevirt.dev/local"
	loopName   = "barevirt.dev/loop"
	sharedName = "barevirt.dev/shared"
)

func main() {
	directory := flag.String("directory", "", "where block and shared volumes are, the same path on the machine and here")
	nodes := flag.String("nodes", "", "where the nodes have their directories: makes local volumes, and no others")
	flag.Parse()
	if (*directory == "") == (*nodes == "") {
		klog.Fatal("one of --directory and --nodes is needed")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config, err := rest.InClusterConfig()
	if err != nil {
		klog.Fatalf("find the cluster: %v", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		klog.Fatalf("make a client: %v", err)
	}
	if *nodes != "" {
		runProvisioner(ctx, client, localName, &localProvisioner{nodes: *nodes})
		return
	}
	go runProvisioner(ctx, client, loopName, &loopProvisioner{directory: *directory})
	go runProvisioner(ctx, client, sharedName, &sharedProvisioner{directory: *directory})
	runExpander(ctx, client, informers.NewSharedInformerFactory(client, resync), *directory)
}

func runProvisioner(ctx context.Context, client kubernetes.Interface, name string, provisioner controller.Provisioner) {
	controller.NewProvisionController(klog.FromContext(ctx), client, name, provisioner,
		controller.LeaderElection(false)).Run(ctx)
}
