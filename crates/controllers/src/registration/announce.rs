//! A policy that is being created should hold from its first moment on.
//!
//! The registration names the namespaces that have budgets, so the first budget of a namespace comes before its rules
//! do, and so do the first flow control and a provider of a kind that had none. Whichever replica is asked to admit one therefore says so in an annotation of
//! the registration first, and answers once the leader has put the rules in place and API servers have taken them up.
//!
//! Nobody can tell such a review from one that somebody else sent to our port. So an announcement names what can be
//! there, there is room for so many at a time ([`ROOM`]), and the leader drops it after a while.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use palisade_api::critical::{Provider, Resource};
use palisade_api::names;
use serde_json::json;
use tokio::time::sleep;

use super::TAKEN_UP;
use super::plan::{CRITICAL, FLOW, NAMESPACE_NAME, POD_DELETION, PROVIDER_CONDITION, cel};

const LOOK: Duration = Duration::from_millis(50);
/// What the name of an annotation has room for.
const LONGEST: usize = 63;
/// How many bytes all announcements may take together: about 500 budgets. An object's annotations end at 256 KiB, and
/// with them the registration could no longer be written.
pub(super) const ROOM: usize = 64 << 10;

/// A policy that is being created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A budget, by its namespace.
    Budget(String),
    /// A flow control, by its name.
    FlowControl(String),
    /// A `CriticalService`, by its name; its provider, and the plural of that.
    CriticalService { name: String, provider: Provider, plural: String },
}

impl Expected {
    /// Whether the API server would take what it names.
    fn is_possible(&self) -> bool {
        match self {
            Self::Budget(namespace) => is_label(namespace),
            Self::FlowControl(name) => is_subdomain(name),
            Self::CriticalService {
                name,
                provider: Provider { resource, namespace, name: provider },
                ..
            } => {
                is_subdomain(name)
                    && is_label(namespace)
                    && is_subdomain(provider)
                    && (resource.group.is_empty() || is_subdomain(&resource.group))
                    && is_subdomain(&resource.word.to_lowercase())
            }
        }
    }

    fn annotation(&self) -> String {
        match self {
            Self::Budget(namespace) => format!("{}{namespace}", names::EXPECTED_BUDGETS),
            Self::FlowControl(name) => format!("{}{}", names::EXPECTED_FLOW_CONTROLS, shortened(name)),
            Self::CriticalService { name, .. } => {
                format!("{}{}", names::EXPECTED_CRITICAL_SERVICES, shortened(name))
            }
        }
    }

    /// When it was announced, and what must be known of it.
    fn announcement(&self, now: Timestamp) -> String {
        match self {
            Self::Budget(_) | Self::FlowControl(_) => now.to_string(),
            Self::CriticalService { provider: Provider { resource, namespace, name }, .. } => {
                format!("{now} {}/{}/{namespace}/{name}", resource.group, resource.word)
            }
        }
    }

    /// Whether the registration covers its pods.
    fn is_covered(&self, live: &ValidatingWebhookConfiguration) -> bool {
        let find = |name: &str| {
            let name = format!("{name}.palisade.dev");
            live.webhooks.iter().flatten().find(move |webhook| webhook.name == name)
        };
        match self {
            Self::FlowControl(_) => find(FLOW).is_some(),
            Self::Budget(namespace) => find(POD_DELETION).is_some_and(|webhook| selects(webhook, namespace)),
            Self::CriticalService { provider: Provider { resource, namespace, name }, plural, .. } => {
                find(CRITICAL).is_some_and(|webhook| {
                    selects(webhook, namespace)
                        && rules(webhook, &resource.group, plural)
                        && webhook
                            .match_conditions
                            .iter()
                            .flatten()
                            .filter(|condition| condition.name == PROVIDER_CONDITION)
                            .all(|condition| condition.expression.contains(cel::string(name).as_str()))
                })
            }
        }
    }
}

/// Whether it is a DNS label, as namespaces are called.
fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 63
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.is_empty()
        && text.bytes().all(inner)
}

/// Whether it is a DNS subdomain, as most objects are called.
fn is_subdomain(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let part = |part: &str| {
        !part.is_empty() && !part.starts_with('-') && !part.ends_with('-') && part.bytes().all(inner)
    };
    text.len() <= 253 && text.split('.').all(part)
}

fn selects(webhook: &ValidatingWebhook, namespace: &str) -> bool {
    let selector =
        webhook.namespace_selector.as_ref().and_then(|selector| selector.match_expressions.as_ref());
    selector.into_iter().flatten().any(|expression| {
        let is_named = expression.values.iter().flatten().any(|value| value == namespace);
        // Where there are too many to be told, all but our own are asked about.
        expression.key == NAMESPACE_NAME && (expression.operator == "In") == is_named
    })
}

fn rules(webhook: &ValidatingWebhook, group: &str, plural: &str) -> bool {
    let is = |words: &Option<Vec<String>>, wanted: &str| words.iter().flatten().any(|word| word == wanted);
    webhook.rules.iter().flatten().any(|rule| is(&rule.api_groups, group) && is(&rule.resources, plural))
}

/// The provider that an announcement tells of.
pub(super) fn provider_of(announcement: &str) -> Option<Provider> {
    let (_, provider) = announcement.split_once(' ')?;
    let [group, word, namespace, name] = provider.split('/').collect::<Vec<_>>().try_into().ok()?;
    let resource = Resource { group: group.to_owned(), word: word.to_owned() };
    Some(Provider { resource, namespace: namespace.to_owned(), name: name.to_owned() })
}

/// A name as the end of an annotation's, for names that are too long.
pub(super) fn shortened(name: &str) -> &str {
    // Names are of ASCII.
    name.get(..LONGEST).unwrap_or(name).trim_end_matches(['.', '-'])
}

