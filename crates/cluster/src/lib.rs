//! The cluster as guards and controllers see it.
//!
//! [`Live`] asks the API server itself, consistently and under a deadline; [`PodNamespaces`] is fed by
//! watches. Nothing here keeps a whole object.

mod broken;
pub mod budgets;
mod cascading;
mod commit;
pub mod components;
pub mod critical;
mod dependents;
mod discovery;
mod feed;
pub mod flow;
mod kind_search;
mod ledger;
mod live;
mod named;
mod objects;
mod owner_states;
mod owners;
mod pod_namespaces;
mod policies;
mod presence;
mod progress;
mod questions;
mod search;
mod searching;
pub mod sync;

use jiff::Timestamp;

pub use commit::Entry;
pub use discovery::{Discovery, Served, discover, served_otherwise, watch_discovery, watchable};
pub use feed::{Fed, Mirror, feed};
pub use ledger::Ledger;
pub use live::{AwaitPolicy, Live, LiveWorld, segment};
pub use owners::{Ancestor, Ancestors, UID_PREFIX, watch_ancestors};
pub use pod_namespaces::{PodNamespaces, watch_protected_pods};
pub use policies::{Policies, Policy, list_protections, protection_resource, watch_protections};
pub use progress::{Behind, KindProgress, PolicyProgress};
pub use questions::SEARCHES;
pub use searching::Searching;

/// As Kubernetes writes times: whole seconds.
pub fn seconds(moment: Timestamp) -> String {
    Timestamp::from_second(moment.as_second()).unwrap_or(moment).to_string()
}
