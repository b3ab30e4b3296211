//! Cloud-init data: user data and network data, each given in one way, and of limited length if inline.

use super::{Cause, Path};
use crate::cloud_init::{self, CloudInit, Given, Layout};
use crate::syntax::{is_dns_subdomain, quoted};
use crate::v1::Volume;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Longest inline user data, and longest inline network data, in bytes. This is KubeVirt's limit, because the
/// object is sent to many watchers.
pub const CLOUD_INIT_LIMIT: usize = 2048;

/// A volume with cloud-init data, in either layout.
pub(super) fn validate(field: &Path, volume: &Volume, causes: &mut Vec<Cause>) {
    if let Some(CloudInit { layout, user, network }) = cloud_init::of(volume) {
        let name = match layout {
            Layout::NoCloud => "cloudInitNoCloud",
            Layout::ConfigDrive => "cloudInitConfigDrive",
        };
        self::layout(&field.child(name), user, network, causes);
    }
}

fn layout(field: &Path, user: Given<'_>, network: Given<'_>, causes: &mut Vec<Cause>) {
    let user = Data {
        given: user,
        base64_field: field.child("userDataBase64"),
        secret_field: field.child("secretRef"),
        one_source: "userdatasource",
        what: "userdata",
        larger: "UserDataSecretRef",
    };
    let network = Data {
        given: network,
        base64_field: field.child("networkDataBase64"),
        secret_field: field.child("networkDataSecretRef"),
        one_source: "networkdata source",
        what: "networkdata",
        larger: "NetworkDataSecretRef",
    };
    let count = user.validate(field, causes) + network.validate(field, causes);
    if count == 0 {
        causes.push(Cause::invalid(
            field,
            format!("{field} must have at least one userdatasource or one networkdatasource set."),
        ));
    }
}

/// User data or network data, and texts for messages.
struct Data<'a> {
    given: Given<'a>,
    base64_field: Path,
    secret_field: Path,
    one_source: &'static str,
    what: &'static str,
    larger: &'static str,
}

impl Data<'_> {
    /// Number of ways used; adds causes if there is more than one, or if one is invalid.
    fn validate(&self, field: &Path, causes: &mut Vec<Cause>) -> usize {
        let mut count = 0;
        let mut length = 0;
        if let Some(secret) = self.given.secret {
            count += 1;
            if !is_dns_subdomain(secret) {
                let field = &self.secret_field;
                causes.push(Cause::invalid(
                    field,
                    format!("{field} '{}' is not the name of a secret", quoted(secret)),
                ));
            }
        }
        if let Some(text) = self.given.base64 {
            count += 1;
            match decode_base64(text) {
                Ok(data) => length = data.len(),
                Err(NotBase64) => causes.push(Cause::invalid(
                    &self.base64_field,
                    format!("{} is not a valid base64 value.", self.base64_field),
                )),
            }
        }
        if let Some(text) = self.given.plain {
            count += 1;
            length = length.max(text.len());
        }
        if count > 1 {
            causes
                .push(Cause::invalid(field, format!("{field} must have only one {} set.", self.one_source)));
        }
        if length > CLOUD_INIT_LIMIT {
            causes.push(Cause::invalid(
                field,
                format!(
                    "{field} {} exceeds {CLOUD_INIT_LIMIT} byte limit. Should use {} for larger data.",
                    self.what, self.larger
                ),
            ));
        }
        count
    }
}

/// The text is not base64.
#[derive(Debug, PartialEq, Eq)]
pub struct NotBase64;

/// Decodes a base64 field. As in Go's decoder, line ends are ignored.
pub fn decode_base64(text: &str) -> Result<Vec<u8>, NotBase64> {
    let joined: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    STANDARD.decode(joined).map_err(|_| NotBase64)
}
