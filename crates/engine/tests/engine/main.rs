//! The decision, sentence by sentence.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod budgets;
mod cascade;
mod cascading;
mod churn;
mod components;
mod copies;
mod critical;
mod disabled;
mod flow;
mod labels;
mod many;
mod protections;
mod search_groups;
mod world;
