//! Cloud-init data of a volume, in either of the two layouts.

use crate::v1::{CloudInitConfigDriveSource, CloudInitNoCloudSource, Volume};

/// How the guest finds the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A disk labelled `cidata`.
    NoCloud,
    /// A disk labelled `config-2`, as OpenStack makes it.
    ConfigDrive,
}

/// The data of one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloudInit<'a> {
    /// How the guest finds the data.
    pub layout: Layout,
    /// User data.
    pub user: Given<'a>,
    /// Network data.
    pub network: Given<'a>,
}

/// The ways to give data; admission allows one of them. An empty value counts as not given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Given<'a> {
    /// Plain text.
    pub plain: Option<&'a str>,
    /// In base64.
    pub base64: Option<&'a str>,
    /// Name of a secret.
    pub secret: Option<&'a str>,
}

/// The cloud-init data of a volume; `None` for a volume of another kind.
pub fn of(volume: &Volume) -> Option<CloudInit<'_>> {
    if let Some(source) = &volume.cloud_init_no_cloud {
        let CloudInitNoCloudSource {
            secret_ref,
            user_data,
            user_data_base64,
            network_data_secret_ref,
            network_data,
            network_data_base64,
        } = source;
        return Some(CloudInit {
            layout: Layout::NoCloud,
            user: given(user_data, user_data_base64, secret_ref.as_ref().map(|secret| &secret.name)),
            network: given(
                network_data,
                network_data_base64,
                network_data_secret_ref.as_ref().map(|secret| &secret.name),
            ),
        });
    }
    let CloudInitConfigDriveSource {
        secret_ref,
        user_data,
        user_data_base64,
        network_data_secret_ref,
        network_data,
        network_data_base64,
    } = volume.cloud_init_config_drive.as_ref()?;
    Some(CloudInit {
        layout: Layout::ConfigDrive,
        user: given(user_data, user_data_base64, secret_ref.as_ref().map(|secret| &secret.name)),
        network: given(
            network_data,
            network_data_base64,
            network_data_secret_ref.as_ref().map(|secret| &secret.name),
        ),
    })
}

fn given<'a>(plain: &'a Option<String>, base64: &'a Option<String>, secret: Option<&'a String>) -> Given<'a> {
    let filled = |text: Option<&'a String>| text.map(String::as_str).filter(|text| !text.is_empty());
    Given { plain: filled(plain.as_ref()), base64: filled(base64.as_ref()), secret: filled(secret) }
}
