//! Real QEMU's answers about features that guests of this machine can have.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use barevirt_protocol::capabilities::Capabilities;
use virt_launcher::node_capabilities::{Accelerator, ask};

#[tokio::test]
async fn emulation_has_models_features_and_machine_types() {
    let answers = ask(Path::new("qemu-system-x86_64"), Accelerator::Tcg).await.unwrap();
    let capabilities = answers.capabilities();
    let has = |list: &[String], name: &str| list.iter().any(|one| one == name);
    assert!(has(&capabilities.usable_models, "Nehalem") && has(&capabilities.usable_models, "Nehalem-v1"));
    assert!(
        !has(&capabilities.usable_models, "Skylake-Client-IBRS"),
        "it has features that are not emulated"
    );
    assert!(has(&capabilities.known_models, "Skylake-Client-IBRS"));
    assert!(!has(&capabilities.known_models, "max") && !has(&capabilities.known_models, "host"));
    assert!(has(&capabilities.machine_types, "q35") && !has(&capabilities.machine_types, "none"));
    let deprecated = &capabilities.deprecated_machine_types;
    assert!(!deprecated.is_empty() && deprecated.iter().all(|name| has(&capabilities.machine_types, name)));
    assert!(!has(deprecated, "q35"));
    for feature in ["sse4.2", "sse4_2", "pni", "sse3", "pclmuldq", "lahf_lm", "lahf-lm", "aes", "3dnow"] {
        assert!(has(&capabilities.features, feature), "{feature}");
    }
    // QEMU's own properties are not features.
    for feature in ["kvm", "x-l1-cache-per-thread", "tcg-cpuid", "migratable", "cpuid-0xb"] {
        assert!(!has(&capabilities.features, feature), "{feature}");
    }
    // Its own model has all features of the closest named one, and more.
    let model = capabilities.host_model.clone().unwrap();
    assert!(has(&capabilities.usable_models, &model), "{model}");
    assert!(!capabilities.host_model_features.is_empty());
    assert!(!capabilities.sev);
    // The file is read as it was written: every name fits into a label.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(barevirt_protocol::capabilities::FILE);
    std::fs::write(file, serde_json::to_vec(&capabilities).unwrap()).unwrap();
    assert_eq!(Capabilities::read(folder.path()).unwrap(), capabilities);
}

#[tokio::test]
async fn a_qemu_that_does_not_start_says_why() {
    let error = ask(Path::new("/nonexistent/qemu"), Accelerator::Tcg).await.unwrap_err();
    assert!(error.to_string().contains("/nonexistent/qemu"), "{error}");
    // This program starts, but is not QEMU.
    let error = ask(Path::new("/bin/cat"), Accelerator::Tcg).await.unwrap_err();
    assert!(error.to_string().contains("cannot ask QEMU, which said: "), "{error}");
}
