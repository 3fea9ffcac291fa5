//! Slots that a replica has charged in advance.
//!
//! One write for each deletion is what exactness costs where slots are few. Where there are far more left than anybody
//! asks for, a replica charges some beyond those that it was asked for, as of a moment that is about to come, and admits
//! from them without another write until then. What it did not use it gives back with its next write. If it dies they
//! stay counted.
//!
//! ```text
//! decided ─ written ─▶ active ─ used up, or over ─▶ settling ─ written ─▶ gone
//! ```

use std::collections::HashMap;
use std::sync::Mutex;

use palisade_api::flow::{Pending, Stamp};

use super::window::Removal;
use crate::sync::lock;

/// How many slots are charged in advance, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// If at least so many were admitted at once,
    pub(crate) busy: usize,
    /// and every rule has at least so many left,
    pub(crate) ample: i64,
    /// then one part in so many of them,
    pub(crate) share: i64,
    /// but no more than this,
    pub(crate) most: i64,
    /// for so many milliseconds, or the time that a batch spans, if that is less.
    pub(crate) lasting: i64,
}

pub(super) const TERMS: Terms = Terms { busy: 4, ample: 1_000, share: 50, most: 256, lasting: 1_000 };

/// Slots that are charged already.
#[derive(Clone, Debug)]
pub(crate) struct Advance {
    /// The flow control, and what it asked for.
    pub(crate) uid: String,
    pub(crate) generation: Option<i64>,
    /// The moment that they are counted at. They are good until then.
    pub(crate) stamp: Stamp,
    pub(crate) left: i64,
    pub(crate) taken: HashMap<String, Pending>,
}

/// A deletion that is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It counts by a stamp, by which it can be given back.
    New(Stamp),
    /// It counted before.
    Again,
}

impl Advance {
    /// Admits a deletion, if there is something left.
    pub(crate) fn take(&mut self, removal: &Removal, now: i64) -> Option<Taken> {
        if now > self.stamp.at {
            return None;
        }
        if let Some(taken) = self.taken.get_mut(&removal.uid) {
            // Whoever asked first must not give back what somebody else relies on.
            taken.tentative = false;
            return Some(Taken::Again);
        }
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let Removal { uid, namespace, name, tentative, lasting, .. } = removal.clone();
        let stamp = self.stamp.clone();
        self.taken.insert(uid, Pending { namespace, name, stamp, asked_for: 0, tentative, lasting });
        Some(Taken::New(self.stamp.clone()))
    }

    /// Takes back what was admitted with a stamp; whether it was from here.
    pub(crate) fn give_back(&mut self, uid: &str, stamp: &Stamp) -> bool {
        let held = self.stamp == *stamp && self.taken.get(uid).is_some_and(|taken| taken.tentative);
        if held {
            self.taken.remove(uid);
            self.left += 1;
        }
        held
    }
}

/// The advances of one replica, by flow control.
#[derive(Debug, Default)]
pub(super) struct Advances(Mutex<HashMap<String, Slot>>);

#[derive(Debug, Default)]
struct Slot {
    /// Goes with the decision that is about to be written.
    decided: Option<Advance>,
    active: Option<Advance>,
    settling: Option<Advance>,
}

/// What goes with a write.
#[derive(Default)]
pub(super) struct Written {
    decided: Option<Advance>,
    settling: Option<Advance>,
}

impl Advances {
    pub(super) fn take(
        &self,
        control: &str,
        act: impl FnOnce(&mut Advance) -> Option<Taken>,
    ) -> Option<Taken> {
        act(lock(&self.0).get_mut(control)?.active.as_mut()?)
    }

    pub(super) fn give_back(&self, control: &str, uid: &str, stamp: &Stamp) -> bool {
        let mut slots = lock(&self.0);
        let active = slots.get_mut(control).and_then(|slot| slot.active.as_mut());
        active.is_some_and(|active| active.give_back(uid, stamp))
    }

    /// Takes what is active out of use, and returns what is to be settled.
    pub(super) fn settle(&self, control: &str) -> Option<Advance> {
        let mut slots = lock(&self.0);
        let slot = slots.get_mut(control)?;
        if let Some(active) = slot.active.take() {
            slot.settling = Some(active);
        }
        slot.settling.clone()
    }

    pub(super) fn decide(&self, control: &str, decided: Option<Advance>) {
        let mut slots = lock(&self.0);
        if decided.is_some() || slots.contains_key(control) {
            slots.entry(control.to_owned()).or_default().decided = decided;
        }
    }

