//! Which protections an update takes away from an object.
//!
//! Nothing is refused here: who may update an object may lift its own protection. It is told, so that somebody who looks
//! for it later finds when it happened and by whom.

use palisade_api::marks::Mode;

use crate::guards::labels::all_marks;
use crate::object::Object;
use crate::review::{Action, Review};
use crate::verdict::Lifted;

/// The marks that are gone after the change, or that protect less than before.
pub(super) fn lifted(old: &Object<'_>, review: &Review<'_>) -> Vec<Lifted> {
    let (Action::Update { new, .. } | Action::Change { new, .. }) = &review.action else { return Vec::new() };
    let after = all_marks(&new.metadata);
    let before = all_marks(&old.metadata).into_iter();
    let lifted = before.filter_map(|mark| {
        let now = after.iter().find(|now| (now.key, now.place) == (mark.key, mark.place));
        let weaker = match now {
            None => true,
            Some(now) => (mark.mode, now.mode) == (Mode::Always, Mode::Cascading),
        };
        weaker.then(|| Lifted { mark, now: now.map(|now| now.value.clone()) })
    });
    lifted.collect()
}
