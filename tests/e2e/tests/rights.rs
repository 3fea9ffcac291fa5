//! What the API server saw Palisade do in a whole end-to-end run, beside what Palisade was granted.
//!
//! Every right of a named kind must have been used, or stand in [`UNUSED`] with its reason; and nothing may have been
//! asked for without a right. It needs all end-to-end tests to have run just before, so only `make test` runs it:
//!
//! ```sh
//! cargo test -p palisade-e2e --test e2e && cargo test -p palisade-e2e --test rights
//! ```

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_testkit::{SERVICE_ACCOUNT, audit_log};
use serde::Deserialize;
use serde_json::Value;

/// Rights that a run may not use, and why we have them all the same.
const UNUSED: [(&str, &str); 2] = [
    (
        "ClusterRole palisade: patch events.events.k8s.io",
        "an Event that is told again within six minutes is counted up, which depends on how quick the tests are",
    ),
    (
        "ClusterRole palisade: delete validatingwebhookconfigurations.admissionregistration.k8s.io \"palisade\"",
        "`palisade uninstall` is mostly quicker than the leader, and where our Namespace goes there is no audit log",
    ),
];

/// One verb on one kind, or on one object of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Grant {
    role: String,
    /// Where it holds: everywhere, if there is none.
    namespace: Option<String>,
    verb: String,
    group: String,
    /// `pods`, `pods/status` or `*`
    resource: String,
    name: Option<String>,
}

/// A request, without what it was about where that does not matter to a role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    verb: String,
    group: String,
    resource: String,
    namespace: String,
    name: String,
    /// Whether the API server let us: tests take rights away.
    allowed: bool,
}

impl Grant {
    fn covers(&self, asked: &Asked) -> bool {
        let is = |granted: &str, wanted: &str| granted == "*" || granted == wanted;
        self.verb == asked.verb
            && is(&self.group, &asked.group)
            && is(&self.resource, &asked.resource)
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == asked.namespace)
            && self.name.as_ref().is_none_or(|name| *name == asked.name)
    }

    fn is_for_named_kind(&self) -> bool {
        self.group != "*" && self.resource != "*"
    }
}

impl std::fmt::Display for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { role, verb, group, resource, name, .. } = self;
        write!(f, "{role}: {verb} {resource}")?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        name.as_ref().map_or(Ok(()), |name| write!(f, " \"{name}\""))
    }
}

fn target() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from)
}

/// What the manifests that we ship grant to our service account.
fn granted() -> Vec<Grant> {
    let palisade = target().join("debug/palisade");
    let output = Command::new(&palisade).args(["manifests", "-o", "json"]).output();
    let output = output.unwrap_or_else(|error| panic!("running {}: {error}", palisade.display()));
    let manifests: Value = serde_json::from_slice(&output.stdout).expect("manifests");
    let manifests = manifests["items"].as_array().expect("a list");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let words = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
    let is_ours = |subject: &Value| {
        let account =
            format!("system:serviceaccount:{}:{}", text(&subject["namespace"]), text(&subject["name"]));
        subject["kind"] == "ServiceAccount" && account == SERVICE_ACCOUNT
    };
    let mut grants = Vec::new();
    for binding in manifests.iter().filter(|object| text(&object["kind"]).ends_with("Binding")) {
        if !binding["subjects"].as_array().is_some_and(|subjects| subjects.iter().any(is_ours)) {
            continue;
        }
        let (kind, name) = (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]);
        let role =
            manifests.iter().find(|object| object["kind"] == *kind && object["metadata"]["name"] == *name);
        let rules = role.unwrap_or_else(|| panic!("no {kind} {name}"))["rules"].as_array().expect("rules");
        let namespace = binding["metadata"]["namespace"].as_str().map(str::to_owned);
        let role = format!("{} {}", text(kind), text(name));
        for rule in rules {
            let names = words(&rule["resourceNames"]);
            let names: Vec<Option<String>> =
                if names.is_empty() { vec![None] } else { names.into_iter().map(Some).collect() };
            for group in words(&rule["apiGroups"]) {
                for resource in words(&rule["resources"]) {
                    for verb in words(&rule["verbs"]) {
                        grants.extend(names.iter().map(|name| Grant {
                            role: role.clone(),
                            namespace: namespace.clone(),
                            verb: verb.clone(),
                            group: group.clone(),
                            resource: resource.clone(),
                            name: name.clone(),
                        }));
                    }
                }
            }
        }
    }
    grants
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AuditEvent {
    verb: String,
    user: AuditUser,
    object_ref: Option<AuditObject>,
    response_status: Option<AuditStatus>,
}

#[derive(Deserialize)]
struct AuditUser {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AuditObject {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct AuditStatus {
    code: Option<u16>,
}

/// What the API server was asked for by our service account, each once, and how often in all.
fn asked() -> (BTreeSet<Asked>, usize) {
    let log = audit_log(&target().join("e2e"));
    let file = File::open(&log).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; run all end-to-end tests first: cargo test -p palisade-e2e --test e2e",
            log.display()
        )
    });
    let (mut asked, mut total) = (BTreeSet::new(), 0);
    for line in BufReader::new(file).split(b'\n') {
        let line = line.expect("the audit log can be read");
        // The last line may be cut: the API server was killed.
        let Ok(event) = serde_json::from_slice::<AuditEvent>(&line) else { continue };
        let AuditEvent { verb, user, object_ref: Some(object), response_status } = event else { continue };
        assert_eq!(user.username, SERVICE_ACCOUNT, "the audit policy is for us alone");
        total += 1;
        let resource = if object.subresource.is_empty() {
            object.resource
        } else {
            format!("{}/{}", object.resource, object.subresource)
        };
        let code = response_status.and_then(|status| status.code);
        asked.insert(Asked {
            verb,
            group: object.api_group,
            resource,
            namespace: object.namespace,
            name: object.name,
            allowed: code != Some(403),
        });
    }
    (asked, total)
}

#[test]
fn every_right_is_used_and_nothing_is_asked_without_one() {
    let (granted, (asked, total)) = (granted(), asked());
    assert!(total > 10_000, "only {total} requests: the audit log is not of a whole end-to-end run");
    let reasons: BTreeSet<&str> = UNUSED.map(|(grant, _)| grant).into();
    let mut wrong = Vec::new();
    for grant in &granted {
        // Where two rules grant the same, it is the one of the kind's name that is used.
        let is_used = asked.iter().filter(|asked| asked.allowed && grant.covers(asked)).any(|asked| {
            grant.is_for_named_kind()
                || !granted.iter().any(|other| other.is_for_named_kind() && other.covers(asked))
        });
        if !is_used && !reasons.contains(&*grant.to_string()) {
            wrong.push(format!("granted and never used: {grant}"));
        }
    }
    let printed: BTreeSet<String> = granted.iter().map(ToString::to_string).collect();
    for (grant, _) in UNUSED {
        if !printed.contains(grant) {
            wrong.push(format!("has a reason, and is not granted: {grant}"));
        }
    }
    for asked in &asked {
        if !granted.iter().any(|grant| grant.covers(asked)) {
            wrong.push(format!("asked for without a right: {asked:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn a_wildcard_grants_nothing_but_lists_and_watches() {
    for grant in granted().iter().filter(|grant| !grant.is_for_named_kind()) {
        assert!(matches!(&*grant.verb, "list" | "watch"), "{grant}");
    }
}
