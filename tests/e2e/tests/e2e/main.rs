//! Palisade on a real API server, two replicas of it, asked through kubectl as people do.
//!
//! A test says what is `allowed` and what is `denied`. It works in namespaces of its own, so that all
//! run at once ([`cluster::shared`]); one that kills or restarts something has the cluster to itself
//! ([`cluster::alone`]).

#![allow(clippy::disallowed_methods, reason = "a test may wait for a lock: nobody waits for it")]

mod account;
mod broken_apis;
mod budgets;
mod caller;
mod cascade;
mod cascading;
mod cluster;
mod command_line;
mod components;
mod copies;
mod critical;
mod defaults;
mod etcd_jobs;
mod fan_out;
mod faults;
mod finalizer_controller;
mod flow;
mod gates;
mod generated;
mod label_changes;
mod labels;
mod late;
mod limits;
mod losses;
mod many;
mod outage;
mod owners;
mod pages;
mod pods;
mod port;
mod protections;
mod refusals;
mod registration;
mod roles;
mod search_groups;
mod server;
mod standstill;
mod uninstall;
mod unserved;
mod watches;
mod why;
