//! One object of any kind, read by its name.
//!
//! It is read by a `list` with a field selector, not by a `get`. In RBAC a `get` on every kind is also a `get` on
//! every subresource, such as `nodes/proxy` and `pods/exec`; a `list` reaches no subresource. For a selector of one
//! name the API server reads one key, as it does for a `get`.

use kube::Client;
use palisade_engine::Object;
use palisade_engine::json::{Cursor, Malformed};

use crate::live::{METADATA_LIST, NoAnswer, WHOLE, get, page_uri};

/// How much of an object is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    Metadata,
    Whole,
}

/// The field selector for one name, whatever is in it: an owner reference may name anything.
pub(crate) fn name_selector(name: &str) -> String {
    let mut selector = "metadata.name=".to_owned();
    for character in name.chars() {
        if matches!(character, '\\' | ',' | '=') {
            selector.push('\\');
        }
        selector.push(character);
    }
    selector
}

/// The object of that name as JSON, from the list at `path`; `None` if there is none. A kind that is not served is an
/// error with code 404.
pub(crate) async fn read_named(
    client: &Client,
    path: &str,
    name: &str,
    detail: Detail,
) -> Result<Option<String>, NoAnswer> {
    let selector = name_selector(name);
    let mut token = String::new();
    loop {
        let uri = page_uri(path, &[("fieldSelector", &selector)], &token);
        let text = match (detail, client.request_text(get(&uri, accept(detail))?).await) {
            // An aggregated API server that knows no metadata-only lists.
            (Detail::Metadata, Err(kube::Error::Api(status))) if status.code == 406 => {
                client.request_text(get(&uri, WHOLE)?).await.map_err(NoAnswer::to(&uri))?
            }
            (_, answer) => answer.map_err(NoAnswer::to(&uri))?,
        };
        let (found, next) = find_named(&text, name).map_err(|error| NoAnswer::new(error.to_string()))?;
        // Only an API server that does not know the selector has a next page.
        if found.is_some() || next.is_empty() {
            return Ok(found);
        }
        token = next;
    }
}

fn accept(detail: Detail) -> &'static str {
    match detail {
        Detail::Metadata => METADATA_LIST,
        Detail::Whole => WHOLE,
    }
}

/// The object of that name in a page, and the token for the next page.
fn find_named(page: &str, name: &str) -> Result<(Option<String>, String), Malformed> {
    let (mut found, mut next) = (None, String::new());
    Cursor::new(page.as_bytes()).object(|key, value| match &*key {
        "metadata" => value.object(|key, value| {
            if key == "continue" {
                next = value.string_or_null()?.unwrap_or_default().into_owned();
                Ok(())
            } else {
                value.skip()
            }
        }),
        "items" => value.list(|item| {
            if let Some(json) = item.raw_or_null()?
                && Object::parse(json)?.metadata.name == name
            {
                found = Some(String::from_utf8_lossy(json).into_owned());
            }
            Ok(())
        }),
        _ => value.skip(),
    })?;
    Ok((found, next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("web", "metadata.name=web")]
    #[case("a,metadata.namespace=b", r"metadata.name=a\,metadata.namespace\=b")]
    #[case(r"a\", r"metadata.name=a\\")]
    fn a_name_cannot_leave_its_selector(#[case] name: &str, #[case] selector: &str) {
        assert_eq!(name_selector(name), selector);
    }

    #[test]
    fn only_the_object_of_that_name_is_found() {
        let page = r#"{"metadata":{"continue":"more"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"},"spec":1}]}"#;
        let found = find_named(page, "b").unwrap();
        assert_eq!(found, (Some(r#"{"metadata":{"name":"b"},"spec":1}"#.to_owned()), "more".to_owned()));
        assert_eq!(find_named(page, "c").unwrap().0, None);
        assert_eq!(find_named(r#"{"metadata":{},"items":null}"#, "a").unwrap(), (None, String::new()));
    }
}
