//! Feature gates, in Kubernetes' form: `--feature-gates Name=true,Other=false`.

use std::fmt;
use std::str::FromStr;

/// Which guards are switched on. All are, unless told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are switches")]
pub struct FeatureGates {
    /// Protection labels and `ResourceDeletionProtection`.
    pub resources_deletion_protection: bool,
    /// What would take a protected object down is guarded with it.
    pub cascade_protection: bool,
    /// `PodUnavailableBudget`.
    pub pod_unavailable_budget: bool,
    /// `PodDeletionFlowControl`.
    pub pod_deletion_flow_control: bool,
    /// `CriticalService`.
    pub critical_service: bool,
    /// `ComponentProtection`.
    pub component_protection: bool,
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self {
            resources_deletion_protection: true,
            cascade_protection: true,
            pod_unavailable_budget: true,
            pod_deletion_flow_control: true,
            critical_service: true,
            component_protection: true,
        }
    }
}

/// One `Name=true|false` of the flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureGate {
    gate: Gate,
    on: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    ResourcesDeletionProtection,
    CascadeProtection,
    PodUnavailableBudget,
    PodDeletionFlowControl,
    CriticalService,
    ComponentProtection,
}

const KNOWN: &[(&str, Gate)] = &[
    ("CascadeProtection", Gate::CascadeProtection),
    ("ComponentProtection", Gate::ComponentProtection),
    ("CriticalService", Gate::CriticalService),
    ("PodDeletionFlowControl", Gate::PodDeletionFlowControl),
    ("PodUnavailableBudget", Gate::PodUnavailableBudget),
    ("ResourcesDeletionProtection", Gate::ResourcesDeletionProtection),
];

impl FeatureGates {
    /// The defaults with the given choices made, later ones winning.
    pub fn chosen<'a>(choices: impl IntoIterator<Item = &'a FeatureGate>) -> Self {
        let mut gates = Self::default();
        for choice in choices {
            match choice.gate {
                Gate::ResourcesDeletionProtection => gates.resources_deletion_protection = choice.on,
                Gate::CascadeProtection => gates.cascade_protection = choice.on,
                Gate::PodUnavailableBudget => gates.pod_unavailable_budget = choice.on,
                Gate::PodDeletionFlowControl => gates.pod_deletion_flow_control = choice.on,
                Gate::CriticalService => gates.critical_service = choice.on,
                Gate::ComponentProtection => gates.component_protection = choice.on,
            }
        }
        gates
    }
}

/// All of them, as the flag takes them.
impl fmt::Display for FeatureGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, gate)) in KNOWN.iter().enumerate() {
            let on = match gate {
                Gate::ResourcesDeletionProtection => self.resources_deletion_protection,
                Gate::CascadeProtection => self.cascade_protection,
                Gate::PodUnavailableBudget => self.pod_unavailable_budget,
                Gate::PodDeletionFlowControl => self.pod_deletion_flow_control,
                Gate::CriticalService => self.critical_service,
                Gate::ComponentProtection => self.component_protection,
            };
            write!(f, "{}{name}={on}", if number == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Why a feature gate could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeatureGateError {
    /// Not of the form `Name=true` or `Name=false`.
    Form(String),
    /// No gate has that name.
    Unknown(String),
}

impl fmt::Display for FeatureGateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form(text) => write!(f, "\"{text}\" is not of the form Name=true or Name=false")?,
            Self::Unknown(name) => write!(f, "there is no feature gate \"{name}\"")?,
        }
        write!(f, "; the known gates are:")?;
        let known: Vec<String> =
            KNOWN.iter().map(|(name, _)| format!("{name}=true|false (default true)")).collect();
        write!(f, " {}", known.join(", "))
    }
}

impl std::error::Error for FeatureGateError {}

/// A flag's value: `Name=true,Other=false`. Kubernetes takes an empty one, and a comma too many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGateList(pub Vec<FeatureGate>);

impl FromStr for FeatureGateList {
    type Err = FeatureGateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let choices = text.split(',').map(str::trim).filter(|choice| !choice.is_empty());
        choices.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for FeatureGate {
    type Err = FeatureGateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once('=').ok_or_else(|| FeatureGateError::Form(text.to_owned()))?;
        let (_, gate) = KNOWN
            .iter()
            .find(|(known, _)| *known == name.trim())
            .ok_or_else(|| FeatureGateError::Unknown(name.trim().to_owned()))?;
        // Kubernetes reads the values with Go's strconv.ParseBool.
        let on = match value.trim() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            _ => return Err(FeatureGateError::Form(text.to_owned())),
        };
        Ok(Self { gate: *gate, on })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for off in
            ["", "CriticalService=false", "ResourcesDeletionProtection=false,ComponentProtection=false"]
        {
            let list: FeatureGateList = off.parse().unwrap();
            let gates = FeatureGates::chosen(&list.0);
            let again: FeatureGateList = gates.to_string().parse().unwrap();
            assert_eq!(FeatureGates::chosen(&again.0), gates, "{gates}");
        }
    }

    #[test]
    fn the_last_choice_wins() {
        let choices: Vec<FeatureGate> =
            ["ResourcesDeletionProtection=false", "ResourcesDeletionProtection=true"]
                .map(|text| text.parse().unwrap())
                .into();
        assert!(FeatureGates::chosen(&choices).resources_deletion_protection);
        assert!(!FeatureGates::chosen(&choices[..1]).resources_deletion_protection);
        assert_eq!(FeatureGates::chosen([]), FeatureGates::default());
    }

    #[test]
    fn an_unknown_gate_is_an_error_that_lists_the_known_ones() {
        let error = "Resources=true".parse::<FeatureGate>().unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no feature gate \"Resources\"; the known gates are: \
             CascadeProtection=true|false (default true), ComponentProtection=true|false (default true), \
             CriticalService=true|false (default true), \
             PodDeletionFlowControl=true|false (default true), PodUnavailableBudget=true|false (default true), ResourcesDeletionProtection=true|false (default true)"
        );
    }

    #[test]
    fn a_list_may_be_empty_and_have_a_comma_too_many() {
        let gates = |text: &str| FeatureGates::chosen(&text.parse::<FeatureGateList>().unwrap().0);
        assert_eq!(gates(""), FeatureGates::default());
        assert!(!gates("CascadeProtection=false, ResourcesDeletionProtection=true,").cascade_protection);
    }

    #[test]
    fn a_value_that_is_no_boolean_is_an_error() {
        for text in
            ["ResourcesDeletionProtection", "ResourcesDeletionProtection=yes", "ResourcesDeletionProtection="]
        {
            assert_eq!(text.parse::<FeatureGate>(), Err(FeatureGateError::Form(text.to_owned())), "{text}");
        }
    }
}
