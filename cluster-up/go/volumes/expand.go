package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// The interval at which every claim is checked again, so that failed steps are repeated.
const resync = 10 * time.Second

// runExpander does what external-resizer does for CSI drivers: it expands volumes whose claims ask for it.
func runExpander(ctx context.Context, client kubernetes.Interface, factory informers.SharedInformerFactory, directory string) {
	expander := &expander{client: client, directory: directory}
	claims := factory.Core().V1().PersistentVolumeClaims().Informer()
	_, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(claim any) { expander.look(ctx, claim) },
		UpdateFunc: func(_, claim any) { expander.look(ctx, claim) },
	})
	if err != nil {
		klog.Fatalf("watch claims: %v", err)
	}
	claims.Run(ctx.Done())
}

type expander struct {
	client    kubernetes.Interface
	directory string
}

func (e *expander) look(ctx context.Context, object any) {
	claim, ok := object.(*v1.PersistentVolumeClaim)
	if !ok || claim.Status.Phase != v1.ClaimBound {
		return
	}
	wanted, present := claim.Spec.Resources.Requests[v1.ResourceStorage], claim.Status.Capacity[v1.ResourceStorage]
	if wanted.Cmp(present) <= 0 {
		return
	}
	if err := e.expand(ctx, claim, wanted); err != nil {
		klog.Errorf("expand the volume of %s/%s: %v", claim.Namespace, claim.Name, err)
	}
}

func (e *expander) expand(ctx context.Context, claim *v1.PersistentVolumeClaim, wanted resource.Quantity) error {
	volume, err := e.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	switch volume.Annotations["pv.kubernetes.io/provisioned-by"] {
	case loopName:
		if err := grow(backingFile(e.directory, volume.Name), wanted.Value()); err != nil {
			return err
		}
	case sharedName:
		// A directory has no size of its own.
	default:
		return nil
	}
	if capacity := volume.Spec.Capacity[v1.ResourceStorage]; capacity.Cmp(wanted) < 0 {
		patch := map[string]any{"spec": map[string]any{"capacity": map[string]any{"storage": wanted}}}
		if err := e.patchVolume(ctx, volume.Name, patch); err != nil {
			return err
		}
		klog.Infof("volume %s has %s now", volume.Name, wanted.String())
	}
	return e.patchStatus(ctx, claim, claimStatus(volume, wanted))
}

// claimStatus is the status of a claim whose volume was expanded. The kubelet expands a file system on it, and then
// writes the capacity itself.
func claimStatus(volume *v1.PersistentVolume, wanted resource.Quantity) map[string]any {
	mode := volume.Spec.VolumeMode
	if volume.Spec.Local != nil && (mode == nil || *mode == v1.PersistentVolumeFilesystem) {
		return map[string]any{
			"allocatedResources":        map[string]any{"storage": wanted},
			"allocatedResourceStatuses": map[string]any{"storage": v1.PersistentVolumeClaimNodeResizePending},
			"conditions": []v1.PersistentVolumeClaimCondition{{
				Type:               v1.PersistentVolumeClaimFileSystemResizePending,
				Status:             v1.ConditionTrue,
				LastTransitionTime: metav1.Now(),
				Message:            "the kubelet makes the file system larger when a pod uses it",
			}},
		}
	}
	return map[string]any{"capacity": map[string]any{"storage": wanted}}
}

func (e *expander) patchVolume(ctx context.Context, name string, patch map[string]any) error {
	content, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = e.client.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, content, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("write the capacity of %s: %w", name, err)
	}
	return nil
}

func (e *expander) patchStatus(ctx context.Context, claim *v1.PersistentVolumeClaim, status map[string]any) error {
	content, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = e.client.CoreV1().PersistentVolumeClaims(claim.Namespace).
		Patch(ctx, claim.Name, types.StrategicMergePatchType, content, metav1.PatchOptions{}, "status")
	return err
}
