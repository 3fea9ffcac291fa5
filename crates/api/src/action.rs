//! What becomes of a deletion that a policy is against.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash)]
pub enum Action {
    /// It is refused.
    #[default]
    Deny,
    /// It passes, with a warning.
    Warn,
    /// It passes, and is recorded.
    Audit,
}
