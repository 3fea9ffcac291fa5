//! What we answer.

use palisade_api::marks::Mark;

use crate::review::Subject;
use crate::world::{Census, Unknown};

/// The answer to a review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What the findings are about; `None` when there is nothing to say.
    pub about: Option<About>,
    /// Why not. All of them, so that nobody lifts one protection only to meet the next.
    pub findings: Vec<Finding>,
    /// What people should know whatever the outcome.
    pub warnings: Vec<Warning>,
}

/// The subject in the words of messages and commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// `deployment`
    pub kind: String,
    /// `deployments.apps`
    pub kubectl_name: String,
    pub namespace: Option<String>,
    pub name: String,
}

/// One reason against an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub guard: Guard,
    pub code: Code,
    pub reason: Reason,
    /// How the person who meets it gets past it.
    pub lift: Option<Lift>,
}

/// Who found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Guard {
    Labels,
}

impl Guard {
    /// Every guard there is.
    pub const ALL: &[Self] = &[Self::Labels];

    pub fn name(self) -> &'static str {
        match self {
            Self::Labels => "labels",
        }
    }
}

/// The kind of a refusal, in HTTP's numbers and Kubernetes' words. Where several meet, the first of this
/// order is the answer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// Protected: it stays until the protection is lifted.
    Forbidden,
    /// We could not find out, and that never means yes.
    Unavailable,
}

impl Code {
    /// Every code there is.
    pub const ALL: &[Self] = &[Self::Forbidden, Self::Unavailable];

    pub fn status(self) -> u16 {
        match self {
            Self::Forbidden => 403,
            Self::Unavailable => 503,
        }
    }

    pub fn reason(self) -> &'static str {
        match self {
            Self::Forbidden => "Forbidden",
            Self::Unavailable => "ServiceUnavailable",
        }
    }
}

/// Why a guard says no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The object carries a mark that always protects.
    Marked(Mark),
    /// The object carries a mark that protects it while it holds something.
    MarkedWhile(Mark, Vec<Held>),
    /// The object carries such a mark, and what it holds could not be found out.
    MarkedUnknown(Mark, Unknown),
    /// What is about to go could not even be read.
    Unreadable(Unknown),
}

/// What an object still holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    ActivePods(Census),
    BoundClaims(Census),
    /// Custom resources, by the definition's `plural.group`.
    Instances(String, Census),
    Replicas(i64),
}

impl Held {
    pub(crate) fn is_something(&self) -> bool {
        match self {
            Self::ActivePods(census) | Self::BoundClaims(census) | Self::Instances(_, census) => {
                !census.is_none()
            }
            Self::Replicas(replicas) => *replicas != 0,
        }
    }
}

/// The command that lifts a protection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lift {
    RemoveLabel(&'static str),
    RemoveAnnotation(&'static str),
}

/// Something to say without refusing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// A mark with a value that means nothing, read in the way that protects.
    Mistyped(Mark),
    /// `Cascading` on a kind whose dependents nobody can name yet.
    CascadingNotKnown(Mark),
}

impl Verdict {
    pub fn allow() -> Self {
        Self { about: None, findings: Vec::new(), warnings: Vec::new() }
    }

    pub(crate) fn new(subject: &Subject<'_>, findings: Vec<Finding>, warnings: Vec<Warning>) -> Self {
        if findings.is_empty() && warnings.is_empty() {
            return Self::allow();
        }
        Self { about: Some(About::new(subject)), findings, warnings }
    }

    pub(crate) fn unreadable(subject: &Subject<'_>, unknown: Unknown) -> Self {
        let finding = Finding {
            guard: Guard::Labels,
            code: Code::Unavailable,
            reason: Reason::Unreadable(unknown),
            lift: None,
        };
        Self::new(subject, vec![finding], Vec::new())
    }

    pub fn is_allowed(&self) -> bool {
        self.findings.is_empty()
    }

    /// The code of the refusal, if it is one.
    pub fn code(&self) -> Option<Code> {
        self.findings.iter().map(|finding| finding.code).min()
    }
}

impl About {
    fn new(subject: &Subject<'_>) -> Self {
        Self {
            kind: subject.kind.to_string(),
            kubectl_name: subject.kind.kubectl_name(),
            namespace: subject.namespace().map(str::to_owned),
            name: subject.name().to_owned(),
        }
    }
}
