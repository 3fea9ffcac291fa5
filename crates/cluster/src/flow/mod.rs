//! `PodDeletionFlowControl`s, and the accounts that deletions are charged to.
//!
//! ```text
//! flow controls ─ watch ─▶ Flows ─▶ window (pure) ◀─ group commit ─ one write for all that wait
//! pods that go ─ watch ─▶ Departures ─┘  ▲     ▲
//!                                        │     └ clock: how old everything is, at least
//!                         status of the flow control, by compare-and-swap
//! ```

mod account;
mod advance;
mod clock;
mod controls;
mod departures;
#[cfg(test)]
mod model;
mod refusals;
mod window;

use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject};
use palisade_api::flow::{self, Control, Status};

use crate::objects::{resource, status_of};

pub use account::Life;
pub(crate) use account::Outcome;
pub use controls::Flows;
pub use departures::{Departure, watch_departures};
pub(crate) use window::Removal;

/// A flow control, as it was last seen.
#[derive(Clone, Debug)]
pub struct Known {
    pub name: String,
    pub uid: String,
    pub generation: Option<i64>,
    pub resource_version: String,
    /// What it asks for, or why nobody can tell.
    pub control: Result<Control, String>,
    pub status: Status,
}

impl Known {
    fn read(object: &DynamicObject) -> Self {
        Self {
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            generation: object.metadata.generation,
            resource_version: object.resource_version().unwrap_or_default(),
            control: Control::read(object.data.get("spec").unwrap_or(&serde_json::Value::Null)),
            status: status_of(object),
        }
    }
}

/// How to talk about flow controls with a client.
pub fn flow_resource() -> ApiResource {
    resource(flow::GROUP, flow::VERSION, flow::KIND, flow::PLURAL)
}
