//! What keeps Palisade itself in place.
//!
//! ```text
//! generated     budgets that annotations ask for
//! leadership    one replica leads, by a Lease
//! budgets       the status of PodUnavailableBudgets
//! components    the status of ComponentProtections
//! critical      the status of CriticalServices
//! disabled      the status of policies whose feature is off
//! events        Events about what was refused
//! flow          the status of PodDeletionFlowControls
//! certificates  the authority and the serving certificate, in a Secret that all replicas share
//! protections   the status of ResourceDeletionProtections
//! published     what the replicas decide by, in a ConfigMap that everybody may read
//! registration  the ValidatingWebhookConfiguration, derived from what there is to guard
//! rights        what Palisade must be allowed to do, and so what we ship as RBAC
//! suspension    the mark that keeps replicas from registering anything
//! ```

pub mod budgets;
pub mod certificates;
pub mod components;
mod conditions;
pub mod critical;
pub mod disabled;
pub mod events;
pub mod flow;
pub mod generated;
pub mod leadership;
mod not_searched;
pub mod protections;
pub mod published;
pub mod registration;
pub mod rights;
mod status;
pub mod suspension;
