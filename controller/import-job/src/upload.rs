//! The protocol between virt-controller, virt-api and virt-importer for an upload.
//!
//! ```text
//!   virt-controller -- Source::Upload in the pod's job --> virt-importer       accepted clients
//!   in the pod, before its work:  virt-importer keys NAME --> key: stays in the pod; certificate: termination message
//!   virt-api <-------- the pod's status ------------------ API server          the server's certificate
//!   virt-api --------- POST UPLOAD or UPLOAD_ASYNC, mutual TLS --> virt-importer
//!
//!   after a broken connection, if the upload has a name (UPLOAD_ID):
//!   virt-api --------- POST UPLOAD_REST, Content-Range: bytes */LENGTH --------> virt-importer    202 and the number of bytes
//!   virt-api --------- POST UPLOAD_REST, Content-Range: bytes N-LAST/LENGTH ---> virt-importer    as the first request
//! ```
//!
//! virt-api passes on what its own client sends. The rest has a path of its own, so that no server that knows only whole images
//! takes it for one.

/// Port of the upload server, over TLS; CDI's.
pub const UPLOAD_PORT: u16 = 8443;
/// Path of an upload that is answered once the claim is filled; CDI's.
pub const UPLOAD: &str = "/v1beta1/upload";
/// Path of an upload that is answered once the image has been received; CDI's.
pub const UPLOAD_ASYNC: &str = "/v1beta1/upload-async";
/// Path of the rest of an upload whose connection broke, and of the question where the rest begins.
pub const UPLOAD_REST: &str = "/v1beta1/upload-rest";
/// Header with the name of an upload, which its client has made up: with it, the upload may go on over another connection.
pub const UPLOAD_ID: &str = "barevirt-upload";
/// Header with the checksum of an image as it is sent, `algorithm:digest`: md5, sha1, sha256 or sha512.
pub const UPLOAD_CHECKSUM: &str = "barevirt-checksum";

/// The name in the certificate of the pod that receives the upload for the claim with that UID. No other server of ours has a
/// certificate with it: neither a handler nor the pod of another claim.
#[must_use]
pub fn upload_server_name(claim_uid: &str) -> String {
    format!("{claim_uid}.upload.barevirt.dev")
}

/// Longest name of a claim whose pod's name is the claim's with a prefix.
const LONGEST: usize = 200;

/// Name of the pod that receives the upload for a claim.
#[must_use]
pub fn upload_pod_name(claim: &str) -> String {
    match claim.get(..LONGEST) {
        Some(start) if claim.len() > LONGEST => {
            // FNV-1a: if two names collide, they only delay each other.
            let hash = claim.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            format!("cdi-upload-{}-{hash:016x}", start.trim_end_matches(['-', '.']))
        }
        _ => format!("cdi-upload-{claim}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_has_a_pod_of_its_own() {
        assert_eq!(upload_pod_name("disk"), "cdi-upload-disk");
        let long = ["a".repeat(253), format!("{}b", "a".repeat(252)), "a".repeat(200)];
        let names = long.each_ref().map(|claim| upload_pod_name(claim));
        assert!(names.iter().all(|name| name.len() <= 253), "{names:?}");
        assert!(names[0] != names[1] && names[1] != names[2]);
    }
}
