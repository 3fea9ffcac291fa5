//! A real control plane on loopback.
//!
//! ```text
//! ControlPlane   etcd · kube-apiserver · kube-controller-manager · kube-scheduler · kwok
//!      │  kubeconfigs for its administrator, for Palisade and for anybody else
//!      ▼
//! Palisade       replicas of the real binary, behind one address, with the rights that we ship
//! ```
//!
//! Every process is tied to the one that started it: when that dies, by whatever signal, they die too.

#![expect(clippy::disallowed_methods, reason = "the rule is for replicas: here nobody waits for a lock")]

mod assets;
mod balancer;
mod control_plane;
mod palisade;
mod pki;
mod process;

pub use assets::Assets;
pub use control_plane::{ControlPlane, audit_log};
pub use palisade::{Palisade, PalisadeOptions, SERVICE_ACCOUNT};
pub use process::{free_port, wait_until};

/// Why a cluster could not be had.
#[derive(Debug, thiserror::Error)]
pub enum TestkitError {
    /// A program could not be started, or a file not written.
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    /// A key or certificate could not be made.
    #[error("making certificates: {0}")]
    Pki(#[from] rcgen::Error),
    /// The API server answered with an error.
    #[error("{what}: {source}")]
    Api { what: String, source: Box<kube::Error> },
    /// Something did not come up, or ended, in time.
    #[error("{what}; its log is {log}")]
    NotUp { what: String, log: String },
    /// A command that was run on the way failed.
    #[error("{what} failed: {output}")]
    Command { what: String, output: String },
}

impl TestkitError {
    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Api { what, source: Box::new(source) }
    }
}
