use super::*;

#[test]
fn volume_rules() {
    let name = "a".repeat(58);
    let limit = "x".repeat(CLOUD_INIT_LIMIT + 1);
    check(rows![
        ["/spec/volumes/-" => {"name": "root", "emptyDisk": {"capacity": "1Gi"}}] => "spec.volumes[3].name", "spec.volumes[3] and spec.volumes[0] must not have the same Name.";
        ["/spec/volumes/0" => {"name": "root"}] => "spec.volumes[0]", "spec.volumes[0] must have exactly one source type set";
        ["/spec/volumes/0/emptyDisk" => {"capacity": "1Gi"}] => "spec.volumes[0]", "must have exactly one source type set";
        ["/spec/volumes/0/containerDisk/image" => ""] => "spec.volumes[0].containerDisk.image", "spec.volumes[0].containerDisk.image is a required field";
        ["/spec/volumes/0/containerDisk/image" => "a b"] => "spec.volumes[0].containerDisk.image", "is not an image reference";
        ["/spec/volumes/0/containerDisk/path" => "/"] => "spec.volumes[0].containerDisk", "spec.volumes[0].containerDisk must not point to root";
        ["/spec/volumes/0/containerDisk/path" => "../../etc/shadow"] => "spec.volumes[0].containerDisk", "spec.volumes[0].containerDisk must be an absolute path to a file without relative components";
        ["/spec/volumes/0/containerDisk/path" => "/disk/../etc/shadow"] => "spec.volumes[0].containerDisk", "without relative components";
        ["/spec/volumes/0/containerDisk/imagePullPolicy" => "Maybe"] => "spec.volumes[0].containerDisk.imagePullPolicy", "has invalid value Maybe";
        ["/spec/volumes/0/containerDisk/imagePullSecret" => "A B"] => "spec.volumes[0].containerDisk.imagePullSecret", "is not the name of a secret";
        ["/spec/volumes/1/cloudInitNoCloud" => {}] => "spec.volumes[1].cloudInitNoCloud", "spec.volumes[1].cloudInitNoCloud must have at least one userdatasource or one networkdatasource set.";
        ["/spec/volumes/1/cloudInitNoCloud/userDataBase64" => "eA=="] => "spec.volumes[1].cloudInitNoCloud", "spec.volumes[1].cloudInitNoCloud must have only one userdatasource set.";
        ["/spec/volumes/1/cloudInitNoCloud" => {"userDataBase64": "%%%"}] => "spec.volumes[1].cloudInitNoCloud.userDataBase64", "is not a valid base64 value.";
        ["/spec/volumes/1/cloudInitNoCloud" => {"networkDataBase64": "%%%"}] => "spec.volumes[1].cloudInitNoCloud.networkDataBase64", "is not a valid base64 value.";
        ["/spec/volumes/1/cloudInitNoCloud" => {"networkData": "a", "networkDataBase64": "eA=="}] => "spec.volumes[1].cloudInitNoCloud", "must have only one networkdata source set.";
        ["/spec/volumes/1/cloudInitNoCloud/userData" => limit] => "spec.volumes[1].cloudInitNoCloud", "spec.volumes[1].cloudInitNoCloud userdata exceeds 2048 byte limit. Should use UserDataSecretRef for larger data.";
        ["/spec/volumes/1/cloudInitNoCloud/networkData" => limit] => "spec.volumes[1].cloudInitNoCloud", "networkdata exceeds 2048 byte limit. Should use NetworkDataSecretRef for larger data.";
        ["/spec/volumes/1/cloudInitNoCloud" => {"secretRef": {"name": "A B"}}] => "spec.volumes[1].cloudInitNoCloud.secretRef", "is not the name of a secret";
        ["/spec/volumes/2/emptyDisk/capacity" => "0"] => "spec.volumes[2].emptyDisk.capacity", "must be greater than 0";
        ["/spec/volumes/2/emptyDisk/capacity" => "-1"] => "spec.volumes[2].emptyDisk.capacity", "must be greater than or equal to 0";
        ["/spec/volumes/2/emptyDisk/capacity" => "2Pi"] => "spec.volumes[2].emptyDisk.capacity", "is more than 1Pi";
        ["/spec/volumes/2/name" => "A", "/spec/domain/devices/disks/2/name" => "A"] => "spec.domain.devices.disks[2].name", "lower case letters";
        ["/spec/volumes/2/name" => name, "/spec/domain/devices/disks/2/name" => name] => "spec.volumes[2].name", "or longer than 57";
    ]);
}

