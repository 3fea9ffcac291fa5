//! Who would be collected with whom.
//!
//! The garbage collector removes an object when all its owners are gone. So a protected object goes with another
//! if one of its owners does, at any depth, and none of them stays.

use std::collections::HashMap;

use palisade_engine::{Doomed, Object, OwnerRef};

use crate::discovery::Discovery;
use crate::live::{LiveWorld, NoAnswer};
use crate::named::Detail;

/// Ownership that goes further up than this is taken for a circle.
const DEEPEST: usize = 20;

/// What becomes of an object when the root is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is collected with the root.
    Goes,
    /// It is gone already, or going.
    Absent,
    Stays,
}

/// Asks for owners while one review waits, each once.
pub(crate) struct Lineage<'a> {
    pub(crate) world: &'a LiveWorld,
    pub(crate) discovery: &'a Discovery,
    pub(crate) root: &'a str,
    pub(crate) known: HashMap<String, Known>,
}

/// What an owner turned out to be.
#[derive(Clone)]
pub(crate) enum Known {
    Absent,
    There { namespace: Option<String>, owners: Vec<OwnerRef> },
}

impl Lineage<'_> {
    /// Whether a protected object would be collected with the root.
    pub(crate) async fn goes(&mut self, doomed: &Doomed) -> Result<bool, NoAnswer> {
        let fate = self.fate(doomed.about.namespace.as_deref(), &doomed.owners, 0).await?;
        Ok(fate == Fate::Goes)
    }

    async fn fate(
        &mut self,
        namespace: Option<&str>,
        owners: &[OwnerRef],
        depth: usize,
    ) -> Result<Fate, NoAnswer> {
        let mut goes = false;
        if depth > DEEPEST {
            return Ok(Fate::Stays);
        }
        for owner in owners {
            if owner.uid == self.root {
                goes = true;
                continue;
            }
            match self.look_up(namespace, owner).await? {
                Known::Absent => {}
                Known::There { namespace, owners } => {
                    match Box::pin(self.fate(namespace.as_deref(), &owners, depth + 1)).await? {
                        Fate::Goes => goes = true,
                        Fate::Absent | Fate::Stays => return Ok(Fate::Stays),
                    }
                }
            }
        }
        Ok(match (goes, owners.is_empty()) {
            (true, _) => Fate::Goes,
            (false, true) => Fate::Stays,
            (false, false) => Fate::Absent,
        })
    }

    async fn look_up(&mut self, namespace: Option<&str>, owner: &OwnerRef) -> Result<Known, NoAnswer> {
        if let Some(known) = self.known.get(&owner.uid) {
            return Ok(known.clone());
        }
        let known = match self.discovery.find(owner.group(), &owner.kind) {
            // A kind that is not served owns nothing any more.
            None => Known::Absent,
            // An owner is in its dependent's namespace, or in none.
            Some(served) => {
                match self.world.ask_for_named(served, namespace, &owner.name, Detail::Metadata).await {
                    Ok(Some(text)) => known(&text, owner)?,
                    Ok(None) => Known::Absent,
                    Err(why) if why.code == 404 => Known::Absent,
                    Err(why) => return Err(why),
                }
            }
        };
        self.known.insert(owner.uid.clone(), known.clone());
        Ok(known)
    }
}

fn known(text: &str, owner: &OwnerRef) -> Result<Known, NoAnswer> {
    let object = Object::parse(text.as_bytes()).map_err(|error| NoAnswer::new(error.to_string()))?;
    let metadata = &object.metadata;
    if metadata.uid != owner.uid || metadata.deletion_timestamp.is_some() {
        return Ok(Known::Absent);
    }
    Ok(Known::There {
        namespace: metadata.namespace.as_ref().map(ToString::to_string),
        owners: metadata.owners.iter().map(OwnerRef::of).collect(),
    })
}
