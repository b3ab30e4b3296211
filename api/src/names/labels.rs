//! Labels, annotations and finalizers.

/// Label on the components and on launcher pods: the part of the system that an object belongs to.
pub const APP_LABEL: &str = "kubevirt.io";
/// Value of [`APP_LABEL`] on launcher pods.
pub const APP_LAUNCHER: &str = "virt-launcher";
/// Value of [`APP_LABEL`] on attachment pods, and name of their container.
pub const APP_HOTPLUG_DISK: &str = "hotplug-disk";
/// Value of [`APP_LABEL`] on pods that make claims with `WaitForFirstConsumer` bind before they are populated.
pub const APP_FIRST_CONSUMER: &str = "first-consumer";
/// Label on launcher pods: UID of the instance they were made for. KubeVirt's clients find the launcher by it alone, so no
/// other pod of a running instance has it.
pub const CREATED_BY_LABEL: &str = "kubevirt.io/created-by";
/// Label on attachment pods, and on the pods before them: UID of the instance whose disks they bring.
pub const DISKS_OF_LABEL: &str = "barevirt.dev/disks-of";
/// Label on launcher pods that a migration moves a guest to: UID of the migration.
pub const MIGRATION_JOB_LABEL: &str = "kubevirt.io/migrationJobUID";
/// Label on instances: node that a migration moves them to, so that the handler there sees them.
pub const MIGRATION_TARGET_NODE_LABEL: &str = "kubevirt.io/migrationTargetNodeName";
/// Label on launcher pods: name of the instance.
pub const VM_NAME_LABEL: &str = "vm.kubevirt.io/name";
/// Label on launcher pods: the instance's [`super::vmi_id`], by which services select them.
pub const VMI_ID_LABEL: &str = "vmi.kubevirt.io/id";
/// Label on instances: node whose handler looks after them.
pub const NODE_NAME_LABEL: &str = "kubevirt.io/nodeName";
/// Label on instances: how much their launcher logs, instead of what the installation says. KubeVirt's.
pub const LOG_VERBOSITY_LABEL: &str = "logVerbosity";
/// Label on instances, "true" in any case: their launcher logs everything. KubeVirt's.
pub const DEBUG_LOGS_LABEL: &str = "debugLogs";
/// Label on instances: their launcher is not of the installed version.
pub const OUTDATED_LAUNCHER_LABEL: &str = "kubevirt.io/outdatedLauncherImage";
/// Annotation on launcher pods: name of the instance.
pub const DOMAIN_ANNOTATION: &str = "kubevirt.io/domain";
/// Annotation on instances: generation of the machine they were made from.
pub const VM_GENERATION_ANNOTATION: &str = "kubevirt.io/vm-generation";
/// Annotation on instances and machines: the PCI address of each device, so that it is the same at the next
/// start.
pub const PCI_LAYOUT_ANNOTATION: &str = "barevirt.dev/pci-layout";
/// Annotation on instances that a machine owns: volumes that were added to the instance alone, separated by commas.
pub const EPHEMERAL_VOLUMES_ANNOTATION: &str = "barevirt.dev/ephemeral-volumes";
/// Annotation on instances: UIDs of launcher pods that a kubelet refused, oldest first, separated by commas.
pub const REFUSED_PODS_ANNOTATION: &str = "barevirt.dev/refused-pods";
/// Annotation on the `KubeVirt` object: largest virtual size that the image of a container disk may have.
pub const LARGEST_IMAGE_ANNOTATION: &str = "barevirt.dev/largest-image";
/// Annotation on the `KubeVirt` object: most space on the node's disk that all ephemeral disks of one
/// instance may take.
pub const EPHEMERAL_DISKS_ANNOTATION: &str = "barevirt.dev/ephemeral-disks";
/// Annotation on the `KubeVirt` object: proxy of importers for addresses with `http`.
pub const IMPORT_HTTP_PROXY_ANNOTATION: &str = "barevirt.dev/import-http-proxy";
/// Annotation on the `KubeVirt` object: proxy of importers for addresses with `https`.
pub const IMPORT_HTTPS_PROXY_ANNOTATION: &str = "barevirt.dev/import-https-proxy";
/// Annotation on the `KubeVirt` object: hosts that importers reach without a proxy.
pub const IMPORT_NO_PROXY_ANNOTATION: &str = "barevirt.dev/import-no-proxy";
/// Annotation on the `KubeVirt` object: certificates of authorities that importers trust, PEM.
pub const IMPORT_AUTHORITIES_ANNOTATION: &str = "barevirt.dev/import-authorities";
/// Annotation on the `KubeVirt` object: `public` if importers may connect to public addresses only, else `any`.
pub const IMPORT_ADDRESSES_ANNOTATION: &str = "barevirt.dev/import-addresses";
/// Annotation on attachment pods: the volume of the instance that they are for.
pub const VOLUME_ANNOTATION: &str = "barevirt.dev/volume";
/// Label of launcher pods in which other containers serve directories of the container `compute`. The directories
/// are mounted in these containers when the pod is admitted.
pub const CONTAINER_PATHS_LABEL: &str = "barevirt.dev/container-paths";
/// Annotation on attachment pods: the claim of the volume.
pub const CLAIM_ANNOTATION: &str = "barevirt.dev/claim";
/// Annotation, "true", on pods that make claims with `WaitForFirstConsumer` bind before they are populated.
pub const PROVISIONING_ANNOTATION: &str = "kubevirt.io/ephemeral-provisioning";
/// Annotation of an instance, "true": no pod is made for it until a migration brings its guest.
pub const MIGRATION_TARGET_ANNOTATION: &str = "kubevirt.io/create-migration-target";
/// Annotation on instances: their launcher must fail at once. KubeVirt's tests of crash loops use it.
pub const FAIL_FAST_ANNOTATION: &str = "kubevirt.io/func-test-virt-launcher-fail-fast";
/// Annotation on instances: their migrations fail before anything is sent. KubeVirt's tests of failed migrations use it.
pub const FAIL_MIGRATION_ANNOTATION: &str = "kubevirt.io/func-test-force-launcher-migration-failure";
/// Annotation on instances: the targets of their migrations never become ready. KubeVirt's tests use it, too.
pub const BLOCK_TARGET_ANNOTATION: &str = "kubevirt.io/func-test-block-migration-target-preparation";
/// Annotation of instances: one with a bridge on the pod network may migrate. KubeVirt's.
pub const MOVES_WITH_BRIDGE_ANNOTATION: &str = "kubevirt.io/allow-pod-bridge-network-live-migration";
/// Annotation of instances, "true": the guest does not report free pages to the host. KubeVirt's.
pub const NO_FREE_PAGES_ANNOTATION: &str = "kubevirt.io/free-page-reporting-disabled";
/// Annotation of instances, "true" in any case: no PCI device has its memory above the guest's. KubeVirt's.
pub const NO_PCI_HOLE64_ANNOTATION: &str = "kubevirt.io/disablePCIHole64";
/// Annotation of instances: what Ignition, the first-boot program of CoreOS and others, is to do. KubeVirt's.
pub const IGNITION_ANNOTATION: &str = "kubevirt.io/ignitiondata";
/// Annotation on instances: probes by `guestAgentPing` succeed without asking the guest agent.
pub const PAUSE_AGENT_PROBES_ANNOTATION: &str = "kubevirt.io/pause-guest-agent-probes";
/// Label on a pool's machines and on their instances: revision of the pool that they were made from.
pub const POOL_REVISION_LABEL: &str = "kubevirt.io/vm-pool-revision-name";
/// Label on the revisions that a machine or a pool keeps of itself: their owner, shortened as by
/// [`super::vmi_id`].
pub const REVISION_OF_LABEL: &str = "barevirt.dev/revision-of";
/// Annotation on instances: the namespaced instance type they were made from.
pub const INSTANCETYPE_ANNOTATION: &str = "kubevirt.io/instancetype-name";
/// Annotation on instances: the cluster-wide instance type they were made from.
pub const CLUSTER_INSTANCETYPE_ANNOTATION: &str = "kubevirt.io/cluster-instancetype-name";
/// Annotation on instances: the namespaced preference they were made with.
pub const PREFERENCE_ANNOTATION: &str = "kubevirt.io/preference-name";
/// Annotation on instances: the cluster-wide preference they were made with.
pub const CLUSTER_PREFERENCE_ANNOTATION: &str = "kubevirt.io/cluster-preference-name";
/// Annotation on launcher pods: memory beyond the guest's, in bytes.
pub const MEMORY_OVERHEAD_ANNOTATION: &str = "kubevirt.io/memory-overhead-bytes";
/// Annotation of launcher pods: an eviction starts a migration and does not end the pod at once. The
/// descheduler's.
pub const EVICT_ONLY_ANNOTATION: &str = "descheduler.alpha.kubernetes.io/request-evict-only";
/// Annotation of a launcher pod whose eviction has begun. The descheduler's.
pub const EVICTION_IN_PROGRESS_ANNOTATION: &str = "descheduler.alpha.kubernetes.io/eviction-in-progress";
/// Annotation on nodes: time of their handler's last heartbeat.
pub const HEARTBEAT_ANNOTATION: &str = "kubevirt.io/heartbeat";
/// Label on nodes: whether launcher pods may be placed there.
pub const SCHEDULABLE_LABEL: &str = "kubevirt.io/schedulable";
/// Label on nodes: whether the kubelet gives containers dedicated CPUs.
pub const CPU_MANAGER_LABEL: &str = "kubevirt.io/cpumanager";
/// Former name of that label, which KubeVirt still writes.
pub const FORMER_CPU_MANAGER_LABEL: &str = "cpumanager";
/// Label on nodes: the kernel does not limit the run time of realtime threads.
pub const REALTIME_LABEL: &str = "kubevirt.io/realtime";
/// Annotation on instances, and on the KubeVirt object for all instances: `isolateEmulatorThread` takes a
/// second CPU if the sum would be odd, so that no two guests share a core.
pub const EVEN_PARITY_ANNOTATION: &str = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity";
/// Prefix of labels on nodes: CPU models that guests can have there.
pub const CPU_MODEL_LABEL: &str = "cpu-model.node.kubevirt.io/";
/// Prefix of labels on nodes: CPU models that are known there, including those that guests cannot have.
pub const CPU_MODEL_MIGRATION_LABEL: &str = "cpu-model-migration.node.kubevirt.io/";
/// Prefix of labels on nodes: CPU features that guests can have there.
pub const CPU_FEATURE_LABEL: &str = "cpu-feature.node.kubevirt.io/";
/// Prefix of a label on nodes: the CPU's vendor.
pub const CPU_VENDOR_LABEL: &str = "cpu-vendor.node.kubevirt.io/";
/// Prefix of labels on nodes: the time stamp counter.
pub const CPU_TIMER_LABEL: &str = "cpu-timer.node.kubevirt.io/";
/// Prefix of a label on nodes: the named model that is closest to the node's CPU.
pub const HOST_MODEL_LABEL: &str = "host-model-cpu.node.kubevirt.io/";
/// Prefix of labels on nodes: features that the node's CPU has in addition to that model.
pub const HOST_MODEL_FEATURE_LABEL: &str = "host-model-required-features.node.kubevirt.io/";
/// Label on nodes: the closest model counts as obsolete.
pub const OBSOLETE_HOST_MODEL_LABEL: &str = "node-labeller.kubevirt.io/obsolete-host-model";
/// Annotation on nodes: the handler leaves the labels about processor and machine unchanged.
pub const SKIP_LABELS_ANNOTATION: &str = "node-labeller.kubevirt.io/skip-node";
/// Prefix of labels on nodes: Hyper-V enlightenments that the kernel supports.
pub const HYPERV_LABEL: &str = "hyperv.node.kubevirt.io/";
/// Prefix of labels on nodes: machine types that guests can have there.
pub const MACHINE_TYPE_LABEL: &str = "machine-type.node.kubevirt.io/";
/// Label on nodes: AMD's memory encryption (SEV).
pub const SEV_LABEL: &str = "kubevirt.io/sev";
/// Label on nodes: AMD's encryption of memory and registers (SEV-ES).
pub const SEV_ES_LABEL: &str = "kubevirt.io/sev-es";
/// Label on nodes: AMD's encryption with integrity protection (SEV-SNP).
pub const SEV_SNP_LABEL: &str = "kubevirt.io/sev-snp";
/// Label on nodes: Intel's trust domains (TDX).
pub const TDX_LABEL: &str = "kubevirt.io/tdx";
/// Prefix of labels that only our components may set on instances.
pub const RESERVED_LABEL_PREFIX: &str = "kubevirt.io/";
/// Finalizer of instances: it stays until their pods are gone.
pub const VMI_FINALIZER: &str = "kubevirt.io/foregroundDeleteVirtualMachine";
/// Label on migrations: the instance they move, shortened as by [`super::vmi_id`].
pub const MIGRATION_SELECTOR_LABEL: &str = "kubevirt.io/vmi-name";
/// Label on migrations that move volumes to other claims: the instance that they move.
pub const VOLUME_UPDATE_MIGRATION_LABEL: &str = "kubevirt.io/volume-update-migration";
/// Finalizer of migrations: it stays until virt-controller has ended the migration.
pub const MIGRATION_FINALIZER: &str = "kubevirt.io/migrationJobFinalize";
/// Finalizer of machines: it stays until their instance is deleted or released.
pub const VM_FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";
/// Finalizer of pools, and of machines in a pool whose volumes stay for the next machine with the same index.
pub const POOL_FINALIZER: &str = "pool.kubevirt.io/finalizer";
