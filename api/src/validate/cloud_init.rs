//! Cloud-init's data: user data and network data, each given in one way, and short where it is inline.

use super::text::{is_dns_subdomain, quoted};
use super::{Cause, Path};
use crate::v1::{LocalSecret, Volume};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::LocalObjectReference;

/// Bytes of inline user data, and of inline network data: KubeVirt's limit, since the object goes to many watchers.
pub const CLOUD_INIT_LIMIT: usize = 2048;

/// A volume with cloud-init's data, in either layout.
pub(super) fn validate(field: &Path, volume: &Volume, causes: &mut Vec<Cause>) {
    if let Some(source) = &volume.cloud_init_no_cloud {
        let field = field.child("cloudInitNoCloud");
        let secret = |secret: &Option<LocalSecret>| secret.as_ref().map(|secret| secret.name.clone());
        let user = Given {
            plain: source.user_data.as_deref(),
            base64: source.user_data_base64.as_deref(),
            secret: secret(&source.secret_ref),
        };
        let network = Given {
            plain: source.network_data.as_deref(),
            base64: source.network_data_base64.as_deref(),
            secret: secret(&source.network_data_secret_ref),
        };
        layout(&field, user, network, causes);
    }
    if let Some(source) = &volume.cloud_init_config_drive {
        let field = field.child("cloudInitConfigDrive");
        let secret =
            |secret: &Option<LocalObjectReference>| secret.as_ref().map(|secret| secret.name.clone());
        let user = Given {
            plain: source.user_data.as_deref(),
            base64: source.user_data_base64.as_deref(),
            secret: secret(&source.secret_ref),
        };
        let network = Given {
            plain: source.network_data.as_deref(),
            base64: source.network_data_base64.as_deref(),
            secret: secret(&source.network_data_secret_ref),
        };
        layout(&field, user, network, causes);
    }
}

/// The three ways to give data.
struct Given<'a> {
    plain: Option<&'a str>,
    base64: Option<&'a str>,
    secret: Option<String>,
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

/// User data or network data, and words for messages.
struct Data<'a> {
    given: Given<'a>,
    base64_field: Path,
    secret_field: Path,
    one_source: &'static str,
    what: &'static str,
    larger: &'static str,
}

impl Data<'_> {
    /// How many ways are used; causes where it is more than one, or one is wrong.
    fn validate(&self, field: &Path, causes: &mut Vec<Cause>) -> usize {
        let mut count = 0;
        let mut length = 0;
        if let Some(secret) = self.given.secret.as_deref().filter(|name| !name.is_empty()) {
            count += 1;
            if !is_dns_subdomain(secret) {
                let field = &self.secret_field;
                causes.push(Cause::invalid(
                    field,
                    format!("{field} '{}' is not the name of a secret", quoted(secret)),
                ));
            }
        }
        if let Some(text) = self.given.base64.filter(|text| !text.is_empty()) {
            count += 1;
            match decode_base64(text) {
                Ok(data) => length = data.len(),
                Err(NotBase64) => causes.push(Cause::invalid(
                    &self.base64_field,
                    format!("{} is not a valid base64 value.", self.base64_field),
                )),
            }
        }
        if let Some(text) = self.given.plain.filter(|text| !text.is_empty()) {
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

/// Not base64.
#[derive(Debug, PartialEq, Eq)]
pub struct NotBase64;

/// Bytes of a base64 field. As in Go's decoder, line ends in it do not count.
pub fn decode_base64(text: &str) -> Result<Vec<u8>, NotBase64> {
    let joined: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    STANDARD.decode(joined).map_err(|_| NotBase64)
}
