//! What somebody can do who reaches the webhook's port.

use serde_json::json;

use crate::caller::{Caller, deletion};
use crate::cluster::shared;

#[test]
fn a_review_that_names_a_member_twice_is_refused_as_malformed() {
    shared(async |cluster| {
        let caller = Caller::of(cluster).await;
        let labels = json!({"policy.kruise.io/delete-protection": "Always"});
        let review = deletion(
            "ConfigMap",
            "configmaps",
            &json!({"metadata": {
            "name": "kept", "namespace": "default", "uid": "1", "labels": labels}}),
        );
        assert_eq!(caller.ask("/admit", &review.to_string()).await["status"]["code"], 403);
        // Whichever of the two is read, it is not what another reader sees.
        let harmless = r#"{"metadata":{"name":"kept","namespace":"default","uid":"1"}}"#;
        for key in ["oldObject", r"oldObj\u0065ct"] {
            let text = review.to_string();
            let first = text.replacen(r#""oldObject":"#, &format!(r#""{key}":{harmless},"oldObject":"#), 1);
            let last = text.replacen(r#""operation":"#, &format!(r#""{key}":{harmless},"operation":"#), 1);
            for doubled in [first, last] {
                let answer = caller.ask("/admit", &doubled).await;
                assert_eq!(
                    (&answer["allowed"], &answer["status"]["code"]),
                    (&false.into(), &400.into()),
                    "{doubled}"
                );
            }
        }
        let relabelled = review.to_string().replacen(r#""labels":"#, r#""labels":{},"labels":"#, 1);
        assert_eq!(caller.ask("/admit", &relabelled).await["status"]["code"], 400);
    });
}
