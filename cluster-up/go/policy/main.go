// Program policy enforces NetworkPolicies for the pods of one node of the test bed, by rules of nftables.
//
// It watches policies, pods and namespaces, and replaces one table, in one transaction, whenever the rules that follow
// from them change. The kernel here has no queue for packets, so this program is not involved while packets pass.
package main

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// How long changes are collected before rules are written, and the pause before a failed write is tried again.
const (
	gather = 100 * time.Millisecond
	again  = 2 * time.Second
)

func main() {
	node := flag.String("node", os.Getenv("NODE_NAME"), "the node whose pods are guarded")
	root := flag.String("root", "/host", "the node's root directory, which has the program nft")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	config, err := rest.InClusterConfig()
	if err != nil {
		klog.Fatalf("find the API server: %v", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		klog.Fatalf("make a client: %v", err)
	}
	run(ctx, informers.NewSharedInformerFactory(client, 0), *node, *root)
}

func run(ctx context.Context, factory informers.SharedInformerFactory, node, root string) {
	changed := make(chan struct{}, 1)
	note := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { note() },
		UpdateFunc: func(any, any) { note() },
		DeleteFunc: func(any) { note() },
	}
	pods, namespaces, policies := factory.Core().V1().Pods(), factory.Core().V1().Namespaces(), factory.Networking().V1().NetworkPolicies()
	for _, informer := range []cache.SharedIndexInformer{pods.Informer(), namespaces.Informer(), policies.Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			klog.Fatalf("watch: %v", err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	written := ""
	for {
		var world world
		var err error
		if world.pods, err = pods.Lister().List(labels.Everything()); err != nil {
			klog.Fatalf("list pods: %v", err)
		}
		if world.namespaces, err = namespaces.Lister().List(labels.Everything()); err != nil {
			klog.Fatalf("list namespaces: %v", err)
		}
		if world.policies, err = policies.Lister().List(labels.Everything()); err != nil {
			klog.Fatalf("list policies: %v", err)
		}
		if rules := world.rules(node); rules != written {
			if err := write(ctx, root, rules); err != nil {
				klog.Errorf("write rules: %v", err)
				time.AfterFunc(again, note)
			} else {
				written = rules
				klog.Infof("rules of %d policies are written", len(world.policies))
			}
		}
		select {
		case <-ctx.Done():
			// When the engine is removed, its rules are removed, too.
			if err := write(context.Background(), root, "table inet "+table+"\ndelete table inet "+table+"\n"); err != nil {
				klog.Errorf("remove rules: %v", err)
			}
			return
		case <-changed:
			time.Sleep(gather)
		}
	}
}

// write gives the rules to the node's nft, which applies all of them at once, or none.
func write(ctx context.Context, root, rules string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, "/usr/sbin/nft", "-f", "-")
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	command.Dir = "/"
	command.Stdin = strings.NewReader(rules)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	return command.Run()
}
