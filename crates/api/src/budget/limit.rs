//! How many must stay available.

use serde_json::Value;

/// What a budget allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    MaxUnavailable(Amount),
    MinAvailable(Amount),
}

/// A number of pods, or a share of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Number(u32),
    /// 0 to 100.
    Percent(u8),
}

impl Amount {
    /// Reads a number or a percentage, or says what is wrong with it.
    pub fn read(value: &Value) -> Result<Self, String> {
        match value {
            Value::Number(number) => match number.as_i64() {
                Some(negative) if negative < 0 => Err(format!("{negative} is less than 0")),
                Some(number) => u32::try_from(number)
                    .ok()
                    .filter(|&number| i32::try_from(number).is_ok())
                    .map(Self::Number)
                    .ok_or_else(|| format!("{number} is too large")),
                None => Err(format!("{number} is not a whole number")),
            },
            Value::String(text) => Self::percent(text)
                .ok_or_else(|| format!("\"{text}\" is neither a number nor a percentage from 0% to 100%")),
            other => Err(format!("{other} is neither a number nor a percentage")),
        }
    }

    fn percent(text: &str) -> Option<Self> {
        let digits = text.strip_suffix('%')?;
        let plain = (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        let percent: u8 = plain.then(|| digits.parse().ok()).flatten()?;
        (percent <= 100).then_some(Self::Percent(percent))
    }

    /// How many of `total` it comes to. A share is rounded up, as in a `PodDisruptionBudget`.
    fn of(self, total: i64) -> i64 {
        match self {
            Self::Number(number) => i64::from(number),
            Self::Percent(percent) => (i64::from(percent) * total + 99) / 100,
        }
    }
}

impl Limit {
    /// How many of `total` wanted pods must stay available: never more than are wanted.
    pub fn desired(self, total: i64) -> i64 {
        let total = total.max(0);
        match self {
            // Rounded up, any share of a single replica would be all of it, and the budget would protect nothing.
            Self::MaxUnavailable(Amount::Percent(percent)) if total == 1 => i64::from(percent < 100),
            Self::MaxUnavailable(amount) => (total - amount.of(total)).max(0),
            Self::MinAvailable(amount) => amount.of(total).min(total),
        }
    }

    /// Whether it lets no pod go, however many are wanted.
    pub fn lets_none_go(self) -> bool {
        matches!(
            self,
            Self::MaxUnavailable(Amount::Number(0) | Amount::Percent(0))
                | Self::MinAvailable(Amount::Percent(100))
        )
    }

    /// Whether there are numbers of pods of which it would let fewer go than that.
    pub fn may_let_fewer_go(self, least: u32) -> bool {
        match self {
            Self::MaxUnavailable(Amount::Number(number)) => number < least,
            Self::MaxUnavailable(Amount::Percent(100))
            | Self::MinAvailable(Amount::Number(0) | Amount::Percent(0)) => false,
            Self::MaxUnavailable(Amount::Percent(_)) | Self::MinAvailable(_) => least > 0,
        }
    }

