//! DataVolumes of templates: made before the start, waited for, reported.

use super::*;

/// A machine with one template, whose DataVolume has this phase or does not exist.
fn with_template(strategy: &str, phase: Option<&str>) -> Observed {
    let mut vm = vm(strategy, json!({}));
    vm.spec.data_volume_templates =
        serde_json::from_value(json!([{"metadata": {"name": "root"}, "spec": {}}])).unwrap();
    let state = phase.map(|phase| DataVolumeState {
        name: "root".to_owned(),
        phase: phase.to_owned(),
        ..DataVolumeState::default()
    });
    Observed { data_volumes: DataVolumes(vec![state]), ..observed(vm, None) }
}

fn word(observed: &Observed) -> String {
    compute(observed, observed.own_vmi(), &Outcome::Quiet).printable_status.unwrap()
}

#[test]
fn data_volumes_are_made_before_the_start_and_waited_for() {
    let make = Step::Provide(Work { make: vec![0], adopt: vec![] });
    for strategy in ["Always", "Halted", "Manual"] {
        assert_eq!(plan(&with_template(strategy, None)), make, "{strategy}");
    }
    for (phase, starts, status) in [
        ("", false, "Provisioning"),
        ("ImportInProgress", false, "Provisioning"),
        ("Failed", false, "DataVolumeError"),
        ("WaitForFirstConsumer", true, "Stopped"),
        ("PendingPopulation", true, "Stopped"),
        ("Succeeded", true, "Stopped"),
    ] {
        let observed = with_template("Always", Some(phase));
        let step = plan(&observed);
        assert_eq!(matches!(step, Step::Start(_)), starts, "{phase}: {step:?}");
        assert_eq!(matches!(step, Step::Wait(_)), !starts, "{phase}: {step:?}");
        assert_eq!(word(&observed), status, "{phase}");
        // The machine is not to run; the DataVolume is filled nevertheless.
        assert_eq!(plan(&with_template("Halted", Some(phase))), Step::Rest, "{phase}");
    }
    // A missing DataVolume is no reason to keep the instance running.
    let mut observed = with_template("Halted", None);
    observed.vmi = Some(ran(vmi("i1", "Running")));
    assert_eq!(plan(&observed), stop("i1"));
    // Where they are not to be made before the start.
    let mut later = with_template("Halted", None);
    let annotation = ("kubevirt.io/immediate-data-volume-creation".to_owned(), "false".to_owned());
    later.vm.metadata.annotations = Some([annotation].into());
    assert_eq!(plan(&later), Step::Rest);
    later.vm.spec.run_strategy = Some("Always".to_owned());
    assert_eq!(plan(&later), make);
    // A machine that is being deleted makes nothing.
    let mut going = with_template("Always", None);
    going.vm.metadata.deletion_timestamp = Some(Time(at(NOW)));
    assert_eq!(plan(&going), Step::Release);
}

#[test]
fn an_ownerless_data_volume_is_adopted_and_a_quota_failure_reported() {
    let mut observed = with_template("Always", Some("Succeeded"));
    let state = observed.data_volumes.0[0].as_mut().unwrap();
    state.is_nobodys = true;
    assert_eq!(plan(&observed), Step::Provide(Work { make: vec![], adopt: vec!["root".to_owned()] }));
    let mut observed = with_template("Always", Some("Pending"));
    observed.data_volumes.0[0].as_mut().unwrap().over_quota = Some("no more".to_owned());
    assert_eq!(plan(&observed), Step::OverQuota("root".to_owned(), "no more".to_owned()));
}

#[test]
fn an_instance_that_waits_for_data_volumes_says_so() {
    let instance = |type_: &str, reason: &str| with_condition(vmi("i1", "Pending"), type_, reason);
    let plain = || vmi("i1", "Pending");
    let missing = || {
        let instance = instance("Synchronized", "FailedPvcNotFound");
        with_condition(instance, "PodScheduled", "Unschedulable")
    };
    let provisioning = |mut vmi: VirtualMachineInstance| {
        let condition = json!({"type": "Provisioning", "status": "True"});
        vmi.status.as_mut().unwrap().conditions.push(serde_json::from_value(condition).unwrap());
        vmi
    };
    for (phase, vmi, status) in [
        ("WaitForFirstConsumer", plain(), "WaitingForVolumeBinding"),
        ("PendingPopulation", plain(), "WaitingForVolumeBinding"),
        ("ImportInProgress", plain(), "Provisioning"),
        ("Failed", instance("PodScheduled", "Unschedulable"), "DataVolumeError"),
        ("PendingPopulation", instance("PodScheduled", "Unschedulable"), "ErrorUnschedulable"),
        ("ImportInProgress", instance("PodScheduled", "Unschedulable"), "ErrorUnschedulable"),
        ("Succeeded", plain(), "Starting"),
        ("ImportInProgress", ran(self::vmi("i1", "Running")), "Running"),
        // DataVolumes that belong to no template.
        ("Succeeded", instance("Synchronized", "DataVolumeNotReady"), "Provisioning"),
        ("Succeeded", instance("Synchronized", "FailedDataVolumeImport"), "DataVolumeError"),
        ("Succeeded", provisioning(plain()), "WaitingForVolumeBinding"),
        ("Succeeded", instance("Synchronized", "FailedPvcNotFound"), "ErrorPvcNotFound"),
        ("Succeeded", missing(), "ErrorPvcNotFound"),
        ("ImportInProgress", missing(), "Provisioning"),
    ] {
        let mut observed = with_template("Always", Some(phase));
        observed.vmi = Some(vmi);
        assert_eq!(word(&observed), status, "{phase}");
    }
}
