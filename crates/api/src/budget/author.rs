//! Who wrote a budget: an administrator is whoever may write budgets in all namespaces.
//!
//! A budget that lets no pod go stops whoever drains nodes. An administrator may want that; whoever may write budgets only
//! in some namespaces gets a budget that lets at least one pod go.

use serde::{Deserialize, Serialize};

/// Who wrote a generation of a budget, in its status: nobody but Palisade writes there.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct WrittenBy {
    pub generation: i64,
    pub administrator: bool,
}

/// What is known of who wrote the present generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    Administrator,
    Other,
    /// It was written just now, or while nobody looked.
    Unknown {
        /// Whether an administrator wrote an earlier generation, if that is known.
        before: Option<bool>,
    },
}

impl Author {
    /// Whether the budget lets at least some pods go. One of which nobody knows who wrote it is taken at its word for the
    /// moment that it takes to find out, unless somebody else wrote it before: who changes their own budget all the time
    /// gains nothing by it.
    pub fn is_bounded(self) -> bool {
        matches!(self, Self::Other | Self::Unknown { before: Some(false) })
    }

    pub fn is_known(self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Status;
    use rstest::rstest;

    #[rstest]
    #[case(None, Author::Unknown { before: None }, false)]
    #[case(Some((3, true)), Author::Administrator, false)]
    #[case(Some((3, false)), Author::Other, true)]
    #[case(Some((2, true)), Author::Unknown { before: Some(true) }, false)]
    #[case(Some((2, false)), Author::Unknown { before: Some(false) }, true)]
    #[case(Some((4, true)), Author::Unknown { before: Some(true) }, false)]
    fn who_wrote_generation_three(
        #[case] written: Option<(i64, bool)>,
        #[case] author: Author,
        #[case] bounded: bool,
    ) {
        let written_by = written.map(|(generation, administrator)| WrittenBy { generation, administrator });
        let status = Status { written_by, ..Status::default() };
        assert_eq!(status.author(Some(3)), author);
        assert_eq!(author.is_bounded(), bounded);
    }
}
