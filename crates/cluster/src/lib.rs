//! The cluster as guards and controllers see it.
//!
//! [`Live`] asks the API server itself, consistently and under a deadline; [`PodNamespaces`] is fed by
//! watches. Nothing here keeps a whole object.

mod live;
mod pod_namespaces;

pub use live::{Live, LiveWorld};
pub use pod_namespaces::{PodNamespaces, watch_protected_pods};