#[test]
fn rules_of_gated_volumes() {
    let all = Gates::all();
    check_with(
        &all,
        rows![
            ["/spec/volumes/1" => {"name": "seed", "cloudInitConfigDrive": {}}] => "spec.volumes[1].cloudInitConfigDrive", "spec.volumes[1].cloudInitConfigDrive must have at least one userdatasource or one networkdatasource set.";
            ["/spec/volumes/1" => {"name": "seed", "cloudInitConfigDrive": {"userDataBase64": "%"}}] => "spec.volumes[1].cloudInitConfigDrive.userDataBase64", "is not a valid base64 value.";
            ["/spec/volumes/0" => {"name": "root", "hostDisk": {"path": "", "type": "Disk"}}] => "spec.volumes[0].hostDisk.path", "spec.volumes[0].hostDisk.path is required for hostDisk volume";
            ["/spec/volumes/0" => {"name": "root", "hostDisk": {"path": "a/b", "type": "Disk"}}] => "spec.volumes[0].hostDisk.path", "spec.volumes[0].hostDisk.path 'a/b' is not the absolute path of a file";
            ["/spec/volumes/0" => {"name": "root", "hostDisk": {"path": "/a/../b", "type": "Disk"}}] => "spec.volumes[0].hostDisk.path", "'/a/../b' is not the absolute path of a file, without '.', '..' and empty parts";
            ["/spec/volumes/0" => {"name": "root", "hostDisk": {"path": "/a/", "type": "Disk"}}] => "spec.volumes[0].hostDisk.path", "is not the absolute path of a file";
            ["/spec/volumes/0" => {"name": "root", "hostDisk": {"path": "/a", "type": "Folder"}}] => "spec.volumes[0].hostDisk.type", "spec.volumes[0].hostDisk.type has invalid value 'Folder', allowed are 'Disk' or 'DiskOrCreate'";
            ["/spec/volumes/0" => {"name": "root", "hostDisk": {"path": "/a", "type": "Disk", "capacity": "1Gi"}}] => "spec.volumes[0].hostDisk.capacity", "spec.volumes[0].hostDisk.capacity is allowed to pass only with spec.volumes[0].hostDisk.type equal to 'DiskOrCreate'";
            ["/spec/volumes/0" => {"name": "root", "hostDisk": {"path": "/a", "type": "DiskOrCreate", "capacity": "-1"}}] => "spec.volumes[0].hostDisk.capacity", "must be greater than or equal to 0.";
            ["/spec/volumes/0" => {"name": "root", "dataVolume": {"name": ""}}] => "spec.volumes[0].dataVolume.name", "DataVolume 'name' must be set";
            ["/spec/volumes/0" => {"name": "root", "downwardMetrics": {}}, "/spec/volumes/2" => {"name": "scratch", "downwardMetrics": {}}, "/spec/domain/devices/disks/2/disk" => {"bus": "virtio"}] => "spec.volumes", "spec.volumes must have max one downwardMetric volume set";
            ["/spec/volumes/-" => {"name": "a", "memoryDump": {"claimName": "a"}}, "/spec/volumes/-" => {"name": "b", "memoryDump": {"claimName": "b"}}] => "spec.volumes", "spec.volumes must have max one memory dump volume set";
            ["/spec/utilityVolumes" => [{"name": "a", "claimName": "a"}]] => "spec.utilityVolumes", "cannot create VMI with utility volumes in spec, utility volumes can only be added via hotplug";
            ["/spec/volumes/-" => {"name": "a", "containerPath": {"path": "/a"}}, "/spec/domain/devices/disks/-" => {"name": "a", "disk": {}}]
                => "spec.volumes[3]", "ContainerPath volume 'a' must be mapped to a filesystem, not a disk",
                   "spec.volumes[3]", "ContainerPath volume 'a' must have a matching filesystem defined in spec.domain.devices.filesystems";
            ["/spec/volumes/-" => {"name": "a", "containerPath": {"path": "/var/run/kubevirt/a"}}, "/spec/domain/devices/filesystems" => [{"name": "a", "virtiofs": {}}]]
                => "spec.volumes[3].containerPath.path", "ContainerPath volume 'a' uses reserved path prefix '/var/run/kubevirt'";
            ["/spec/volumes/-" => {"name": "a", "containerPath": {"path": "a"}}, "/spec/domain/devices/filesystems" => [{"name": "a", "virtiofs": {}}]]
                => "spec.volumes[3].containerPath.path", "path must be absolute (start with '/')";
            ["/spec/volumes/-" => {"name": "a", "containerPath": {"path": "/a/../b"}}, "/spec/domain/devices/filesystems" => [{"name": "a", "virtiofs": {}}]]
                => "spec.volumes[3].containerPath.path", "path must not contain '..'";
            ["/spec/volumes/-" => {"name": "a", "containerPath": {"path": (format!("/{}", "a".repeat(4096)))}}, "/spec/domain/devices/filesystems" => [{"name": "a", "virtiofs": {}}]]
                => "spec.volumes[3].containerPath.path", "path must have at most 4096 characters";
            ["/spec/volumes/-" => {"name": "a", "containerPath": {"path": "/a", "readOnly": false}}, "/spec/domain/devices/filesystems" => [{"name": "a", "virtiofs": {}}]]
                => "spec.volumes[3].containerPath.readOnly", "readOnly must be true, write access is not supported";
        ],
    );
}

