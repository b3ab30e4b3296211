//! Rules for devices other than disks and interfaces: input, sound, video, panic, ramfb, and I/O threads.

use super::{Cause, Path};
use crate::architecture;
use crate::syntax::quoted;
use crate::v1::{Devices, Gpu, VirtualMachineInstanceSpec};

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let field = path.child("domain.devices");
    let devices = &spec.domain.devices;
    inputs(&field.child("inputs"), devices, causes);
    sound(&field.child("sound"), devices, causes);
    panics(&field.child("panicDevices"), devices, architecture::of(spec), causes);
    if devices.video.is_some() && devices.autoattach_graphics_device == Some(false) {
        causes.push(Cause::invalid(
            &field.child("video"),
            "Video configuration is not allowed when autoattachGraphicsDevice is set to false",
        ));
    }
    if devices.gpus.iter().filter(|gpu| has_ramfb(gpu)).count() > 1 {
        causes.push(Cause::invalid(
            &field.child("gpus"),
            "configuring multiple displays with ramfb is not valid",
        ));
    }
    io_threads(path, spec, causes);
}

fn inputs(field: &Path, devices: &Devices, causes: &mut Vec<Cause>) {
    for (index, input) in devices.inputs.iter().enumerate() {
        let field = field.index(index);
        if !matches!(input.bus.as_deref(), None | Some("" | "virtio" | "usb")) {
            causes.push(Cause::invalid(&field.child("bus"), "Input device can have only virtio or usb bus."));
        }
        // An input without a type is a tablet.
        if !matches!(input.type_.as_str(), "" | "tablet") {
            causes.push(Cause::invalid(&field.child("type"), "Input device can have only tablet type."));
        }
    }
}

fn sound(field: &Path, devices: &Devices, causes: &mut Vec<Cause>) {
    let Some(sound) = &devices.sound else { return };
    if !matches!(sound.model.as_deref(), None | Some("" | "ich9" | "ac97")) {
        causes.push(Cause::invalid(
            &field.child("model"),
            "Sound device type is not supported. Options: 'ich9' or 'ac97'",
        ));
    }
    if sound.name.is_empty() {
        causes.push(Cause::invalid(&field.child("name"), "Sound device requires a name field."));
    }
}

fn panics(field: &Path, devices: &Devices, architecture: &str, causes: &mut Vec<Cause>) {
    if !devices.panic_devices.is_empty() && architecture == "s390x" {
        causes.push(Cause::invalid(
            field,
            format!("custom panic devices are not supported on {architecture} architecture"),
        ));
    }
    for (index, device) in devices.panic_devices.iter().enumerate() {
        if let Some(model) = device.model.as_deref()
            && !matches!(model, "hyperv" | "isa" | "pvpanic")
        {
            causes.push(Cause::invalid(
                &field.index(index).child("model"),
                format!("invalid PanicDeviceModel({})", quoted(model)),
            ));
        }
    }
}

/// A vGPU's display is on, and has a frame buffer until its driver is loaded, unless they are switched off.
fn has_ramfb(gpu: &Gpu) -> bool {
    gpu.virtual_gpu_options.as_ref().and_then(|options| options.display.as_ref()).is_some_and(|display| {
        display.enabled.unwrap_or(true) && display.ram_fb.as_ref().is_none_or(|ramfb| ramfb.is_enabled())
    })
}

fn io_threads(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let Some(policy) = spec.domain.io_threads_policy.as_deref() else { return };
    if !matches!(policy, "shared" | "auto" | "supplementalPool") {
        causes.push(Cause::invalid(
            &path.child("domain.ioThreadsPolicy"),
            format!("Invalid IOThreadsPolicy ({})", quoted(policy)),
        ));
    }
    let count = spec
        .domain
        .io_threads
        .as_ref()
        .and_then(|threads| threads.supplemental_pool_thread_count)
        .unwrap_or(0);
    if policy == "supplementalPool" && count < 1 {
        causes.push(Cause::invalid(
            &path.child("domain.ioThreads.supplementalPoolThreadCount"),
            "the number of iothreads needs to be set and positive for the dedicated policy",
        ));
    }
}
