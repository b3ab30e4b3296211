//! A user's manifest, as JSON or YAML: filling in defaults twice changes nothing, and a valid object stays valid.
#![no_main]

use barevirt_api::defaults;
use barevirt_api::gates::Gates;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::{self, Requester};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let read = serde_json::from_str::<Value>(text).ok();
    let Some(manifest) = read.or_else(|| serde_saphyr::from_str_with_options(text, options).ok()) else {
        return;
    };
    let Ok(mut vmi) = serde_json::from_value::<VirtualMachineInstance>(manifest) else { return };
    defaults::vmi(&mut vmi);
    let once = vmi.clone();
    defaults::vmi(&mut vmi);
    assert_eq!(once, vmi, "defaults a second time");
    let causes = validate::vmi_create(&vmi, Requester::Component, &Gates::all());
    match ValidVmi::new(vmi.clone()) {
        Ok(valid) => assert_eq!(valid.vmi(), &vmi, "a valid one stays as it is"),
        Err(_) if vmi.metadata.name.as_deref().is_none_or(str::is_empty) => {}
        Err(_) => assert!(!causes.is_empty(), "refused without a cause"),
    }
});
