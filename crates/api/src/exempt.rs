//! Whom a policy does not refuse.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// As it is written.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Exempt {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service_accounts: Vec<ServiceAccount>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ServiceAccount {
    pub namespace: String,
    pub name: String,
}

/// As it is asked.
#[derive(Clone, Debug, Default)]
pub struct Exemptions {
    users: HashSet<String>,
    groups: HashSet<String>,
}

impl Exemptions {
    pub fn of(exempt: Option<&Exempt>) -> Self {
        let Some(exempt) = exempt else { return Self::default() };
        let accounts = exempt
            .service_accounts
            .iter()
            .map(|account| format!("system:serviceaccount:{}:{}", account.namespace, account.name));
        Self {
            users: exempt.users.iter().cloned().chain(accounts).collect(),
            groups: exempt.groups.iter().cloned().collect(),
        }
    }

    pub fn cover<'a>(&self, user: &str, groups: impl IntoIterator<Item = &'a str>) -> bool {
        self.users.contains(user) || groups.into_iter().any(|group| self.groups.contains(group))
    }
}
