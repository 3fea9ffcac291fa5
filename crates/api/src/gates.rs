//! Feature gates, in Kubernetes' form: `--feature-gates Name=true,Other=false`.

use std::fmt;
use std::str::FromStr;

use crate::versions::PolicyKind;

/// The word in a webhook's path before the word of a gate that is off.
pub const DISABLED: &str = "disabled";

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

/// A feature that can be turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gate {
    CascadeProtection,
    ComponentProtection,
    CriticalService,
    PodDeletionFlowControl,
    PodUnavailableBudget,
    ResourcesDeletionProtection,
}

impl Gate {
    /// Every gate, by name.
    pub const ALL: [Self; 6] = [
        Self::CascadeProtection,
        Self::ComponentProtection,
        Self::CriticalService,
        Self::PodDeletionFlowControl,
        Self::PodUnavailableBudget,
        Self::ResourcesDeletionProtection,
    ];

    /// The name in the flag.
    pub fn name(self) -> &'static str {
        match self {
            Self::CascadeProtection => "CascadeProtection",
            Self::ComponentProtection => "ComponentProtection",
            Self::CriticalService => "CriticalService",
            Self::PodDeletionFlowControl => "PodDeletionFlowControl",
            Self::PodUnavailableBudget => "PodUnavailableBudget",
            Self::ResourcesDeletionProtection => "ResourcesDeletionProtection",
        }
    }

    /// The word in the path of a webhook. The API server takes no capital letters there.
    pub fn word(self) -> String {
        self.name().to_lowercase()
    }

    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|gate| gate.word() == word)
    }

    /// The kind of policy that refuses nothing while the gate is off.
    pub fn policies(self) -> Option<PolicyKind> {
        match self {
            Self::CascadeProtection => None,
            Self::ComponentProtection => Some(PolicyKind::ComponentProtection),
            Self::CriticalService => Some(PolicyKind::CriticalService),
            Self::PodDeletionFlowControl => Some(PolicyKind::FlowControl),
            Self::PodUnavailableBudget => Some(PolicyKind::Budget),
            Self::ResourcesDeletionProtection => Some(PolicyKind::Protection),
        }
    }

    /// That it is off, and how to turn it on.
    pub fn off_message(self) -> String {
        let name = self.name();
        format!(
            "feature gate {name} is off; to turn it on, start palisade run with --feature-gates={name}=true"
        )
    }
}

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

    /// Whether a feature is turned on.
    pub fn is_on(self, gate: Gate) -> bool {
        match gate {
            Gate::ResourcesDeletionProtection => self.resources_deletion_protection,
            Gate::CascadeProtection => self.cascade_protection,
            Gate::PodUnavailableBudget => self.pod_unavailable_budget,
            Gate::PodDeletionFlowControl => self.pod_deletion_flow_control,
            Gate::CriticalService => self.critical_service,
            Gate::ComponentProtection => self.component_protection,
        }
    }

    /// The features that are turned off.
    pub fn off(self) -> impl Iterator<Item = Gate> {
        Gate::ALL.into_iter().filter(move |gate| !self.is_on(*gate))
    }
}

/// All of them, as the flag takes them.
impl fmt::Display for FeatureGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, gate) in Gate::ALL.into_iter().enumerate() {
            let separator = if number == 0 { "" } else { "," };
            write!(f, "{separator}{}={}", gate.name(), self.is_on(gate))?;
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
        let known = Gate::ALL.map(|gate| format!("{}=true|false (default true)", gate.name()));
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
        let gate = Gate::ALL
            .into_iter()
            .find(|gate| gate.name() == name.trim())
            .ok_or_else(|| FeatureGateError::Unknown(name.trim().to_owned()))?;
        // Kubernetes reads the values with Go's strconv.ParseBool.
        let on = match value.trim() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            _ => return Err(FeatureGateError::Form(text.to_owned())),
        };
        Ok(Self { gate, on })
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
    fn each_gate_is_turned_off_by_its_name_and_known_by_its_word() {
        for gate in Gate::ALL {
            let choice: FeatureGate = format!("{}=false", gate.name()).parse().unwrap();
            let gates = FeatureGates::chosen([&choice]);
            assert_eq!(gates.off().collect::<Vec<_>>(), [gate]);
            assert_eq!(Gate::of_word(&gate.word()), Some(gate));
            assert!(gate.word().bytes().all(|byte| byte.is_ascii_lowercase()), "{}", gate.word());
        }
        let mut kinds: Vec<PolicyKind> = Gate::ALL.into_iter().filter_map(Gate::policies).collect();
        kinds.sort();
        assert_eq!(kinds, PolicyKind::ALL, "every kind of policy has a gate");
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
