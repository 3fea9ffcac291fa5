//! The cluster as guards and controllers see it.
//!
//! [`Live`] asks the API server itself, consistently and under a deadline; [`PodNamespaces`] is fed by
//! watches. Nothing here keeps a whole object.

mod ancestors;
pub mod budgets;
mod discovery;
mod feed;
mod lineage;
mod live;
mod pod_namespaces;
mod policies;
mod search;

pub use ancestors::{Ancestors, watch_ancestors};
pub use discovery::{Discovery, Served, discover, served_otherwise, watch_discovery, watchable};
pub use feed::{Fed, Mirror, feed};
pub use live::{AwaitBudget, Live, LiveWorld, segment};
pub use pod_namespaces::{PodNamespaces, watch_protected_pods};
pub use policies::{Policies, Policy, list_protections, protection_resource, watch_protections};
