package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// The pause before a failed step is tried again, and the length of one watch.
const (
	again   = 2 * time.Second
	seconds = "600"
)

// object is the part of a pod that is read.
type object struct {
	Metadata struct {
		Namespace   string            `json:"namespace"`
		Name        string            `json:"name"`
		UID         string            `json:"uid"`
		Version     string            `json:"resourceVersion"`
		Deleted     string            `json:"deletionTimestamp"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

// watcher does the work of Multus's dynamic networks controller for the running pods of one node.
type watcher struct {
	client *client
	node   string
	path   string
}

func watchCommand(arguments []string) error {
	flags := flag.NewFlagSet("watch", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "the node's credentials")
	node := flags.String("node", "", "the node's name")
	path := flags.String("path", "", "directories of CNI plugins, with colons between")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	client, err := newClient(*kubeconfig)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	watcher := watcher{client: client, node: *node, path: *path}
	for ctx.Err() == nil {
		if err := watcher.run(ctx); err != nil && ctx.Err() == nil {
			log.Printf("watch pods: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
	return nil
}

// run lists the pods and follows their changes until the watch ends.
func (w *watcher) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pods := "/api/v1/pods?fieldSelector=" + url.QueryEscape("spec.nodeName="+w.node)
	body, err := w.client.send(ctx, http.MethodGet, pods, nil)
	if err != nil {
		return err
	}
	var list struct {
		Metadata struct {
			Version string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []object `json:"items"`
	}
	err = json.NewDecoder(body).Decode(&list)
	body.Close()
	if err != nil {
		return err
	}
	query := "&watch=true&allowWatchBookmarks=false&timeoutSeconds=" + seconds + "&resourceVersion="
	stream, err := w.client.send(ctx, http.MethodGet, pods+query+url.QueryEscape(list.Metadata.Version), nil)
	if err != nil {
		return err
	}
	defer stream.Close()
	changes := make(chan object)
	ended := make(chan error, 1)
	go func() { ended <- read(ctx, json.NewDecoder(stream), changes) }()
	// Pods whose last change failed and has to be tried again.
	left := map[string]object{}
	consider := func(pod object) {
		delete(left, pod.Metadata.UID)
		if err := w.follow(ctx, pod); err != nil {
			log.Printf("pod %s/%s: %v", pod.Metadata.Namespace, pod.Metadata.Name, err)
			left[pod.Metadata.UID] = pod
		}
	}
	for _, pod := range list.Items {
		consider(pod)
	}
	ticker := time.NewTicker(again)
	defer ticker.Stop()
	for {
		select {
		case pod := <-changes:
			consider(pod)
		case <-ticker.C:
			for _, pod := range left {
				consider(pod)
			}
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil // The watch ended after the requested time.
			}
			return err
		}
	}
}

func read(ctx context.Context, decoder *json.Decoder, changes chan<- object) error {
	for {
		var event struct {
			Type   string `json:"type"`
			Object object `json:"object"`
		}
		if err := decoder.Decode(&event); err != nil {
			return err
		}
		if event.Type == "ERROR" {
			return fmt.Errorf("the watch has ended")
		}
		if event.Type == "DELETED" {
			event.Object.Metadata.Deleted = "now"
		}
		select {
		case changes <- event.Object:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// follow gives a running pod the networks that it currently asks for. Its CNI command has attached those of its start.
func (w *watcher) follow(ctx context.Context, pod object) error {
	annotations := pod.Metadata.Annotations
	asked, noted := annotations[networksAnnotation], annotations[statusAnnotation]
	ends := pod.Metadata.Deleted != "" || pod.Status.Phase == "Succeeded" || pod.Status.Phase == "Failed"
	if ends || strings.TrimSpace(asked) == "" && noted == "" {
		return nil
	}
	plugins := plugins(w.path)
	all, err := plugins.GetCachedAttachments("")
	if err != nil {
		return err
	}
	for _, first := range all {
		if first.IfName != firstLink || argument(first, uidArgument) != pod.Metadata.UID {
			continue
		}
		if _, err := os.Stat(first.NetNS); err != nil {
			continue // A sandbox that is being removed.
		}
		unlock, err := lock(first.ContainerID)
		if err != nil {
			return err
		}
		sandbox := sandbox{plugins: plugins, client: w.client, container: first.ContainerID, netns: first.NetNS}
		sandbox.pod.namespace, sandbox.pod.name, sandbox.pod.uid = pod.Metadata.Namespace, pod.Metadata.Name, pod.Metadata.UID
		limited, cancel := context.WithTimeout(ctx, deadline)
		changed, err := sandbox.followIfThere(limited, asked, noted)
		cancel()
		unlock()
		if err != nil {
			return err
		}
		if changed {
			log.Printf("pod %s/%s follows its annotation: %s", pod.Metadata.Namespace, pod.Metadata.Name, asked)
		}
	}
	return nil
}

// followIfThere is follow, unless the sandbox was removed while this waited for its lock.
func (s *sandbox) followIfThere(ctx context.Context, asked, noted string) (bool, error) {
	attached, err := s.attached()
	if err != nil || len(attached) == 0 {
		return false, err
	}
	return s.follow(ctx, asked, noted)
}
