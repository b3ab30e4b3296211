//! Fills in the fields that a specification leaves open from a preference. The rules are KubeVirt's.
//!
//! Every field of a preference is applied, even one that has no effect yet. Validation then refuses it by its
//! name in the specification, as if a user had written it there.

use super::{
    ClockPreferences, CpuPreferences, DevicePreferences, FeaturePreferences, FirmwarePreferences,
    MachinePreferences, VirtualMachinePreferenceSpec, VolumePreferences,
};
use crate::v1::{
    Bios, Bootloader, ClockOffset, Devices, Disk, DiskTarget, Efi, FeatureHyperv, Interface, PanicDevice,
    VirtualMachine, VirtualMachineInstanceSpec,
};
use std::collections::{BTreeMap, HashSet};

/// Fills in the fields of a machine that must be set before any instance is made: architecture, machine type,
/// and the storage class of its DataVolume templates.
pub fn to_machine(preference: &VirtualMachinePreferenceSpec, vm: &mut VirtualMachine) {
    let spec = &mut vm.spec.template.spec;
    fill_text(&mut spec.architecture, preference.preferred_architecture.as_ref());
    machine(preference.machine.as_ref(), spec);
    let class = preference.volumes.as_ref().and_then(|volumes| {
        let VolumePreferences { preferred_storage_class_name } = volumes;
        given(preferred_storage_class_name.as_ref())
    });
    for template in &mut vm.spec.data_volume_templates {
        if let Some(claim) = &mut template.spec.pvc {
            fill(&mut claim.storage_class_name, class);
        }
        if let Some(storage) = &mut template.spec.storage {
            fill(&mut storage.storage_class_name, class);
        }
    }
}

/// Fills in the fields that decide which default devices are added. They are read before devices are added.
pub fn autoattach(preference: &VirtualMachinePreferenceSpec, spec: &mut VirtualMachineInstanceSpec) {
    let Some(preferred) = &preference.devices else { return };
    let devices = &mut spec.domain.devices;
    fill(&mut devices.autoattach_graphics_device, preferred.preferred_autoattach_graphics_device.as_ref());
    fill(&mut devices.autoattach_input_device, preferred.preferred_autoattach_input_device.as_ref());
    fill(&mut devices.autoattach_mem_balloon, preferred.preferred_autoattach_mem_balloon.as_ref());
    fill(&mut devices.autoattach_pod_interface, preferred.preferred_autoattach_pod_interface.as_ref());
    fill(&mut devices.autoattach_serial_console, preferred.preferred_autoattach_serial_console.as_ref());
}

/// Fills in a specification that has all its devices, and the annotations of its object.
pub fn apply(
    preference: &VirtualMachinePreferenceSpec,
    spec: &mut VirtualMachineInstanceSpec,
    annotations: &mut BTreeMap<String, String>,
) {
    autoattach(preference, spec);
    let VirtualMachinePreferenceSpec {
        annotations: preferred_annotations,
        clock,
        cpu,
        devices,
        features,
        firmware,
        machine: board,
        // The topology reads this together with `cpu`.
        prefer_spread_socket_to_core_ratio: _,
        preferred_architecture,
        preferred_launch_security,
        preferred_subdomain,
        preferred_termination_grace_period_seconds,
        // A requirement is compared, not applied.
        requirements: _,
        // Applied to the machine's DataVolume templates.
        volumes: _,
    } = preference;
    for (name, value) in preferred_annotations {
        annotations.entry(name.clone()).or_insert_with(|| value.clone());
    }
    if let Some(preferred) = clock {
        self::clock(preferred, spec);
    }
    if let Some(preferred) = cpu {
        cpu_features(preferred, spec);
    }
    if let Some(preferred) = devices {
        self::devices(preferred, spec);
    }
    if let Some(preferred) = features {
        self::features(preferred, spec);
    }
    if let Some(preferred) = firmware {
        self::firmware(preferred, spec);
    }
    machine(board.as_ref(), spec);
    fill_text(&mut spec.architecture, preferred_architecture.as_ref());
    fill(&mut spec.domain.launch_security, preferred_launch_security.as_ref());
    fill_text(&mut spec.subdomain, preferred_subdomain.as_ref());
    fill(&mut spec.termination_grace_period_seconds, preferred_termination_grace_period_seconds.as_ref());
}

/// Takes the preferred value if none is given.
fn fill<T: Clone>(field: &mut Option<T>, preferred: Option<&T>) {
    if field.is_none() {
        *field = preferred.cloned();
    }
}

/// The same for text. Empty text counts as not given.
fn fill_text(field: &mut Option<String>, preferred: Option<&String>) {
    if given(field.as_ref()).is_none()
        && let Some(preferred) = given(preferred)
    {
        *field = Some(preferred.clone());
    }
}

fn given(text: Option<&String>) -> Option<&String> {
    text.filter(|text| !text.is_empty())
}

