package main

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v10/controller"
)

// onlyEmpty is a provisioner that leaves claims with a data source alone, as those of CSI drivers do: the one who fills
// such a claim makes its volume.
type onlyEmpty struct{}

// ShouldProvision implements controller.Qualifier.
func (onlyEmpty) ShouldProvision(_ context.Context, claim *v1.PersistentVolumeClaim) bool {
	return claim.Spec.DataSource == nil && claim.Spec.DataSourceRef == nil
}

// newVolume returns the object for a volume that was made for a claim.
func newVolume(options controller.ProvisionOptions, source v1.PersistentVolumeSource) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: options.PVName},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			AccessModes:                   options.PVC.Spec.AccessModes,
			VolumeMode:                    options.PVC.Spec.VolumeMode,
			Capacity:                      v1.ResourceList{v1.ResourceStorage: options.PVC.Spec.Resources.Requests[v1.ResourceStorage]},
			PersistentVolumeSource:        source,
		},
	}
}

func usedByMany(modes []v1.PersistentVolumeAccessMode) bool {
	return slices.Contains(modes, v1.ReadWriteMany) || slices.Contains(modes, v1.ReadOnlyMany)
}

func onNode(name string) *v1.VolumeNodeAffinity {
	return nodesWith(v1.NodeSelectorRequirement{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{name}})
}

func onAnyNode() *v1.VolumeNodeAffinity {
	return nodesWith(v1.NodeSelectorRequirement{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpExists})
}

func nodesWith(requirement v1.NodeSelectorRequirement) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
		{MatchExpressions: []v1.NodeSelectorRequirement{requirement}},
	}}}
}
