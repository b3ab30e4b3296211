//! A volume with data for cloud-init.

use std::path::Path;

use anyhow::bail;
use barevirt_api::v1::{CloudInitConfigDriveSource, CloudInitNoCloudSource, Volume};
use serde_json::Value;

use super::arguments::Vm;
use super::draft::{CloudInit, Draft};
use super::volumes;
use crate::create::params::flag_error;

pub(super) const NO_CLOUD: &str = "nocloud";
pub(super) const CONFIG_DRIVE: &str = "configdrive";
const NONE: &str = "none";
const DISK: &str = "cloudinitdisk";
const HEADER: &str = "#cloud-config";

/// User data, in one of its forms.
struct Data {
    user: Option<String>,
    user_base64: Option<String>,
    network_base64: Option<String>,
}

impl Vm {
    pub(super) fn add_cloud_init(&self, draft: &mut Draft) -> anyhow::Result<()> {
        let CloudInit { kind, manage_ssh } = &draft.cloud_init;
        let has_content = self.password_file.is_some()
            || !self.ssh_key.is_empty()
            || manage_ssh.is_some()
            || self.cloud_init_user_data.is_some()
            || self.cloud_init_network_data.is_some();
        if self.user.is_none() && kind.is_none() && !has_content {
            return Ok(());
        }
        if self.password_file.is_some() {
            draft.warnings.push(
                "WARNING: --password-file: The password is stored in cleartext in the VM definition!"
                    .to_owned(),
            );
        }
        let word = kind.as_deref().unwrap_or(NO_CLOUD);
        let mut volume = Volume { name: DISK.to_owned(), ..Volume::default() };
        match word.to_lowercase().as_str() {
            NO_CLOUD | CONFIG_DRIVE => {}
            NONE => {
                if has_content {
                    draft.warnings.push(
                        "WARNING: --cloud-init: was set to none, not creating a data source although other \
                         cloud-init options were set"
                            .to_owned(),
                    );
                }
                return Ok(());
            }
            _ => {
                let why = format!(
                    "invalid cloud-init data source type \"{word}\", supported values are: \
                     {NO_CLOUD}, {CONFIG_DRIVE}, {NONE}"
                );
                return Err(flag_error("cloud-init", why));
            }
        }
        let data = self.data(manage_ssh.unwrap_or(false))?;
        // A header alone configures nothing, and is written only if a flag asks for it.
        if kind.is_none() && data.user.as_deref() == Some(HEADER) && data.network_base64.is_none() {
            return Ok(());
        }
        if word.eq_ignore_ascii_case(NO_CLOUD) {
            volume.cloud_init_no_cloud = Some(CloudInitNoCloudSource {
                user_data: data.user,
                user_data_base64: data.user_base64,
                network_data_base64: data.network_base64,
                ..CloudInitNoCloudSource::default()
            });
        } else {
            volume.cloud_init_config_drive = Some(CloudInitConfigDriveSource {
                user_data: data.user,
                user_data_base64: data.user_base64,
                network_data_base64: data.network_base64,
                ..CloudInitConfigDriveSource::default()
            });
        }
        if draft.vm.spec.template.spec.volumes.iter().any(|other| other.name == DISK) {
            bail!("there is already a volume with name \"{DISK}\"");
        }
        volumes::add(draft, "cloud-init", volume)
    }

    fn data(&self, manage_ssh: bool) -> anyhow::Result<Data> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let user_base64 = given(&self.cloud_init_user_data);
        let user = match user_base64 {
            Some(_) => None,
            None => Some(self.config(manage_ssh)?),
        };
        Ok(Data { user, user_base64, network_base64: given(&self.cloud_init_network_data) })
    }

    fn config(&self, manage_ssh: bool) -> anyhow::Result<String> {
        let mut config = HEADER.to_owned();
        if let Some(user) = self.user.as_ref().filter(|user| !user.is_empty()) {
            config += &format!("\nuser: {}", scalar(user));
        }
        if let Some(path) = &self.password_file {
            let password = read(path)?;
            if !password.trim().is_empty() {
                config += &format!("\npassword: {}\nchpasswd: {{ expire: False }}", scalar(password.trim()));
            }
        }
        if !self.ssh_key.is_empty() {
            config += "\nssh_authorized_keys:";
            for key in &self.ssh_key {
                config += &format!("\n  - {}", scalar(key));
            }
        }
        if manage_ssh {
            config += "\nruncmd:\n  - [ setsebool, -P, 'virt_qemu_ga_manage_ssh', 'on' ]";
        }
        Ok(config)
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path)
        .map_err(|error| flag_error("password-file", format!("{}: {error}", path.display())))
}

/// The text as YAML: unchanged if that means the same, otherwise in quotes.
fn scalar(text: &str) -> String {
    match serde_saphyr::from_str::<Value>(text) {
        Ok(Value::String(read)) if read == text => text.to_owned(),
        // A JSON string is a YAML one.
        _ => Value::String(text.to_owned()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_if_yaml_would_read_them_differently() {
        for plain in ["jdoe", "ssh-ed25519 AAAA+/= me@here", "pass-word"] {
            assert_eq!(scalar(plain), plain);
        }
        for (text, quoted) in [("a: b", r#""a: b""#), ("12", r#""12""#), ("a #b", r#""a #b""#), ("", r#""""#)]
        {
            assert_eq!(scalar(text), quoted);
        }
    }
}
