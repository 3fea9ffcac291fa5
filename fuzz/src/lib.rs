//! Texts for fuzz targets: what a run of random bytes makes of a few that are known.
//!
//! Each target takes an input in two ways: as it is, which is how the corpus is read and how a coverage-guided engine
//! works (`cargo bolero test`), and as a recipe that changes a text of the corpus, so that plain random bytes, which is
//! all that `cargo test` has, get past the first bracket.

use std::path::Path;

/// Random bytes as decisions.
pub struct Recipe<'a>(&'a [u8]);

impl<'a> Recipe<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte; 0 from the end on.
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        let wide = usize::from(self.byte()) << 8 | usize::from(self.byte());
        if end == 0 { 0 } else { wide % end }
    }

    pub fn coin(&mut self) -> bool {
        self.byte().is_multiple_of(2)
    }

    pub fn pick<'t, T: ?Sized>(&mut self, all: &[&'t T]) -> &'t T {
        all[self.below(all.len())]
    }
}

/// The texts of a target's corpus.
///
/// # Panics
///
/// If there are none.
pub fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/__fuzz__").join(target).join("corpus");
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.sort();
    let texts: Vec<Vec<u8>> = files.iter().filter_map(|file| std::fs::read(file).ok()).collect();
    assert!(!texts.is_empty(), "there is no corpus in {}", folder.display());
    texts
}

/// Changes one of the texts in a few places, often at a bracket, a comma or a quote, and by a word that matters.
pub fn mutated(recipe: &mut Recipe<'_>, texts: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut text = texts[recipe.below(texts.len())].clone();
    for _ in 0..=recipe.below(4) {
        let at = place(recipe, &text);
        let until = place(recipe, &text).max(at);
        match recipe.below(7) {
            0 => drop(text.drain(at..until)),
            1 => {
                let copy = text[at..until].to_vec();
                let to = place(recipe, &text);
                text.splice(to..to, copy);
            }
            2 | 3 => {
                let word = recipe.pick(words).as_bytes().to_vec();
                text.splice(at..at, word);
            }
            4 => {
                let word = recipe.pick(words).as_bytes().to_vec();
                text.splice(at..until, word);
            }
            5 => {
                let other = &texts[recipe.below(texts.len())];
                let from = place(recipe, other);
                let to = place(recipe, other).max(from);
                text.splice(at..at, other[from..to].to_vec());
            }
            _ => {
                if let Some(byte) = text.get_mut(at) {
                    *byte = recipe.byte();
                }
            }
        }
        text.truncate(64 << 10);
    }
    text
}

/// A place in a text: mostly one where something begins or ends.
fn place(recipe: &mut Recipe<'_>, text: &[u8]) -> usize {
    let marks: Vec<usize> = (0..text.len())
        .filter(|&at| matches!(text[at], b'{' | b'}' | b'[' | b']' | b',' | b'"' | b':'))
        .collect();
    if marks.is_empty() || recipe.below(4) == 0 {
        return recipe.below(text.len() + 1);
    }
    marks[recipe.below(marks.len())] + usize::from(recipe.coin())
}
