//! Input of a user of the monitor: any bytes.
#![no_main]

use barevirt_api::monitor;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let begun = [b"{\"execute\":\"qmp_capabilities\"}\n", bytes].concat();
    for (name, arguments) in virt_launcher::people::passed_on(&begun) {
        assert!(monitor::judge(&name, &arguments).is_ok(), "{name} {arguments}");
    }
});
