//! Annotations on a workload, or on its Namespace as a default, that ask for a budget to be written for it.
//!
//! | annotation | value |
//! | --- | --- |
//! | `policy.kruise.io/generate-pub`, `…-pdb` | `"true"`; `"false"` opts out of the Namespace's default |
//! | `…-maxUnavailable`, `…-minAvailable` | a number or a percentage; at most one of them. Without: the update strategy's |

use serde_json::Value;

use crate::budget::{Amount, Limit};

/// Set on every budget that was generated.
pub const GENERATED: (&str, &str) = ("palisade.dev/generated", "true");

/// An annotation on every budget that was generated: the uid of the workload that it was generated for.
pub const GENERATED_FOR: &str = "palisade.dev/generated-for";

/// Which budget is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flavour {
    /// A `PodUnavailableBudget`.
    Unavailable,
    /// A `PodDisruptionBudget`.
    Disruption,
}

impl Flavour {
    pub const ALL: [Self; 2] = [Self::Unavailable, Self::Disruption];

    /// The annotation that asks for it.
    pub fn key(self) -> &'static str {
        self.keys()[0]
    }

    fn keys(self) -> [&'static str; 3] {
        match self {
            Self::Unavailable => [KEYS[0], KEYS[1], KEYS[2]],
            Self::Disruption => [KEYS[3], KEYS[4], KEYS[5]],
        }
    }
}

/// Every annotation there is.
pub const KEYS: [&str; 6] = [
    "policy.kruise.io/generate-pub",
    "policy.kruise.io/generate-pub-maxUnavailable",
    "policy.kruise.io/generate-pub-minAvailable",
    "policy.kruise.io/generate-pdb",
    "policy.kruise.io/generate-pdb-maxUnavailable",
    "policy.kruise.io/generate-pdb-minAvailable",
];

/// What is written about one budget, on a workload or a Namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    generate: Option<Box<str>>,
    max_unavailable: Option<Box<str>>,
    min_available: Option<Box<str>>,
}

impl Ask {
    pub fn read<'a>(flavour: Flavour, annotation: impl Fn(&str) -> Option<&'a str>) -> Self {
        let [generate, max_unavailable, min_available] =
            flavour.keys().map(|key| annotation(key).map(Into::into));
        Self { generate, max_unavailable, min_available }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it gives a number.
    pub fn has_number(&self) -> bool {
        self.max_unavailable.is_some() || self.min_available.is_some()
    }
}

/// What the workload itself says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// `maxUnavailable` of its update strategy, or its kind's default.
    pub strategy: Value,
    pub replicas: i64,
}

/// What is to be generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Nothing,
    Budget(Limit),
}

/// What a workload asks for; or what is wrong with it, and what to write instead.
pub fn wanted(flavour: Flavour, own: &Ask, default: &Ask, given: &Given) -> Result<Wanted, String> {
    let [generate, max_key, min_key] = flavour.keys();
    match own.generate.as_deref().or(default.generate.as_deref()) {
        None | Some("false") => return Ok(Wanted::Nothing),
        Some("true") => {}
        Some(other) => return Err(format!("{generate} is \"{other}\": write \"true\" or \"false\"")),
    }
    // A number of its own, of either sort, says otherwise than the Namespace.
    let numbers = if own.has_number() { own } else { default };
    match (&numbers.max_unavailable, &numbers.min_available) {
        (Some(_), Some(_)) => Err(format!("{max_key} and {min_key} are both given: remove one of them")),
        (Some(max), None) => Ok(Wanted::Budget(Limit::MaxUnavailable(amount(max_key, max)?))),
        (None, Some(min)) => {
            let least = amount(min_key, min)?;
            if given.replicas == 1 && !matches!(least, Amount::Number(0) | Amount::Percent(0)) {
                return Err(format!(
                    "{min_key} is \"{min}\", and of a single replica that would block every eviction: write {max_key}: \"1\" \
                     instead, or run two replicas"
                ));
            }
            Ok(Wanted::Budget(Limit::MinAvailable(least)))
        }
        (None, None) => match Amount::read(&given.strategy) {
            Ok(amount) => Ok(Wanted::Budget(Limit::MaxUnavailable(amount))),
            Err(why) => Err(format!("maxUnavailable of its update strategy: {why}: write {max_key}")),
        },
    }
}

fn amount(key: &str, text: &str) -> Result<Amount, String> {
    let written = text.parse::<i64>().map_or_else(|_| Value::from(text), Value::from);
    Amount::read(&written).map_err(|_| {
        format!("{key} is \"{text}\": write a number of 0 or more, or a percentage from \"0%\" to \"100%\"")
    })
}

