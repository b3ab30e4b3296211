//! Credentials that come from secrets.

use barevirt_api::v1::{
    AccessCredential, AccessCredentialSecretSource, ConfigDriveSshPublicKeyAccessCredentialPropagation,
    NoCloudSshPublicKeyAccessCredentialPropagation, QemuGuestAgentSshPublicKeyAccessCredentialPropagation,
    QemuGuestAgentUserPasswordAccessCredentialPropagation, SshPublicKeyAccessCredential,
    SshPublicKeyAccessCredentialPropagationMethod, SshPublicKeyAccessCredentialSource,
    UserPasswordAccessCredential, UserPasswordAccessCredentialPropagationMethod,
    UserPasswordAccessCredentialSource,
};

use super::cloud_init;
use super::draft::Draft;
use crate::create::params::Params;

const FLAG: &str = "access-cred";

/// Adds a credential; `user` is the one of `--user`.
pub(super) fn credential(draft: &mut Draft, text: &str, user: Option<&str>) -> anyhow::Result<()> {
    let params = Params::read(FLAG, text)?.only(&["type", "src", "method", "user"])?;
    let secret = Some(AccessCredentialSecretSource { secret_name: params.local("src", "secret")? });
    let kind = params.text("type").unwrap_or_else(|| "ssh".to_owned());
    let mut credential = AccessCredential::default();
    match kind.to_lowercase().as_str() {
        "ssh" => {
            credential.ssh_public_key = Some(SshPublicKeyAccessCredential {
                source: SshPublicKeyAccessCredentialSource { secret },
                propagation_method: of_keys(draft, &params, user)?,
            });
        }
        "password" => {
            of_password(&params)?;
            let agent = Some(QemuGuestAgentUserPasswordAccessCredentialPropagation {});
            credential.user_password = Some(UserPasswordAccessCredential {
                source: UserPasswordAccessCredentialSource { secret },
                propagation_method: UserPasswordAccessCredentialPropagationMethod { qemu_guest_agent: agent },
            });
        }
        _ => {
            let why =
                format!("invalid access credential type \"{kind}\", supported values are: ssh, password");
            return Err(params.error(why));
        }
    }
    draft.vm.spec.template.spec.access_credentials.push(credential);
    Ok(())
}

fn of_keys(
    draft: &mut Draft,
    params: &Params<'_>,
    user: Option<&str>,
) -> anyhow::Result<SshPublicKeyAccessCredentialPropagationMethod> {
    let method = params.text("method").unwrap_or_else(|| "ga".to_owned());
    let mut propagation = SshPublicKeyAccessCredentialPropagationMethod::default();
    match method.to_lowercase().as_str() {
        "ga" => {
            let Some(user) = params.text("user").or_else(|| user.map(str::to_owned)) else {
                return Err(params.error(
                    "user must be specified with access credential ssh method ga (\"--user\" flag or param \"user\")",
                ));
            };
            // The agent may write keys only if the guest's policy allows it.
            draft.cloud_init.manage_ssh.get_or_insert(true);
            propagation.qemu_guest_agent =
                Some(QemuGuestAgentSshPublicKeyAccessCredentialPropagation { users: vec![user] });
        }
        cloud_init::NO_CLOUD => {
            by_cloud_init(draft, params, cloud_init::NO_CLOUD)?;
            propagation.no_cloud = Some(NoCloudSshPublicKeyAccessCredentialPropagation {});
        }
        cloud_init::CONFIG_DRIVE => {
            by_cloud_init(draft, params, cloud_init::CONFIG_DRIVE)?;
            propagation.config_drive = Some(ConfigDriveSshPublicKeyAccessCredentialPropagation {});
        }
        _ => {
            let why = format!(
                "invalid access credentials ssh method \"{method}\", supported values are: ga, nocloud, configdrive"
            );
            return Err(params.error(why));
        }
    }
    Ok(propagation)
}

/// Puts the keys into the data of cloud-init, which has to be of that kind.
fn by_cloud_init(draft: &mut Draft, params: &Params<'_>, kind: &str) -> anyhow::Result<()> {
    no_user(params)?;
    let wanted = draft.cloud_init.kind.get_or_insert_with(|| kind.to_owned());
    if !wanted.eq_ignore_ascii_case(kind) {
        let why = format!("method param and value passed to --cloud-init have to match: {kind} vs {wanted}");
        return Err(params.error(why));
    }
    Ok(())
}

fn of_password(params: &Params<'_>) -> anyhow::Result<()> {
    match params.text("method") {
        Some(method) if !method.eq_ignore_ascii_case("ga") => {
            let why =
                format!("invalid access credentials password method \"{method}\", supported values are: ga");
            Err(params.error(why))
        }
        _ => no_user(params),
    }
}

fn no_user(params: &Params<'_>) -> anyhow::Result<()> {
    match params.text("user") {
        None => Ok(()),
        Some(_) => {
            Err(params.error("user cannot be specified with selected access credential type and method"))
        }
    }
}
