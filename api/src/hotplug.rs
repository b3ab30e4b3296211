//! Volumes that come and go while a guest runs, and their disks: which of a specification they are.

use crate::v1::VirtualMachineInstanceSpec;
use std::collections::BTreeSet;

/// Has `then` what `now` has of volumes that come and go, and of their disks. Everything else of it stays: what then differs
/// takes a restart.
pub fn take_over(then: &mut VirtualMachineInstanceSpec, now: &VirtualMachineInstanceSpec) {
    let (were, are) = (names(then), names(now));
    then.volumes = followed(
        &then.volumes,
        &now.volumes,
        |volume| &volume.name,
        |volume| were.contains(&volume.name),
        |volume| are.contains(&volume.name),
    );
    let (before, after) = (&mut then.domain.devices.disks, &now.domain.devices.disks);
    // A CD drive stays where it is, and only its disc comes and goes.
    *before = followed(
        before,
        after,
        |disk| &disk.name,
        |disk| were.contains(&disk.name) && !disk.is_cdrom(),
        |disk| are.contains(&disk.name) && !disk.is_cdrom(),
    );
}

/// Names of the volumes that come and go.
pub fn names(spec: &VirtualMachineInstanceSpec) -> BTreeSet<String> {
    let hot = spec.volumes.iter().filter(|volume| volume.is_hotpluggable());
    hot.map(|volume| volume.name.clone()).collect()
}

/// The list as it was, but for what comes and goes, which is as it is now; in the order of now.
fn followed<T: Clone>(
    then: &[T],
    now: &[T],
    name: impl Fn(&T) -> &String,
    came: impl Fn(&T) -> bool,
    comes: impl Fn(&T) -> bool,
) -> Vec<T> {
    let kept = |item: &&T| !came(item);
    let mut list: Vec<T> = now
        .iter()
        .filter_map(|item| {
            let stays = then.iter().filter(kept).find(|other| name(other) == name(item));
            stays.or_else(|| Some(item).filter(|item| comes(item))).cloned()
        })
        .collect();
    let gone = then.iter().filter(kept).filter(|item| now.iter().all(|other| name(other) != name(item)));
    list.extend(gone.cloned());
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(volumes: Value, disks: Value) -> VirtualMachineInstanceSpec {
        serde_json::from_value(json!({"volumes": volumes, "domain": {"devices": {"disks": disks}}})).unwrap()
    }

    fn claim(name: &str, claim: &str) -> Value {
        json!({"name": name, "persistentVolumeClaim": {"claimName": claim, "hotpluggable": true}})
    }

    fn root() -> Value {
        json!({"name": "root", "containerDisk": {"image": "a"}})
    }

    fn disk(name: &str) -> Value {
        json!({"name": name, "disk": {"bus": "scsi"}})
    }

    #[test]
    fn what_comes_and_goes_is_no_difference() {
        let then =
            spec(json!([root(), claim("a", "a"), claim("b", "b")]), json!(["root", "a", "b"].map(disk)));
        for now in [
            spec(json!([root()]), json!([disk("root")])),
            spec(json!([root(), claim("c", "c")]), json!([disk("root"), disk("c")])),
            spec(json!([claim("b", "other"), root()]), json!([disk("b"), disk("root")])),
        ] {
            let mut followed = then.clone();
            take_over(&mut followed, &now);
            assert_eq!(followed, now);
            take_over(&mut followed, &then);
            assert_eq!(followed, then);
        }
    }

    #[test]
    fn everything_else_is() {
        let fixed = json!({"name": "a", "persistentVolumeClaim": {"claimName": "a"}});
        let then = spec(json!([root(), claim("a", "a")]), json!([disk("root"), disk("a")]));
        for now in [
            // Another image, none, a claim that is there from the start, another bus of a disk that stays.
            spec(json!([{"name": "root", "containerDisk": {"image": "b"}}]), json!([disk("root")])),
            spec(json!([claim("a", "a")]), json!([disk("a")])),
            spec(json!([root(), fixed]), json!([disk("root"), disk("a")])),
            spec(
                json!([root(), claim("a", "a")]),
                json!([{"name": "root", "disk": {"bus": "sata"}}, disk("a")]),
            ),
            spec(json!([claim("root", "root")]), json!([disk("root")])),
        ] {
            let mut followed = then.clone();
            take_over(&mut followed, &now);
            assert_ne!(followed, now);
        }
    }

    #[test]
    fn a_drive_stays_and_its_disc_comes_and_goes() {
        let drive = || json!([{"name": "a", "cdrom": {"bus": "sata"}}]);
        let full = spec(json!([claim("a", "a")]), drive());
        let empty = spec(json!([]), drive());
        let without = spec(json!([]), json!([]));
        for (then, now, same) in
            [(&full, &empty, true), (&empty, &full, true), (&full, &without, false), (&without, &full, false)]
        {
            let mut followed = then.clone();
            take_over(&mut followed, now);
            assert_eq!(followed == *now, same, "{then:?} {now:?}");
        }
    }
}
