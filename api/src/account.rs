//! The account of a machine. It decides what may be copied and read for the machine in other namespaces: a user who may
//! write machines can make ours do either, so their own rights would be the wrong ones to ask about.

use crate::object_volume;
use crate::v1::VirtualMachine;

/// The account of a machine that names no account.
const DEFAULT: &str = "default";

/// A service account, as the API server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// User name.
    pub name: String,
    /// Groups.
    pub groups: Vec<String>,
}

impl Account {
    /// The account that a machine names, otherwise the account whose token its guest has, otherwise the default of its
    /// namespace.
    pub fn of(vm: &VirtualMachine) -> Self {
        let spec = &vm.spec.template.spec;
        let own = spec.service_account_name.as_deref().filter(|name| !name.is_empty());
        let name = own.or_else(|| object_volume::service_account(spec)).unwrap_or(DEFAULT);
        let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
        Account {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
        }
    }
}