fn clock(preferred: &ClockPreferences, spec: &mut VirtualMachineInstanceSpec) {
    let ClockPreferences { preferred_clock_offset, preferred_timer } = preferred;
    if preferred_clock_offset.is_none() && preferred_timer.is_none() {
        return;
    }
    let clock = spec.domain.clock.get_or_insert_default();
    // Both fields set the offset, so both are filled in or neither.
    if let Some(ClockOffset { timezone, utc }) = preferred_clock_offset
        && clock.utc.is_none()
        && clock.timezone.is_none()
    {
        clock.timezone.clone_from(timezone);
        clock.utc.clone_from(utc);
    }
    fill(&mut clock.timer, preferred_timer.as_ref());
}

fn cpu_features(preferred: &CpuPreferences, spec: &mut VirtualMachineInstanceSpec) {
    // The topology and its options decide how the vCPUs of an instance type are divided.
    let CpuPreferences { preferred_cpu_features, preferred_cpu_topology: _, spread_options: _ } = preferred;
    if preferred_cpu_features.is_empty() {
        return;
    }
    let cpu = spec.domain.cpu.get_or_insert_default();
    let known: HashSet<String> = cpu.features.iter().map(|feature| feature.name.clone()).collect();
    cpu.features
        .extend(preferred_cpu_features.iter().filter(|feature| !known.contains(&feature.name)).cloned());
}

fn devices(preferred: &DevicePreferences, spec: &mut VirtualMachineInstanceSpec) {
    let DevicePreferences {
        // Already applied by `autoattach`.
        preferred_autoattach_graphics_device: _,
        preferred_autoattach_input_device: _,
        preferred_autoattach_mem_balloon: _,
        preferred_autoattach_pod_interface: _,
        preferred_autoattach_serial_console: _,
        preferred_block_multi_queue,
        preferred_cdrom_bus,
        preferred_disable_hotplug,
        preferred_disk_block_size,
        preferred_disk_bus,
        preferred_disk_cache,
        preferred_disk_dedicated_io_thread,
        preferred_disk_io,
        preferred_input_bus,
        preferred_input_type,
        preferred_interface_masquerade,
        preferred_interface_model,
        preferred_lun_bus,
        preferred_network_interface_multi_queue,
        preferred_panic_device_model,
        preferred_rng,
        preferred_sound_model,
        preferred_tpm,
        preferred_use_virtio_transitional,
        preferred_video_type,
        // The field has no effect in KubeVirt either, according to its documentation.
        preferred_virtual_gpu_options: _,
    } = preferred;
    let networks = &spec.networks;
    let devices = &mut spec.domain.devices;
    fill(&mut devices.block_multi_queue, preferred_block_multi_queue.as_ref());
    // The only field where the preference overrides the machine.
    if preferred_disable_hotplug.is_some() {
        devices.disable_hotplug = *preferred_disable_hotplug;
    }
    fill(&mut devices.network_interface_multiqueue, preferred_network_interface_multi_queue.as_ref());
    fill(&mut devices.rng, preferred_rng.as_ref());
    fill(&mut devices.tpm, preferred_tpm.as_ref());
    fill(&mut devices.use_virtio_transitional, preferred_use_virtio_transitional.as_ref());
    if let Some(sound) = &mut devices.sound {
        fill_text(&mut sound.model, preferred_sound_model.as_ref());
    }
    if given(preferred_video_type.as_ref()).is_some() {
        fill_text(&mut devices.video.get_or_insert_default().type_, preferred_video_type.as_ref());
    }
    for disk in &mut devices.disks {
        let Disk { disk: target, cdrom, lun, block_size, cache, io, dedicated_io_thread, .. } = disk;
        if target.is_none() && cdrom.is_none() && lun.is_none() {
            *target = Some(DiskTarget::default());
        }
        if let Some(target) = target {
            fill_text(&mut target.bus, preferred_disk_bus.as_ref());
            fill(block_size, preferred_disk_block_size.as_ref());
            fill_text(cache, preferred_disk_cache.as_ref());
            fill_text(io, preferred_disk_io.as_ref());
            if target.bus.as_deref() == Some("virtio") {
                fill(dedicated_io_thread, preferred_disk_dedicated_io_thread.as_ref());
            }
        } else if let Some(cdrom) = cdrom {
            fill_text(&mut cdrom.bus, preferred_cdrom_bus.as_ref());
        } else if let Some(lun) = lun {
            fill_text(&mut lun.bus, preferred_lun_bus.as_ref());
        }
    }
    for interface in &mut devices.interfaces {
        // The card of an SR-IOV interface is hardware: a model has no meaning for it.
        if interface.sriov.is_none() {
            fill_text(&mut interface.model, preferred_interface_model.as_ref());
        }
        let on_pod_network = networks
            .iter()
            .find(|network| network.name == interface.name)
            .is_some_and(|network| network.pod.is_some());
        if on_pod_network && has_no_binding(interface) {
            interface.masquerade.clone_from(preferred_interface_masquerade);
        }
    }
    for input in &mut devices.inputs {
        fill_text(&mut input.bus, preferred_input_bus.as_ref());
        if input.type_.is_empty()
            && let Some(preferred) = preferred_input_type
        {
            input.type_.clone_from(preferred);
        }
    }
    panic_devices(preferred_panic_device_model.as_ref(), devices);
}

