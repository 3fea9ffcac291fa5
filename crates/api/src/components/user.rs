//! A user name with gaps: `system:serviceaccount:{namespace}:{parent}`.

/// What fills the gaps is the component's namespace and its parent's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserTemplate(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Text(String),
    Namespace,
    Parent,
}

impl UserTemplate {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let (before, gap) = rest.split_at(open);
            let close = gap.find('}').ok_or_else(|| format!("\"{text}\": a brace is not closed"))?;
            let part = match &gap[1..close] {
                "namespace" => Part::Namespace,
                "parent" => Part::Parent,
                other => {
                    return Err(format!(
                        "\"{text}\": {{{other}}} is not known; known are {{namespace}} and {{parent}}"
                    ));
                }
            };
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(part);
            rest = &gap[close + 1..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        if parts.is_empty() {
            return Err("a user without a name".to_owned());
        }
        Ok(Self(parts))
    }

    pub fn parts(&self) -> &[Part] {
        &self.0
    }

    pub fn is(&self, user: &str, namespace: &str, parent: &str) -> bool {
        let filled: String = self
            .0
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.as_str(),
                Part::Namespace => namespace,
                Part::Parent => parent,
            })
            .collect();
        filled == user
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gaps_are_filled() {
        let template = UserTemplate::read("system:serviceaccount:{namespace}:{parent}-sa").unwrap();
        assert!(template.is("system:serviceaccount:shop:main-sa", "shop", "main"));
        assert!(!template.is("system:serviceaccount:other:main-sa", "shop", "main"));
        assert!(UserTemplate::read("jane").unwrap().is("jane", "shop", "main"));
        for wrong in ["", "{name}", "{parent", "a{}b"] {
            assert!(UserTemplate::read(wrong).is_err(), "{wrong}");
        }
    }
}
