//! To whoever reads.

use std::fmt::Display;
use std::io::Write;

/// Prints a line. A reader that has gone away is no reason to fail.
pub(crate) fn say(text: impl Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
