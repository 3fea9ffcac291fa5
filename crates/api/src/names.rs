//! The names under which Palisade itself appears in a cluster.

/// The namespace that Palisade's own objects live in, unless told otherwise.
pub const NAMESPACE: &str = "palisade-system";

/// The `ValidatingWebhookConfiguration`, the Lease, the `ServiceAccount` and the Service.
pub const PALISADE: &str = "palisade";

/// The Secret with the certificate authority and the serving certificate.
pub const TLS_SECRET: &str = "palisade-tls";

/// The `ConfigMap` in which the replicas publish what they decide by, and the Role with which everybody reads it.
pub const SETTINGS: &str = "palisade-settings";

/// An annotation on the Lease: while it is there, no replica registers the webhook.
/// `palisade uninstall` sets it, so that a running leader does not put back what was just removed.
pub const SUSPENDED: &str = "palisade.dev/suspended";

/// The prefix of annotations on the `ValidatingWebhookConfiguration` that name namespaces in which budgets are just
/// being created.
pub const EXPECTED_BUDGETS: &str = "expected-budgets.palisade.dev/";

/// The same for flow controls, by their names.
pub const EXPECTED_FLOW_CONTROLS: &str = "expected-flow-controls.palisade.dev/";

/// The same for `CriticalService`s, by their names; the value ends with the provider.
pub const EXPECTED_CRITICAL_SERVICES: &str = "expected-critical-services.palisade.dev/";

/// Set on everything that Palisade writes.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", PALISADE);
