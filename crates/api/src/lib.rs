//! What users write, and what it means.
//!
//! Every label key, annotation key and name that Palisade reads from or writes to a cluster is here,
//! with the parsing of its values. Whoever needs one of them takes it from here, already parsed.

pub mod action;
pub mod budget;
pub mod components;
pub mod condition;
pub mod critical;
pub mod exempt;
pub mod flow;
pub mod gates;
pub mod generate;
pub mod kinds;
pub mod labels;
pub mod marks;
pub mod names;
pub mod protection;
mod schema;
pub mod search_groups;
pub mod versions;
