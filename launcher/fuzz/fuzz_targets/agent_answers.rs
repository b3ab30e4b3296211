//! What a guest says that it is, through its agent: any JSON. What is kept is bounded and can be shown on a terminal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use virt_launcher::guest_agent::answers;

fuzz_target!(|bytes: &[u8]| {
    let Ok(answer) = serde_json::from_slice::<Value>(bytes) else { return };
    let os = answers::os(&answer);
    let texts = [os.name, os.version, os.kernel_release, answers::host_name(&answer), answers::time_zone(&answer)];
    let more = answers::file_systems(&answer).into_iter().flat_map(|one| [one.disk_name, one.mount_point]);
    for text in texts.into_iter().flatten().chain(more) {
        assert!(!text.contains(char::is_control), "{text:?}");
    }
    if let Some(load) = answers::load(&answer) {
        assert!(load.iter().all(|mean| mean.is_finite() && *mean >= 0.0));
    }
    drop((
        answers::interfaces(&answer),
        answers::agent(&answer),
        answers::users(&answer),
        answers::frozen(&answer),
    ));
});