    /// What is about to be written. Unless [`Self::written`] or [`Self::refused`] tells what came of that, it is forgotten:
    /// what may have been settled must not be settled again.
    pub(super) fn write(&self, control: &str) -> Written {
        let mut slots = lock(&self.0);
        let Some(slot) = slots.get_mut(control) else { return Written::default() };
        Written { decided: slot.decided.take(), settling: slot.settling.take() }
    }

    /// Returns whether there is something new to be settled in a while.
    pub(super) fn written(&self, control: &str, written: Written) -> bool {
        let mut slots = lock(&self.0);
        let Some(decided) = written.decided else {
            slots.remove(control);
            return false;
        };
        slots.entry(control.to_owned()).or_default().active = Some(decided);
        true
    }

    /// Somebody else was faster: it is decided again.
    pub(super) fn refused(&self, control: &str, written: Written) {
        lock(&self.0).entry(control.to_owned()).or_default().settling = written.settling;
    }

    /// The flow controls whose advances are over.
    pub(super) fn over(&self, now: i64) -> Vec<String> {
        let slots = lock(&self.0);
        let over = |slot: &Slot| slot.active.as_ref().is_some_and(|active| now > active.stamp.at);
        slots.iter().filter(|(_, slot)| over(slot)).map(|(name, _)| name.clone()).collect()
    }

    /// Forgets an advance that is over and that nobody settled.
    pub(super) fn forget(&self, control: &str, now: i64) {
        if let Some(slot) = lock(&self.0).get_mut(control) {
            slot.active.take_if(|active| now > active.stamp.at);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).values().all(|slot| slot.active.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> Stamp {
        Stamp { clock: "own".to_owned(), at: 100 }
    }

    fn advance(left: i64) -> Advance {
        Advance { uid: "u".to_owned(), generation: None, stamp: stamp(), left, taken: HashMap::new() }
    }

    fn removal(uid: &str, tentative: bool) -> Removal {
        let (uid, namespace, name) = (uid.to_owned(), "shop".to_owned(), uid.to_owned());
        Removal { uid, namespace, name, forced: false, tentative, lasting: false }
    }

    #[test]
    fn so_many_are_admitted_each_once_and_not_for_long() {
        let mut advance = advance(2);
        assert_eq!(advance.take(&removal("a", false), 50), Some(Taken::New(stamp())));
        assert_eq!(advance.take(&removal("a", false), 60), Some(Taken::Again), "it is counted already");
        assert_eq!(advance.clone().take(&removal("b", false), 101), None, "it is over");
        assert_eq!(advance.take(&removal("b", false), 100), Some(Taken::New(stamp())));
        assert_eq!(advance.take(&removal("c", false), 100), None, "it is used up");
    }

    #[test]
    fn what_somebody_relies_on_is_not_taken_back() {
        let mut advance = advance(2);
        advance.take(&removal("a", true), 50);
        advance.take(&removal("b", true), 50);
        advance.take(&removal("b", true), 60);
        assert!(advance.give_back("a", &stamp()));
        assert!(!advance.give_back("a", &stamp()));
        assert!(!advance.give_back("b", &stamp()));
        assert_eq!((advance.left, advance.taken.len()), (1, 1));
    }

    #[test]
    fn what_was_charged_is_settled_once() {
        let advances = Advances::default();
        let take = |uid: &str| advances.take("default", |advance| advance.take(&removal(uid, false), 50));
        let settled = || advances.settle("default").map(|advance| (advance.left, advance.taken.len()));
        assert_eq!(take("a"), None);
        advances.decide("default", Some(advance(3)));
        assert_eq!(take("a"), None, "not before it is written");
        let written = advances.write("default");
        assert_eq!(take("a"), None);
        assert!(advances.written("default", written));
        assert_eq!(take("a"), Some(Taken::New(stamp())));
        assert_eq!(advances.over(100), Vec::<String>::new());
        assert_eq!(advances.over(101), ["default"]);
        advances.forget("default", 100);
        assert!(!advances.is_empty(), "it is not over");

        assert_eq!(settled(), Some((2, 1)));
        assert_eq!(take("b"), None, "not while it is settled");
        advances.decide("default", Some(advance(5)));
        let written = advances.write("default");
        advances.refused("default", written);
        assert_eq!(take("b"), None, "nothing was charged");
        assert_eq!(settled(), Some((2, 1)), "somebody else was faster");
        advances.decide("default", None);
        drop(advances.write("default"));
        assert_eq!(settled(), None, "nobody knows whether it was written");
        assert!(advances.is_empty());
        advances.decide("default", Some(advance(3)));
        let written = advances.write("default");
        advances.written("default", written);
        advances.forget("default", 101);
        assert!(advances.is_empty(), "the flow control was deleted");
    }
}
