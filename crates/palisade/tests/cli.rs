//! Whole commands, without a cluster.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use assert_cmd::Command;

fn palisade(args: &[&str]) -> (bool, String, String) {
    let output =
        Command::cargo_bin("palisade").unwrap().args(args).env("KUBECONFIG", "/nowhere").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn an_unknown_feature_gate_is_an_error_that_lists_the_known_ones() {
    for flag in [
        ["--feature-gates", "Nonsense=true"],
        ["--feature-gates=ResourcesDeletionProtection=true,Nonsense=false", "--log=info"],
    ] {
        let (ok, _, err) = palisade(&[&["run"], &flag[..]].concat());
        assert!(!ok);
        assert!(err.contains("there is no feature gate \"Nonsense\""), "{err}");
        assert!(err.contains("ResourcesDeletionProtection=true|false"), "{err}");
    }
}

#[test]
fn a_feature_gate_without_a_boolean_is_an_error() {
    let (ok, _, err) = palisade(&["run", "--feature-gates", "ResourcesDeletionProtection"]);
    assert!(!ok);
    assert!(err.contains("is not of the form Name=true or Name=false"), "{err}");
}

#[test]
fn a_webhook_url_that_the_api_server_would_not_take_is_an_error() {
    let (ok, _, err) = palisade(&["run", "--webhook-url", "http://127.0.0.1:9443"]);
    assert!(!ok);
    assert!(err.contains("over https only"), "{err}");
}

#[test]
fn a_kubeconfig_that_is_not_there_is_named() {
    for args in [
        ["run", "--kubeconfig=/nowhere/kubeconfig", "--log=info"],
        ["uninstall", "--kubeconfig=/nowhere/kubeconfig", "--namespace=x"],
    ] {
        let (ok, _, err) = palisade(&args);
        assert!(!ok && err.starts_with("palisade: reading /nowhere/kubeconfig: "), "{err}");
    }
}

#[test]
fn every_command_explains_itself() {
    for command in ["run", "why", "manifests", "uninstall", "resume"] {
        let (ok, out, _) = palisade(&[command, "--help"]);
        assert!(ok && out.contains("Usage: palisade"), "{out}");
    }
}

#[test]
fn manifests_take_another_namespace() {
    let (ok, out, _) = palisade(&["manifests", "--namespace", "elsewhere"]);
    assert!(ok);
    assert!(out.contains("name: elsewhere") && !out.contains("palisade-system"), "{out}");
    let (ok, out, _) = palisade(&["manifests", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(ok && list["kind"] == "List" && list["items"].as_array().unwrap().len() > 5);
}