#[test]
fn rules_of_shared_directories() {
    let name = "a".repeat(37);
    let shared = |names: &[&str]| -> Value {
        names.iter().map(|name| json!({"name": name, "virtiofs": {}})).collect::<Vec<_>>().into()
    };
    let (one, twice, long) = (shared(&["a"]), shared(&["a", "a"]), shared(&[&name]));
    check(rows![
        ["/spec/domain/devices/filesystems" => one] => "spec.domain.devices.filesystems[0].name", "spec.domain.devices.filesystems[0].Name 'a' not found.";
        ["/spec/volumes/-" => {"name": name, "configMap": {"name": "a"}}, "/spec/domain/devices/filesystems" => long] => "spec.domain.devices.filesystems[0].name", "is longer than 36 characters";
        ["/spec/volumes/-" => {"name": "a", "configMap": {"name": "a"}}, "/spec/domain/devices/filesystems" => twice] => "spec.domain.devices.filesystems[1].name", "spec.domain.devices.filesystems[1] and spec.domain.devices.filesystems[0] must not have the same Name.";
        ["/spec/volumes/-" => {"name": "a", "emptyDisk": {"capacity": "1Gi"}}, "/spec/domain/devices/filesystems" => one] => "spec.domain.devices.filesystems[0].name", "of a volume that is no configMap, secret, serviceAccount, downwardAPI, containerPath, persistentVolumeClaim or dataVolume is not supported yet";
        ["/spec/volumes/-" => {"name": "a", "configMap": {"name": "a"}}, "/spec/domain/devices/disks/-" => {"name": "a", "disk": {"bus": "virtio"}}, "/spec/domain/devices/filesystems" => one] => "spec.domain.devices.filesystems[0].name", "of a volume that is a disk as well is not supported yet";
    ]);
    check_with(
        &Gates::all(),
        rows![
            ["/spec/volumes/-" => {"name": "a", "dataVolume": {"name": "a", "hotpluggable": true}}, "/spec/domain/devices/filesystems" => one] => "spec.domain.devices.filesystems[0].name", "of a volume that is plugged into a running machine is not supported yet";
        ],
    );
    let volume = json!({"name": "a", "configMap": {"name": "a"}});
    let served = with(with(right(), "/spec/volumes/-", volume), "/spec/domain/devices/filesystems", one);
    assert_eq!(causes_with(&served, &Gates::default()), []);
}

#[test]
fn rules_of_claims() {
    check(rows![
        ["/spec/volumes/0" => {"name": "root", "persistentVolumeClaim": {"claimName": ""}}] => "spec.volumes[0].persistentVolumeClaim.claimName", "is a required field";
        ["/spec/volumes/0" => {"name": "root", "persistentVolumeClaim": {"claimName": "../a"}}] => "spec.volumes[0].persistentVolumeClaim.claimName", "'../a' is not the name of a claim";
        ["/spec/volumes/0" => {"name": "root", "dataVolume": {"name": "a?watch=true"}}] => "spec.volumes[0].dataVolume.name", "'a?watch=true' is not the name of a claim";
        ["/spec/volumes/0" => {"name": "root", "dataVolume": {"name": "a", "hotpluggable": true}}, "/spec/domain/devices/disks/0" => {"name": "root", "bootOrder": 1, "disk": {"bus": "scsi"}}] => "spec.domain.devices.disks[0].bootOrder", "of a disk that is plugged into a running machine is not supported yet";
        ["/spec/volumes/0" => {"name": "root", "dataVolume": {"name": "a", "hotpluggable": true}}, "/spec/domain/devices/disks/0" => {"name": "root", "disk": {"bus": "virtio", "pciAddress": "0000:00:10.0"}}] => "spec.domain.devices.disks[0].disk.pciAddress", "of a disk that is plugged into a running machine is not supported yet";
        ["/spec/volumes/0" => {"name": "root", "ephemeral": {}}] => "spec.volumes[0].ephemeral.persistentVolumeClaim", "is a required field";
        ["/spec/volumes/0" => {"name": "root", "ephemeral": {"persistentVolumeClaim": {"claimName": "A/b"}}}] => "spec.volumes[0].ephemeral.persistentVolumeClaim.claimName", "'A/b' is not the name of a claim";
        ["/spec/volumes/0" => {"name": "root", "persistentVolumeClaim": {"claimName": "a", "hotpluggable": true}}, "/spec/domain/devices/disks/0" => {"name": "root", "cdrom": {"tray": "open"}}] => "spec.domain.devices.disks[0].cdrom.tray", "'open' of a drive whose volume is hotpluggable is not supported yet";
        ["/spec/domain/devices/disks/0/shareable" => true, "/spec/domain/devices/disks/0/cache" => "writeback"] => "spec.domain.devices.disks[0].cache", "a sharable disk requires";
    ]);
    for source in ["persistentVolumeClaim", "ephemeral"] {
        let claim = json!({"claimName": "nonExistingPVC"});
        let claim = if source == "ephemeral" { json!({"persistentVolumeClaim": claim}) } else { claim };
        let waits = with(right(), "/spec/volumes/0", json!({"name": "root", source: claim}));
        assert_eq!(causes_with(&waits, &Gates::default()), [], "{source}");
    }
}
