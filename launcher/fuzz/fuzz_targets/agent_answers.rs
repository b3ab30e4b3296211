//! A guest's answers through its agent: any JSON. The stored values have limits and can be shown on a
//! terminal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::de::DeserializeOwned;
use serde_json::Value;
use virt_launcher::guest_agent::answers;

fn read<T: DeserializeOwned>(answer: &Value) -> Option<T> {
    T::deserialize(answer).ok()
}

fn list<T: DeserializeOwned>(answer: &Value) -> Vec<T> {
    answer.as_array().into_iter().flatten().filter_map(read).collect()
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(answer) = serde_json::from_slice::<Value>(bytes) else { return };
    let os = read(&answer).map(|os| answers::os(&os)).unwrap_or_default();
    let host_name = read(&answer).and_then(|said| answers::host_name(&said));
    let time_zone = read(&answer).map(|said| answers::time_zone(&said));
    let texts = [os.name, os.version, os.kernel_release, host_name, time_zone];
    let more =
        answers::file_systems(&list(&answer)).into_iter().flat_map(|one| [one.disk_name, one.mount_point]);
    for text in texts.into_iter().flatten().chain(more) {
        assert!(!text.contains(char::is_control), "{text:?}");
    }
    if let Some(load) = read(&answer).and_then(|said| answers::load(&said)) {
        assert!(load.iter().all(|mean| mean.is_finite() && *mean >= 0.0));
    }
    drop((
        answers::interfaces(&list(&answer)),
        read(&answer).map(|said| answers::agent(&said)),
        answers::users(&list(&answer)),
    ));
});
