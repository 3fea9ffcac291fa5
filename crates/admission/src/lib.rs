//! The door that the API server knocks on.
//!
//! ```text
//! connection ─▶ TLS ─▶ router ─▶ wire::read ─▶ engine::decide ─▶ wire::answer
//! ```
//!
//! Whatever comes in, what goes out is one of: an answer to the review; a 4xx that says what is wrong with
//! the request; a 503 when there is no room. The API server takes the last two for a failed call, and
//! the registration's `failurePolicy` then decides: nothing unread is ever let through by us.

mod connections;
mod door;
mod line;
mod metrics;
mod server;
mod tls;
mod wire;

pub use door::{Asker, Door, Recorded, Worlds, router};
pub use metrics::{Metrics, Told};
pub use server::{Serving, serve, serve_admin};
pub use tls::{ClientAuthorities, ServingCertificate, TlsError};
pub use wire::{BadReview, answer, read};
