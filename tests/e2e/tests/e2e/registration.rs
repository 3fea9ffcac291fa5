//! The webhook configuration: put in place, repaired, and taken away only by its owner.

use crate::cluster::{Cluster, SOON, alone, denied, palisade_binary, run, shared};

const GET: &str = "get validatingwebhookconfiguration palisade -o jsonpath={.webhooks}";

#[test]
fn it_is_there_and_says_how_it_fails() {
    shared(async |cluster| {
        let get = |path: &str| {
            format!("get validatingwebhookconfiguration palisade -o jsonpath={{.webhooks[*].{path}}}")
        };
        for (path, value) in [("sideEffects", "NoneOnDryRun"), ("matchPolicy", "Equivalent")] {
            let values = cluster.must(&get(path)).await;
            assert!(!values.is_empty() && values.split(' ').all(|each| each == value), "{path}: {values}");
        }
        let told = "{range .webhooks[*]}{.name} {.failurePolicy} {.timeoutSeconds}{\"\\n\"}{end}";
        let get = ["get", "validatingwebhookconfiguration", "palisade", "-o", &format!("jsonpath={told}")];
        let said = cluster.kubectl_with(get, "").await;
        assert!(said.ok && said.out.lines().count() > 5, "{said:?}");
        for line in said.out.lines() {
            let (name, told) = line.split_once(' ').unwrap();
            let expected = match name.trim_end_matches(".palisade.dev") {
                "owners-warned" => "Ignore 2",
                // Those for system pods, and those that only warn.
                name if name.ends_with("-system-pods") || name.ends_with("-advice") => "Ignore 5",
                _ => "Fail 5",
            };
            assert_eq!(told, expected, "{name}");
        }
    });
}

/// Changes the registration, and sees it come back.
async fn repairs(cluster: &Cluster, change: &[&str]) {
    let before = cluster.must(GET).await;
    let said = cluster.kubectl_with(change.iter().copied(), "").await;
    assert!(said.ok, "{change:?}: {said:?}");
    cluster.eventually_prints(GET, |after| after == before).await;
}

#[test]
fn whatever_somebody_changes_is_changed_back() {
    alone(async |cluster| {
        for patch in [
            r#"[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]"#,
            r#"[{"op":"replace","path":"/webhooks/0/timeoutSeconds","value":1}]"#,
            r#"[{"op":"replace","path":"/webhooks/0/rules/0/operations","value":["CONNECT"]}]"#,
            r#"[{"op":"replace","path":"/webhooks/0/rules/0/scope","value":"Cluster"}]"#,
            r#"[{"op":"replace","path":"/webhooks/0/matchPolicy","value":"Exact"}]"#,
            r#"[{"op":"replace","path":"/webhooks/0/sideEffects","value":"None"}]"#,
            r#"[{"op":"add","path":"/webhooks/0/namespaceSelector/matchLabels","value":{"nobody":"has-this"}}]"#,
            r#"[{"op":"add","path":"/webhooks/0/objectSelector/matchLabels","value":{"nobody":"has-this"}}]"#,
            r#"[{"op":"add","path":"/webhooks/0/matchConditions","value":[{"name":"never","expression":"false"}]}]"#,
            r#"[{"op":"replace","path":"/webhooks/0/clientConfig/url","value":"https://127.0.0.1:1/admit"}]"#,
            r#"[{"op":"remove","path":"/webhooks/0"}]"#,
            r#"[{"op":"remove","path":"/webhooks"}]"#,
        ] {
            let change = ["patch", "validatingwebhookconfiguration", "palisade", "--type=json", "-p", patch];
            repairs(cluster, &change).await;
        }
        repairs(cluster, &["delete", "validatingwebhookconfiguration", "palisade"]).await;
    });
}

#[test]
fn labels_and_annotations_of_others_are_left_alone() {
    alone(async |cluster| {
        cluster.must("annotate validatingwebhookconfiguration palisade example.com/note=mine").await;
        repairs(
            cluster,
            &[
                "patch",
                "validatingwebhookconfiguration",
                "palisade",
                "--type=json",
                "-p",
                r#"[{"op":"replace","path":"/webhooks/0/timeoutSeconds","value":2}]"#,
            ],
        )
        .await;
        let all = cluster.must("get validatingwebhookconfiguration palisade -o yaml").await;
        assert!(all.contains("example.com/note: mine"), "{all}");
        cluster.must("annotate validatingwebhookconfiguration palisade example.com/note-").await;
    });
}

#[test]
fn a_deleted_or_broken_certificate_is_mended() {
    alone(async |cluster| {
        let bundle =
            "get validatingwebhookconfiguration palisade -o jsonpath={.webhooks[0].clientConfig.caBundle}";
        let before = cluster.must(bundle).await;
        cluster.must("delete secret palisade-tls -n palisade-system").await;
        cluster.eventually("get secret palisade-tls -n palisade-system").await;
        assert_eq!(cluster.must(bundle).await, before, "it comes back as it was, so that nobody notices");

        // An entry that is nonsense, or gone: it is put right from what the leader still knows.
        let key = "get secret palisade-tls -n palisade-system -o jsonpath={.data.ca\\.key}";
        let good = cluster.must(key).await;
        let broken = r#"{"data":{"ca.key":"bm9uc2Vuc2U="}}"#;
        cluster.must(&format!("patch secret palisade-tls -n palisade-system --type=merge -p {broken}")).await;
        cluster.eventually_prints(key, |now| now == good).await;
        assert_eq!(cluster.must(bundle).await, before);
        let ns = cluster.namespace().await;
        cluster.must(&format!("label namespace {ns} policy.kruise.io/delete-protection=Always")).await;
        let refused = palisade_testkit::wait_until(SOON, || async {
            cluster.kubectl(&format!("delete namespace {ns}")).await.err.contains("(Forbidden)")
        });
        assert!(refused.await, "the new certificate is served and trusted");
    });
}

#[test]
fn uninstalling_removes_the_registration_for_good() {
    alone(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("label namespace {ns} policy.kruise.io/delete-protection=Always")).await;
        denied(&cluster.kubectl(&format!("delete namespace {ns}")).await, "Forbidden", &ns);
        let said = run(&palisade_binary(), &cluster.plane.kubeconfig(), ["uninstall"], "").await;
        assert!(said.ok, "{said:?}");
        let started = std::time::Instant::now();
        while started.elapsed() < std::time::Duration::from_secs(4) {
            assert!(
                !cluster.exists("validatingwebhookconfiguration palisade").await,
                "no replica puts it back"
            );
        }
        cluster.must(&format!("delete namespace {ns} --wait=false")).await;

        let (_, again) = said.out.split_once("to protect again:").expect("the way back is named");
        assert!(cluster.shell(again.trim()).await.ok);
        cluster.eventually("get validatingwebhookconfiguration palisade").await;
    });
}
