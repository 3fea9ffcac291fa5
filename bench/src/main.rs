//! What Palisade costs: `make bench`.
//!
//! Every figure is beside a baseline of the same run, because machines differ and are shared. Rounds of the two
//! alternate, and medians are reported.

mod api_server;
mod budgets;
mod cascade;
mod critical;
mod decision;
mod flow;
mod generated;
mod pods;
mod report;
mod reviews;
mod server;

use std::path::Path;
use std::process::ExitCode;

use report::Report;

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // The benchmark's own servers, in processes of their own.
        ["index", count] => budgets::hold(count),
        ["serve", which, folder] => server::serve(which, Path::new(folder)),
        [] => measure(None),
        [section] => measure(Some(section)),
        _ => Err(
            "usage: palisade-bench [decision | rules | server | api-server | cascade | budgets | generated | flow | critical]"
                .into(),
        ),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures everything and keeps the report, or one section and only prints it.
fn measure(section: Option<&str>) -> Result<(), Error> {
    let mut report = Report::new();
    match section {
        Some("decision") => decision::measure(&mut report),
        Some("rules") => decision::measure_rules(&mut report),
        Some("cascade") => cascade::measure(&mut report),
        Some("flow") => flow::measure(&mut report),
        Some("critical") => critical::measure(&mut report),
        Some("generated") => generated::measure(&mut report),
        Some("budgets") => budgets::measure(&mut report),
        Some("server") => server::measure(&mut report),
        Some("api-server") => api_server::measure(&mut report),
        Some(other) => Err(format!("there is no section \"{other}\"").into()),
        None => {
            decision::measure(&mut report)?;
            decision::measure_rules(&mut report)?;
            server::measure(&mut report)?;
            api_server::measure(&mut report)?;
            cascade::measure(&mut report)?;
            budgets::measure(&mut report)?;
            generated::measure(&mut report)?;
            flow::measure(&mut report)?;
            critical::measure(&mut report)?;
            report.write(&Path::new(env!("CARGO_MANIFEST_DIR")).join("results"))
        }
    }
}