/// Waits until the registration covers what a policy concerns, and makes it so. Gives up on any error, and says no: then
/// it holds once the leader has seen it, as its status says.
///
/// Where another one needs the same, it is covered for as long as that one is there. Otherwise it is announced also if
/// it is covered still: the leader may be about to take the rules of a deleted one away.
pub async fn announce(client: Client, announced: Expected, has_another: bool) -> bool {
    if !announced.is_possible() {
        return false;
    }
    if let Expected::Budget(namespace) = &announced {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        match namespaces.get_metadata_opt(namespace).await {
            Ok(Some(_)) => {}
            // No budget can be created there.
            Ok(None) => return false,
            Err(error) => {
                tracing::warn!(%error, namespace, "announcing a budget");
                return false;
            }
        }
    }
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let key = announced.annotation();
    // A patch of a key of its own: others who announce do not stand in its way.
    let patch =
        Patch::Merge(json!({"metadata": {"annotations": {&key: announced.announcement(Timestamp::now())}}}));
    let mut waited = false;
    loop {
        let mut live = match configurations.get_opt(names::PALISADE).await {
            Ok(Some(live)) => live,
            Ok(None) => return false,
            Err(error) => {
                tracing::warn!(%error, key, "announcing a policy");
                return false;
            }
        };
        let covered = announced.is_covered(&live);
        let said = waited && live.annotations().contains_key(&key);
        if !(said || has_another && covered) {
            if !live.annotations().contains_key(&key) && size(&expected(&live)) >= ROOM {
                tracing::warn!(key, "too many policies are announced; this one holds once it is seen");
                return false;
            }
            live = match configurations.patch(names::PALISADE, &PatchParams::default(), &patch).await {
                Ok(patched) => patched,
                Err(error) => {
                    tracing::warn!(%error, key, "announcing a policy");
                    return false;
                }
            };
        }
        if announced.is_covered(&live) {
            if waited || !covered {
                sleep(TAKEN_UP).await;
            }
            return true;
        }
        waited = true;
        sleep(LOOK).await;
    }
}

/// The bytes of announcements.
pub(super) fn size(announced: &BTreeMap<String, String>) -> usize {
    announced.iter().map(|(key, said)| key.len() + said.len()).sum()
}

/// What was announced, by annotation, and when it was last said.
pub(super) fn expected(live: &ValidatingWebhookConfiguration) -> BTreeMap<String, String> {
    let announced = live.annotations().iter().filter(|(key, _)| is_announcement(key));
    announced.map(|(key, said)| (key.clone(), said.clone())).collect()
}

pub(super) fn is_announcement(key: &str) -> bool {
    [names::EXPECTED_BUDGETS, names::EXPECTED_FLOW_CONTROLS, names::EXPECTED_CRITICAL_SERVICES]
        .iter()
        .any(|prefix| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registration::plan::tests::plan_as;
    use crate::registration::{Providers, Wanted, plan};
    use palisade_cluster::{Discovery, Served};
    use rstest::rstest;

    #[rstest]
    #[case("shop", true)]
    #[case("shop-1", true)]
    #[case("", false)]
    #[case("-shop", false)]
    #[case("shop-", false)]
    #[case("Shop", false)]
    #[case("shop.example", false)]
    #[case("shop'] || true || ['", false)]
    fn a_budget_is_announced_for_what_can_be_a_namespace(#[case] namespace: &str, #[case] possible: bool) {
        assert_eq!(Expected::Budget(namespace.to_owned()).is_possible(), possible);
        assert!(!Expected::Budget("x".repeat(64)).is_possible());
    }

    #[rstest]
    #[case("default", true)]
    #[case("a.b-c.d", true)]
    #[case("a..b", false)]
    #[case(".a", false)]
    #[case("a/b", false)]
    #[case("a b", false)]
    #[case("ä", false)]
    fn a_flow_control_is_announced_for_what_can_be_a_name(#[case] name: &str, #[case] possible: bool) {
        assert_eq!(Expected::FlowControl(name.to_owned()).is_possible(), possible);
        assert!(!Expected::FlowControl("x".repeat(254)).is_possible());
    }

    #[test]
    fn a_service_is_covered_by_the_registration_that_names_its_provider() {
        let resources = vec![Served::new("apps", "v1", "Deployment", "deployments", true)];
        let discovery = Discovery { resources, ..Discovery::default() };
        let provider = |name: &str| Provider {
            resource: Resource { group: "apps".to_owned(), word: "deployments".to_owned() },
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        };
        let providers = Providers::of([&provider("web")], &discovery);
        let webhooks = plan_as(|wanted| plan(&Wanted { providers: &providers, ..wanted.clone() }));
        let live = ValidatingWebhookConfiguration {
            webhooks: Some(webhooks),
            ..ValidatingWebhookConfiguration::default()
        };
        let is_covered = |name: &str| {
            let (service, plural) = ("sample".to_owned(), "deployments".to_owned());
            Expected::CriticalService { name: service, provider: provider(name), plural }.is_covered(&live)
        };
        assert!(is_covered("web"));
        assert!(!is_covered("db"));
    }

    #[test]
    fn no_announcement_is_longer_than_a_sixtieth_of_the_room() {
        let longest = |count: usize| "x".repeat(count);
        let expected = Expected::CriticalService {
            name: longest(253),
            provider: Provider {
                resource: Resource { group: longest(253), word: longest(253) },
                namespace: longest(63),
                name: longest(253),
            },
            plural: longest(253),
        };
        assert!(expected.is_possible());
        let announced =
            BTreeMap::from([(expected.annotation(), expected.announcement(Timestamp::UNIX_EPOCH))]);
        assert!(size(&announced) < ROOM / 60, "{}", size(&announced));
    }
}