    /// A limit that lets at least so many of `total` pods go: this one, if it does.
    #[must_use]
    pub fn letting_go(self, least: u32, total: i64) -> Self {
        let lets_go = total.max(0) - self.desired(total);
        if lets_go >= i64::from(least).min(total.max(0)) {
            self
        } else {
            Self::MaxUnavailable(Amount::Number(least))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Amount::{Number, Percent};
    use Limit::{MaxUnavailable, MinAvailable};
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(MaxUnavailable(Number(0)), 5, MaxUnavailable(Number(1)))]
    #[case(MaxUnavailable(Percent(0)), 5, MaxUnavailable(Number(1)))]
    #[case(MinAvailable(Percent(100)), 5, MaxUnavailable(Number(1)))]
    #[case(MinAvailable(Number(5)), 5, MaxUnavailable(Number(1)))]
    #[case(MinAvailable(Number(9)), 5, MaxUnavailable(Number(1)))]
    #[case(MinAvailable(Percent(81)), 5, MaxUnavailable(Number(1)))]
    #[case(MaxUnavailable(Percent(50)), 1, MaxUnavailable(Number(1)))]
    #[case(MaxUnavailable(Percent(1)), 5, MaxUnavailable(Percent(1)))]
    #[case(MinAvailable(Percent(80)), 5, MinAvailable(Percent(80)))]
    #[case(MinAvailable(Number(4)), 5, MinAvailable(Number(4)))]
    #[case(MaxUnavailable(Number(0)), 0, MaxUnavailable(Number(0)))]
    fn at_least_one_may_go(#[case] limit: Limit, #[case] total: i64, #[case] expected: Limit) {
        assert_eq!(limit.letting_go(1, total), expected);
        assert_eq!(limit.letting_go(0, total), limit, "without a bound");
    }

    #[rstest]
    #[case(MaxUnavailable(Number(5)), 20, 15)]
    #[case(MaxUnavailable(Number(0)), 20, 20)]
    #[case(MaxUnavailable(Number(30)), 20, 0)]
    #[case(MaxUnavailable(Percent(25)), 10, 7)]
    #[case(MaxUnavailable(Percent(20)), 10, 8)]
    #[case(MaxUnavailable(Percent(1)), 200, 198)]
    #[case(MaxUnavailable(Percent(0)), 7, 7)]
    #[case(MaxUnavailable(Percent(100)), 7, 0)]
    #[case(MaxUnavailable(Percent(50)), 1, 1)]
    #[case(MaxUnavailable(Percent(99)), 1, 1)]
    #[case(MaxUnavailable(Percent(100)), 1, 0)]
    #[case(MaxUnavailable(Number(1)), 1, 0)]
    #[case(MinAvailable(Percent(70)), 20, 14)]
    #[case(MinAvailable(Percent(70)), 7, 5)]
    #[case(MinAvailable(Percent(1)), 1, 1)]
    #[case(MinAvailable(Percent(0)), 1, 0)]
    #[case(MinAvailable(Number(3)), 10, 3)]
    #[case(MinAvailable(Number(3)), 2, 2)]
    #[case(MinAvailable(Number(3)), 0, 0)]
    fn desired(#[case] limit: Limit, #[case] total: i64, #[case] expected: i64) {
        assert_eq!(limit.desired(total), expected);
    }

    #[rstest]
    #[case(json!(0), Some(Number(0)))]
    #[case(json!(2_147_483_647), Some(Number(2_147_483_647)))]
    #[case(json!(2_147_483_648_u64), None)]
    #[case(json!(1.5), None)]
    #[case(json!("5%"), Some(Percent(5)))]
    #[case(json!("100%"), Some(Percent(100)))]
    #[case(json!("5"), None)]
    #[case(json!("%"), None)]
    #[case(json!("-5%"), None)]
    #[case(json!("+5%"), None)]
    #[case(json!("1.5%"), None)]
    #[case(json!(true), None)]
    fn amounts(#[case] written: Value, #[case] expected: Option<Amount>) {
        assert_eq!(Amount::read(&written).ok(), expected);
    }

    fn any_amount() -> impl Strategy<Value = Amount> {
        prop_oneof![(0..1_000_u32).prop_map(Number), (0..=100_u8).prop_map(Percent)]
    }

    proptest! {
        #[test]
        fn what_may_let_fewer_go_is_told_before_anything_is_counted(
            amount in any_amount(), least in 0..5_u32, total in 0..200_i64,
        ) {
            for limit in [MaxUnavailable(amount), MinAvailable(amount)] {
                let bounded = limit.letting_go(least, total) != limit;
                prop_assert!(!bounded || limit.may_let_fewer_go(least), "{limit:?} of {total}");
                if limit.lets_none_go() {
                    prop_assert_eq!(limit.desired(total), total);
                }
            }
        }

        #[test]
        fn no_more_is_desired_than_is_wanted(amount in any_amount(), total in 0..10_000_i64) {
            for limit in [MaxUnavailable(amount), MinAvailable(amount)] {
                prop_assert!((0..=total).contains(&limit.desired(total)));
            }
        }

        #[test]
        fn what_is_wanted_less_never_has_to_be_available_more(amount in any_amount(), total in 0..10_000_i64) {
            for limit in [MaxUnavailable(amount), MinAvailable(amount)] {
                // But for the single replica, which is kept where two would lose one.
                if total != 1 {
                    prop_assert!(limit.desired(total) <= limit.desired(total + 1).max(i64::from(total == 0)));
                }
            }
        }

        #[test]
        fn a_share_is_the_exact_one_rounded_up(percent in 0..=100_u8, total in 2..10_000_i64) {
            let up = MinAvailable(Percent(percent)).desired(total);
            prop_assert!(up * 100 >= i64::from(percent) * total && (up - 1) * 100 < i64::from(percent) * total);
            prop_assert_eq!(MaxUnavailable(Percent(percent)).desired(total), total - up);
        }
    }
}
