//! The report: to stdout as it grows, and to a file at the end.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::Error;

pub(crate) struct Report {
    text: String,
}

impl Report {
    pub(crate) fn new() -> Self {
        let mut report = Self { text: String::new() };
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        report.line("# What Palisade costs");
        report.line("");
        report.line(&format!("Written by `make bench`, on {cores} cores of {}.", processor()));
        report
    }

    pub(crate) fn section(&mut self, title: &str, text: &str) {
        self.line(&format!("\n## {title}\n\n{text}\n"));
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.line(text);
    }

    pub(crate) fn table(&mut self, columns: &[&str]) {
        self.row(columns);
        self.row(&vec!["---"; columns.len()]);
    }

    pub(crate) fn row(&mut self, cells: &[impl AsRef<str>]) {
        let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
        self.line(&format!("| {} |", cells.join(" | ")));
    }

    fn line(&mut self, text: &str) {
        println!("{text}");
        self.text.push_str(text);
        self.text.push('\n');
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<(), Error> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("report.md"), &self.text)?;
        Ok(())
    }
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    model.unwrap_or("an unknown processor").to_owned()
}

/// The value below which a share of the sorted values lies.
pub(crate) fn quantile(values: &mut [Duration], share: f64) -> Duration {
    values.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let index = ((values.len() as f64 - 1.0) * share).round() as usize;
    values.get(index).copied().unwrap_or_default()
}

pub(crate) fn micros(duration: Duration) -> String {
    format!("{:.1} µs", duration.as_secs_f64() * 1e6)
}

pub(crate) fn millis(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}
