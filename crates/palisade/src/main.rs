//! `palisade`, also installed as `kubectl-palisade`: arguments → settings → commands.

mod args;
mod connect;
mod manifests;
mod output;
mod published;
mod reference;
mod resume;
mod run;
mod uninstall;
mod why;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

/// What a command that was not able to do its work exits with.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    // Fails only where one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let done = runtime.block_on(async {
        match args.command {
            Command::Run(run) => run::run(*run).await.map(|()| ExitCode::SUCCESS),
            Command::Why(why) => Box::pin(why::why(why)).await,
            Command::Manifests(manifests) => manifests::print(&manifests),
            Command::Uninstall(uninstall) => uninstall::uninstall(uninstall).await,
            Command::Resume(resume) => resume::resume(resume).await,
            Command::Reference { page } => reference::print(page),
        }
    });
    done.unwrap_or_else(|error| failed(error.as_ref()))
}

/// Prints an error with all that led to it.
fn failed(error: &dyn std::error::Error) -> ExitCode {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    eprintln!("palisade: {text}");
    ExitCode::from(FAILED)
}
