//! Durations as Kubernetes writes them: `90s`, `1m`, `1h30m`, `1.5h`.

use std::fmt;

const SHORTEST: i64 = 1_000;
const LONGEST: i64 = 24 * 60 * 60 * 1_000;

/// The length of a window, from a second to a day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// As it was written.
    text: String,
    /// In milliseconds. What is below them is rounded up, which only makes it longer.
    pub millis: i64,
}

impl Interval {
    pub fn read(text: &str) -> Result<Self, String> {
        let millis =
            millis(text).ok_or_else(|| format!("\"{text}\" is no duration such as 30s, 10m or 1h"))?;
        if (SHORTEST..=LONGEST).contains(&millis) {
            Ok(Self { text: text.to_owned(), millis })
        } else {
            Err(format!("\"{text}\" is not between 1s and 24h"))
        }
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Numbers with units, as Go's `time.ParseDuration` reads them, without a sign.
fn millis(text: &str) -> Option<i64> {
    if text == "0" {
        return Some(0);
    }
    // In nanoseconds, which a day has less than 2^47 of.
    let mut total: u128 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let unit: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || whole.len() > 18 {
            return None;
        }
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        // What is beyond a nanosecond does not count.
        let fraction = &fraction[..fraction.len().min(18)];
        let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
        total += whole * unit + parts * unit / 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        rest = tail;
    }
    if text.is_empty() { None } else { total.div_ceil(1_000_000).try_into().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("1s", 1_000)]
    #[case("1m", 60_000)]
    #[case("10m", 600_000)]
    #[case("1h30m", 5_400_000)]
    #[case("1.5h", 5_400_000)]
    #[case(".5m", 30_000)]
    #[case("1000ms", 1_000)]
    #[case("24h", 86_400_000)]
    #[case("1s1ns", 1_001)]
    fn what_go_reads(#[case] text: &str, #[case] millis: i64) {
        assert_eq!(Interval::read(text).unwrap().millis, millis);
        assert_eq!(Interval::read(text).unwrap().to_string(), text);
    }

    #[rstest]
    #[case("", "\"\" is no duration such as 30s, 10m or 1h")]
    #[case("10", "\"10\" is no duration such as 30s, 10m or 1h")]
    #[case("1d", "\"1d\" is no duration such as 30s, 10m or 1h")]
    #[case("1 m", "\"1 m\" is no duration such as 30s, 10m or 1h")]
    #[case("-1m", "\"-1m\" is no duration such as 30s, 10m or 1h")]
    #[case("m", "\"m\" is no duration such as 30s, 10m or 1h")]
    #[case("1.2.3s", "\"1.2.3s\" is no duration such as 30s, 10m or 1h")]
    #[case("0", "\"0\" is not between 1s and 24h")]
    #[case("999ms", "\"999ms\" is not between 1s and 24h")]
    #[case("24h1ns", "\"24h1ns\" is not between 1s and 24h")]
    #[case("99999999h", "\"99999999h\" is not between 1s and 24h")]
    fn what_is_no_interval_is_told(#[case] text: &str, #[case] why: &str) {
        assert_eq!(Interval::read(text).unwrap_err(), why);
    }
}
