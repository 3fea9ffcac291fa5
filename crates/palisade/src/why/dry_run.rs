//! The answer of the API server itself: a deletion that it asks everybody about, and does not carry out.

use http::header::WARNING;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use serde_json::json;

use super::Answer;
use crate::connect::Error;

/// What came of a dry run.
pub(super) enum DryRun {
    /// Whether it may be deleted.
    Answered(Answer),
    /// The user may not delete it, and so is not told.
    NotAllowed(String),
}

/// Asks the API server to delete an object, for show.
pub(super) async fn dry_run(client: &Client, path: &str, uid: Option<&str>) -> Result<DryRun, Error> {
    // Another object of the same name is another.
    let preconditions = uid.map(|uid| json!({"uid": uid}));
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"], "preconditions": preconditions});
    let request = http::Request::delete(path)
        .header("content-type", "application/json")
        .body(Body::from(options.to_string().into_bytes()))?;
    let response = client.send(request).await?;
    let is_allowed = response.status().is_success();
    let warnings = response.headers().get_all(WARNING).iter();
    let warnings = warnings.filter_map(|header| warning(header.to_str().ok()?)).collect();
    let body = response.into_body().collect_bytes().await?;
    if is_allowed {
        return Ok(DryRun::Answered(Answer { warnings, ..Answer::default() }));
    }
    let status: Status =
        serde_json::from_slice(&body).map_err(|_| String::from_utf8_lossy(&body).into_owned())?;
    read(status, warnings)
}

fn read(status: Status, warnings: Vec<String>) -> Result<DryRun, Error> {
    let Status { code, reason, message, .. } = status;
    // The words of the API server's own authorizer.
    if code == 403 && message.contains(" cannot delete resource ") {
        return Ok(DryRun::NotAllowed(message));
    }
    // Not there, no longer the same object, or a webhook that does not answer: nobody decided.
    let is_denied = message.starts_with("admission webhook ") || code == 403;
    if !is_denied {
        return Err(message.into());
    }
    let message = own_words(&message).to_owned();
    let lift = message.split_once("To lift it: ").map(|(_, commands)| commands);
    let lift = lift.into_iter().flat_map(|commands| commands.split(" && ")).map(str::to_owned).collect();
    let refusal = Some((code, reason));
    Ok(DryRun::Answered(Answer { refusal, message: Some(message), lift, warnings, ..Answer::default() }))
}

/// What one of our webhooks said, without what the API server put before it.
fn own_words(message: &str) -> &str {
    match message.split_once(".palisade.dev\" denied the request: ") {
        Some((before, text)) if before.starts_with("admission webhook \"") => text,
        _ => message,
    }
}

/// `299 - "text"`, with quotes and backslashes in it escaped.
fn warning(header: &str) -> Option<String> {
    let quoted = header.split_once(" \"")?.1.strip_suffix('"')?;
    let mut text = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        text.push(if character == '\\' { characters.next()? } else { character });
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, message: &str) -> Status {
        Status { code, message: message.to_owned(), ..Status::failure("", "Reason") }
    }

    #[test]
    fn a_refusal_is_the_webhooks_text() {
        let text = "configmap \"a/b\" is protected from deletion: x. To lift it: one && two";
        let message = format!("admission webhook \"labels.palisade.dev\" denied the request: {text}");
        let Ok(DryRun::Answered(answer)) = read(status(403, &message), Vec::new()) else {
            panic!("no answer")
        };
        assert_eq!(answer.message.as_deref(), Some(text));
        assert_eq!(answer.lift, ["one", "two"]);
    }

    #[test]
    fn who_may_not_delete_is_not_told() {
        let message = "configmaps \"a\" is forbidden: User \"ed\" cannot delete resource \"configmaps\" in API group \"\"";
        assert!(matches!(read(status(403, message), Vec::new()), Ok(DryRun::NotAllowed(_))));
    }

    #[test]
    fn what_nobody_decided_is_an_error() {
        for (code, message) in [
            (404, "configmaps \"a\" not found"),
            (500, "Internal error occurred: failed calling webhook \"labels.palisade.dev\": refused"),
            (409, "Operation cannot be fulfilled on configmaps \"a\": the UID in the precondition"),
        ] {
            assert!(read(status(code, message), Vec::new()).is_err(), "{message}");
        }
    }

    #[test]
    fn a_warning_is_taken_out_of_its_header() {
        assert_eq!(warning(r#"299 - "label \"a\" is odd""#).as_deref(), Some(r#"label "a" is odd"#));
        assert_eq!(warning("nonsense"), None);
    }
}
