//! What the replicas decide by: written from the flags of `palisade run`, and read by `palisade why`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::Api;
use palisade_api::components::druid;
use palisade_api::gates::{FeatureGateList, FeatureGates};
use palisade_api::names;
use palisade_api::search_groups::SearchGroups;
use palisade_controllers::published::REGISTERED;
use palisade_engine::ProtectedComponents;

use crate::args::{FailurePolicyArg, RunArgs};

const VERSION: &str = "version";
/// The others are named like the flags.
const FEATURE_GATES: &str = "feature-gates";
const SEARCH_GROUPS: &str = "search-groups";
const FAILURE_POLICY: &str = "failure-policy";
const ETCD: &str = "enable-etcd-components-webhook";
const MIN_UNAVAILABLE: &str = "generated-budget-min-unavailable";
const RECONCILER: &str = "reconciler-service-account";
const EXEMPT_ACCOUNTS: &str = "etcd-components-webhook-exempt-service-accounts";
const EXEMPT_GROUPS: &str = "etcd-components-webhook-exempt-groups";

/// What of the flags decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) gates: FeatureGates,
    pub(crate) search_groups: SearchGroups,
    pub(crate) etcd: Option<Etcd>,
    /// How many pods a budget that no administrator wrote lets go at least; `None` if they are of a version that does not
    /// say.
    pub(crate) min_unavailable: Option<u32>,
    /// Whether the API server asks the replicas, as far as they know.
    pub(crate) registered: Option<bool>,
}

/// How etcd-druid's components are protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Etcd {
    reconciler: String,
    exempt_accounts: Vec<String>,
    exempt_groups: Vec<String>,
}

impl Etcd {
    fn of(args: &RunArgs) -> Option<Self> {
        args.enable_etcd_components_webhook.then(|| Self {
            reconciler: args.reconciler_service_account.clone(),
            exempt_accounts: args.etcd_components_webhook_exempt_service_accounts.clone(),
            exempt_groups: args.etcd_components_webhook_exempt_groups.clone(),
        })
    }

    pub(crate) fn components(&self) -> ProtectedComponents {
        let Self { reconciler, exempt_accounts, exempt_groups } = self;
        let components = druid::components(reconciler, exempt_accounts, exempt_groups);
        ProtectedComponents { name: None, components: Ok(components) }
    }
}

/// etcd-druid's components, if they are to be protected.
pub(crate) fn etcd_components(args: &RunArgs) -> Option<ProtectedComponents> {
    Etcd::of(args).map(|etcd| etcd.components())
}

/// What `palisade run` publishes.
pub(crate) fn settings(args: &RunArgs, gates: FeatureGates) -> BTreeMap<String, String> {
    let failure_policy = match args.failure_policy {
        FailurePolicyArg::Fail => "fail",
        FailurePolicyArg::Ignore => "ignore",
    };
    let mut settings = vec![
        (VERSION, env!("CARGO_PKG_VERSION").to_owned()),
        (FEATURE_GATES, gates.to_string()),
        (SEARCH_GROUPS, args.search_groups.to_string()),
        (FAILURE_POLICY, failure_policy.to_owned()),
        (ETCD, args.enable_etcd_components_webhook.to_string()),
        (MIN_UNAVAILABLE, args.generated_budget_min_unavailable.to_string()),
    ];
    if let Some(Etcd { reconciler, exempt_accounts, exempt_groups }) = Etcd::of(args) {
        settings.push((RECONCILER, reconciler));
        settings.push((EXEMPT_ACCOUNTS, exempt_accounts.join(",")));
        settings.push((EXEMPT_GROUPS, exempt_groups.join(",")));
    }
    settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

impl Published {
    /// What the replicas published, or why that is not known.
    pub(crate) async fn read(client: &Client, namespace: &str) -> Result<Self, String> {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        match maps.get_opt(names::SETTINGS).await {
            Ok(Some(map)) => Self::parse(&map.data.unwrap_or_default()),
            Ok(None) => Err(format!("there is no configmap {} in namespace {namespace}", names::SETTINGS)),
            Err(kube::Error::Api(status)) => Err(status.message),
            Err(error) => Err(error.to_string()),
        }
    }

    fn parse(data: &BTreeMap<String, String>) -> Result<Self, String> {
        let value = |key: &str| data.get(key).map(String::as_str).unwrap_or_default();
        let list = |key: &str| {
            value(key).split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        let gates: FeatureGateList = value(FEATURE_GATES).parse().map_err(|error| {
            format!(
                "{error} (they run version {}, and this is {})",
                value(VERSION),
                env!("CARGO_PKG_VERSION")
            )
        })?;
        let search_groups = match data.get(SEARCH_GROUPS) {
            Some(groups) => groups.parse().map_err(|why| format!("{SEARCH_GROUPS}: {why}"))?,
            // Replicas of a version that searches everything.
            None => SearchGroups::default(),
        };
        Ok(Self {
            search_groups,
            gates: FeatureGates::chosen(&gates.0),
            etcd: (value(ETCD) == "true").then(|| Etcd {
                reconciler: value(RECONCILER).to_owned(),
                exempt_accounts: list(EXEMPT_ACCOUNTS),
                exempt_groups: list(EXEMPT_GROUPS),
            }),
            min_unavailable: value(MIN_UNAVAILABLE).parse().ok(),
            registered: value(REGISTERED).parse().ok(),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn run(words: &[&str]) -> RunArgs {
        let args = Args::try_parse_from(["palisade", "run"].iter().chain(words)).unwrap();
        let Command::Run(run) = args.command else { panic!("not run") };
        *run
    }

    #[test]
    fn what_is_published_is_read_again() {
        for words in [
            &[][..],
            &["--feature-gates=CriticalService=false"],
            &["--search-groups=core,apps,example.com"],
            &["--generated-budget-min-unavailable=3"],
            &[
                "--enable-etcd-components-webhook",
                "--reconciler-service-account=a",
                "--etcd-components-webhook-exempt-service-accounts=b,c",
                "--etcd-components-webhook-exempt-groups=d",
            ],
        ] {
            let args = run(words);
            let gates = FeatureGates::chosen(args.feature_gates.iter().flat_map(|list| &list.0));
            let published = Published::parse(&settings(&args, gates)).unwrap();
            let (etcd, search_groups) = (Etcd::of(&args), args.search_groups.clone());
            let min_unavailable = Some(args.generated_budget_min_unavailable);
            let expected = Published { gates, search_groups, etcd, min_unavailable, registered: None };
            assert_eq!(published, expected);
        }
    }

    #[test]
    fn a_gate_of_another_version_is_told() {
        let data = [(FEATURE_GATES.to_owned(), "Newer=true".to_owned())].into();
        assert!(Published::parse(&data).unwrap_err().contains("there is no feature gate \"Newer\""));
    }
}
