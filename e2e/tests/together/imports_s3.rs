//! DataVolumes without CDI from S3. The server of the test bed has each signature checked by Amazon's own signer.

use super::imports::{
    FILLED, data_volume, digest_of_tiny, fails, filled, host_of, publish_on, tiny, without_cdi,
};
use super::imports_in_a_row::have_the_image;
use super::imports_servers::{OBJECTS, certificates, is_under_way, kill_server, serve};
use anyhow::{Result, ensure};
use barevirt_e2e::Namespace;
use serde_json::{Value, json};

/// Image of the add-on `s3`, which the nodes have.
const S3: &str = "localhost/barevirt-cluster/s3:devel";
/// The keys of the one who may read.
const KEYS: (&str, &str) = ("AKIAEXAMPLE", "a/secret+key");
/// Bytes in a second: a transfer takes half a minute.
pub(crate) const SLOW: &str = "1000000";
/// An object whose name is not in its address as it is.
pub(crate) const OBJECT: &str = "images/golden+disk=1";

/// Starts the server, and makes the secret `keys`. The rate is in bytes in a second, 0 for no limit.
pub(crate) fn serve_objects(namespace: &Namespace, rate: &str) -> Result<()> {
    let tls = ["-listen", ":8443", "-certificate", "/config/server.crt", "-key", "/config/server.key"];
    let objects = ["-folder", "/tmp/www", "-access-key", KEYS.0, "-secret-key", KEYS.1, "-rate", rate];
    serve(namespace, OBJECTS, S3, &[&tls[..], &objects[..]].concat(), "/tmp/www")?;
    keys(namespace, "keys", KEYS.1)
}

fn keys(namespace: &Namespace, name: &str, secret: &str) -> Result<()> {
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "stringData": { "accessKeyId": KEYS.0, "secretKey": secret },
    }))
}

/// An object of that server as a source, read with the keys of a secret.
pub(crate) fn source(namespace: &Namespace, object: &str, keys: Option<&str>) -> Value {
    let url = format!("https://{}/{object}", host_of(namespace, OBJECTS));
    json!({ "s3": { "url": url, "secretRef": keys, "certConfigMap": "authority" } })
}

#[test]
fn an_object_is_read_with_its_keys_and_after_its_server_was_killed() {
    without_cdi("importss3", |namespace| {
        certificates(namespace)?;
        serve_objects(namespace, SLOW)?;
        publish_on(namespace, OBJECTS, OBJECT, &tiny())?;
        keys(namespace, "wrong", "guessed")?;
        let source = |object: &str, keys: Option<&str>| source(namespace, object, keys);

        namespace.apply(&data_volume("disk", &source(OBJECT, Some("keys")), "160Mi"))?;
        is_under_way(namespace, "disk")?;
        kill_server(namespace, OBJECTS, "s3")?;
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