fn has_no_binding(interface: &Interface) -> bool {
    let Interface { masquerade, bridge, binding, macvtap, passt, passt_binding, slirp, sriov, .. } =
        interface;
    masquerade.is_none()
        && bridge.is_none()
        && binding.is_none()
        && macvtap.is_none()
        && passt.is_none()
        && passt_binding.is_none()
        && slirp.is_none()
        && sriov.is_none()
}

fn panic_devices(preferred: Option<&String>, devices: &mut Devices) {
    let Some(preferred) = preferred else { return };
    if devices.panic_devices.is_empty() {
        devices.panic_devices.push(PanicDevice { model: Some(preferred.clone()) });
    }
    for device in &mut devices.panic_devices {
        fill(&mut device.model, Some(preferred));
    }
}

fn features(preferred: &FeaturePreferences, spec: &mut VirtualMachineInstanceSpec) {
    if *preferred == FeaturePreferences::default() {
        return;
    }
    let FeaturePreferences {
        preferred_acpi,
        preferred_apic,
        preferred_hyperv,
        preferred_kvm,
        preferred_pvspinlock,
        preferred_smm,
    } = preferred;
    let features = spec.domain.features.get_or_insert_default();
    // As with hotplug: KubeVirt's type does not show whether the machine gives a value.
    if preferred_acpi.is_some() {
        features.acpi.clone_from(preferred_acpi);
    }
    fill(&mut features.apic, preferred_apic.as_ref());
    fill(&mut features.kvm, preferred_kvm.as_ref());
    fill(&mut features.pvspinlock, preferred_pvspinlock.as_ref());
    fill(&mut features.smm, preferred_smm.as_ref());
    if let Some(preferred) = preferred_hyperv {
        hyperv(preferred, features.hyperv.get_or_insert_default());
    }
}

fn hyperv(preferred: &FeatureHyperv, hyperv: &mut FeatureHyperv) {
    let FeatureHyperv {
        evmcs,
        frequencies,
        ipi,
        reenlightenment,
        relaxed,
        reset,
        runtime,
        spinlocks,
        synic,
        synictimer,
        tlbflush,
        vapic,
        vendorid,
        vpindex,
    } = preferred;
    fill(&mut hyperv.evmcs, evmcs.as_ref());
    fill(&mut hyperv.frequencies, frequencies.as_ref());
    fill(&mut hyperv.ipi, ipi.as_ref());
    fill(&mut hyperv.reenlightenment, reenlightenment.as_ref());
    fill(&mut hyperv.relaxed, relaxed.as_ref());
    fill(&mut hyperv.reset, reset.as_ref());
    fill(&mut hyperv.runtime, runtime.as_ref());
    fill(&mut hyperv.spinlocks, spinlocks.as_ref());
    fill(&mut hyperv.synic, synic.as_ref());
    fill(&mut hyperv.synictimer, synictimer.as_ref());
    fill(&mut hyperv.tlbflush, tlbflush.as_ref());
    fill(&mut hyperv.vapic, vapic.as_ref());
    fill(&mut hyperv.vendorid, vendorid.as_ref());
    fill(&mut hyperv.vpindex, vpindex.as_ref());
}

fn firmware(preferred: &FirmwarePreferences, spec: &mut VirtualMachineInstanceSpec) {
    let FirmwarePreferences {
        preferred_efi,
        preferred_use_bios,
        preferred_use_bios_serial,
        preferred_use_efi,
        preferred_use_secure_boot,
    } = preferred;
    let firmware = spec.domain.firmware.clone().unwrap_or_default();
    let mut loader = firmware.bootloader.clone().unwrap_or_default();
    let chosen = |loader: &Bootloader| loader.bios.is_some() || loader.efi.is_some();
    if *preferred_use_bios == Some(true) && !chosen(&loader) {
        loader.bios = Some(Bios::default());
    }
    if let Some(bios) = &mut loader.bios {
        fill(&mut bios.use_serial, preferred_use_bios_serial.as_ref());
    }
    if preferred_efi.is_some() {
        // The two deprecated fields are ignored then.
        if !chosen(&loader) {
            loader.efi.clone_from(preferred_efi);
        }
    } else {
        if *preferred_use_efi == Some(true) && !chosen(&loader) {
            loader.efi = Some(Efi::default());
        }
        if let Some(efi) = &mut loader.efi {
            fill(&mut efi.secure_boot, preferred_use_secure_boot.as_ref());
        }
    }
    // The boot loader is only written if something was filled in.
    if loader != firmware.bootloader.unwrap_or_default() {
        spec.domain.firmware.get_or_insert_default().bootloader = Some(loader);
    }
}

fn machine(preferred: Option<&MachinePreferences>, spec: &mut VirtualMachineInstanceSpec) {
    let Some(MachinePreferences { preferred_machine_type }) = preferred else { return };
    if given(preferred_machine_type.as_ref()).is_some() {
        fill_text(&mut spec.domain.machine.get_or_insert_default().type_, preferred_machine_type.as_ref());
    }
}

#[cfg(test)]
mod tests;
