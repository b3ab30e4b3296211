//! DataVolumes without CDI from S3. The server of the test bed has each signature checked by Amazon's own signer.

use super::imports::{
    FILLED, data_volume, digest_of_tiny, fails, filled, host_of, publish, tiny, without_cdi,
};
use super::imports_in_a_row::have_the_image;
use super::imports_servers::{WEB, certificates, is_under_way, kill_server, serve};
use anyhow::ensure;
use serde_json::json;

/// Image of the add-on `s3`, which the nodes have.
const S3: &str = "localhost/barevirt-cluster/s3:devel";
/// The keys of the one who may read.
const KEYS: (&str, &str) = ("AKIAEXAMPLE", "a/secret+key");
/// Bytes in a second: a transfer takes half a minute.
const SLOW: &str = "1000000";
/// An object whose name is not in its address as it is.
const OBJECT: &str = "images/golden+disk=1";

#[test]
fn an_object_is_read_with_its_keys_and_after_its_server_was_killed() {
    without_cdi("importss3", |namespace| {
        certificates(namespace)?;
        let tls = ["-listen", ":8443", "-certificate", "/config/server.crt", "-key", "/config/server.key"];
        let objects = ["-folder", "/tmp/www", "-access-key", KEYS.0, "-secret-key", KEYS.1, "-rate", SLOW];
        serve(namespace, WEB, S3, &[&tls[..], &objects[..]].concat(), "/tmp/www")?;
        publish(namespace, OBJECT, &tiny())?;
        for (name, secret) in [("keys", KEYS.1), ("wrong", "guessed")] {
            namespace.apply(&json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
                "stringData": { "accessKeyId": KEYS.0, "secretKey": secret },
            }))?;
        }
        let source = |object: &str, keys: Option<&str>| {
            let url = format!("https://{}/{object}", host_of(namespace, WEB));
            json!({ "s3": { "url": url, "secretRef": keys, "certConfigMap": "authority" } })
        };

        namespace.apply(&data_volume("disk", &source(OBJECT, Some("keys")), "160Mi"))?;
        is_under_way(namespace, "disk")?;
        kill_server(namespace, WEB, "s3")?;
        let ended = filled(namespace, "disk", FILLED * 2)?;
        ensure!(ended["status"]["restartCount"].as_u64().unwrap_or_default() == 0, "{}", ended["status"]);
        have_the_image(namespace, &digest_of_tiny()?)?;

        let bad = [
            ("no-keys", source(OBJECT, None), "answers 403"),
            ("wrong-keys", source(OBJECT, Some("wrong")), "answers 403"),
            ("no-object", source("images/other", Some("keys")), "answers 404"),
        ];
        for (name, source, _) in &bad {
            namespace.apply(&data_volume(name, source, "160Mi"))?;
        }
        for (name, _, why) in &bad {
            let said = fails(namespace, name, why)?;
            ensure!(!said.contains(KEYS.1) && !said.contains("guessed"), "{name} tells a secret: {said}");
        }
        Ok(())
    });
}