impl Amount {
    /// As a budget's field is written.
    pub fn written(self) -> Value {
        match self {
            Self::Number(number) => number.into(),
            Self::Percent(percent) => format!("{percent}%").into(),
        }
    }
}

impl Limit {
    /// The field of a budget that says it, and its value.
    pub fn written(self) -> (&'static str, Value) {
        match self {
            Self::MaxUnavailable(amount) => ("maxUnavailable", amount.written()),
            Self::MinAvailable(amount) => ("minAvailable", amount.written()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn ask(generate: &str, max: &str, min: &str) -> Ask {
        let given = |text: &str| (!text.is_empty()).then(|| text.into());
        Ask { generate: given(generate), max_unavailable: given(max), min_available: given(min) }
    }

    fn want(own: &Ask, default: &Ask, replicas: i64) -> Result<(&'static str, Value), String> {
        let given = Given { strategy: json!("25%"), replicas };
        wanted(Flavour::Unavailable, own, default, &given).map(|wanted| match wanted {
            Wanted::Nothing => ("nothing", Value::Null),
            Wanted::Budget(limit) => limit.written(),
        })
    }

    const NONE: [&str; 3] = ["", "", ""];

    #[rstest]
    #[case(NONE, NONE, ("nothing", Value::Null))]
    #[case(["true", "20%", ""], NONE, ("maxUnavailable", json!("20%")))]
    #[case(["true", "2", ""], NONE, ("maxUnavailable", json!(2)))]
    #[case(["true", "", "80%"], NONE, ("minAvailable", json!("80%")))]
    #[case(["true", "", ""], NONE, ("maxUnavailable", json!("25%")))]
    #[case(["", "20%", ""], NONE, ("nothing", Value::Null))]
    #[case(NONE, ["true", "", ""], ("maxUnavailable", json!("25%")))]
    #[case(NONE, ["true", "1", ""], ("maxUnavailable", json!(1)))]
    #[case(["", "3", ""], ["true", "1", ""], ("maxUnavailable", json!(3)))]
    #[case(["", "", "2"], ["true", "1", ""], ("minAvailable", json!(2)))]
    #[case(["false", "", ""], ["true", "1", ""], ("nothing", Value::Null))]
    #[case(["true", "", ""], ["false", "1", ""], ("maxUnavailable", json!(1)))]
    fn what_is_asked_for(
        #[case] own: [&str; 3],
        #[case] default: [&str; 3],
        #[case] expected: (&str, Value),
    ) {
        let [own, default] = [own, default].map(|[generate, max, min]| ask(generate, max, min));
        assert_eq!(want(&own, &default, 3), Ok(expected));
    }

    #[rstest]
    #[case(["true", "150%", ""], 3, "policy.kruise.io/generate-pub-maxUnavailable is \"150%\": write a number of 0 or more, or a percentage from \"0%\" to \"100%\"")]
    #[case(["true", "-1", ""], 3, "policy.kruise.io/generate-pub-maxUnavailable is \"-1\": write a number of 0 or more, or a percentage from \"0%\" to \"100%\"")]
    #[case(["true", "some", ""], 3, "policy.kruise.io/generate-pub-maxUnavailable is \"some\": write a number of 0 or more, or a percentage from \"0%\" to \"100%\"")]
    #[case(["true", "1", "1"], 3, "policy.kruise.io/generate-pub-maxUnavailable and policy.kruise.io/generate-pub-minAvailable are both given: remove one of them")]
    #[case(["yes", "", ""], 3, "policy.kruise.io/generate-pub is \"yes\": write \"true\" or \"false\"")]
    #[case(["true", "", "1"], 1, "policy.kruise.io/generate-pub-minAvailable is \"1\", and of a single replica that would block every eviction: write policy.kruise.io/generate-pub-maxUnavailable: \"1\" instead, or run two replicas")]
    #[case(["true", "", "50%"], 1, "policy.kruise.io/generate-pub-minAvailable is \"50%\", and of a single replica that would block every eviction: write policy.kruise.io/generate-pub-maxUnavailable: \"1\" instead, or run two replicas")]
    fn what_is_wrong_is_told(#[case] own: [&str; 3], #[case] replicas: i64, #[case] why: &str) {
        let [generate, max, min] = own;
        assert_eq!(want(&ask(generate, max, min), &Ask::default(), replicas), Err(why.to_owned()));
    }
}
