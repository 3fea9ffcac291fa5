//! The real router, without a socket: what comes in, and what goes out.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use palisade_admission::{Door, Metrics, Worlds, router};
use palisade_api::gates::FeatureGates;
use palisade_api::versions::{PolicyKind, PolicyVersions};
use palisade_cluster::Behind;
use palisade_engine::{
    Answer, BudgetAuthor, Census, Count, Definition, Dependents, Judged, Kind, Place, Protections, Scale,
    Search, Settings, Subject, World,
};

use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::ServiceExt;

/// A cluster in which every namespace has one pod, and some questions take for ever.
#[derive(Clone)]
struct Small;

impl Worlds for Small {
    type World = Self;
    fn until(&self, _: Instant) -> Self {
        self.clone()
    }

    async fn until_known(
        &self,
        _: &[PolicyKind],
        versions: &PolicyVersions,
        deadline: Instant,
    ) -> Result<(), Behind> {
        if versions.get(PolicyKind::Budget) > 100 {
            tokio::time::sleep_until(deadline).await;
            return Err(Behind { kind: PolicyKind::Budget, unserved: false });
        }
        if versions.get(PolicyKind::FlowControl) > 100 {
            return Err(Behind { kind: PolicyKind::FlowControl, unserved: true });
        }
        Ok(())
    }
}

static PROTECTIONS: OnceLock<Protections> = OnceLock::new();

impl World for Small {
    async fn active_pods(&self, namespace: &str) -> Answer<Census> {
        if namespace == "slow" {
            std::future::pending::<()>().await;
        }
        Ok(Census { count: Count::Exactly(1), names: vec!["web-0".to_owned()] })
    }
    async fn bound_claims(&self, _: &str) -> Answer<Census> {
        Ok(Census::NONE)
    }
    async fn instances(&self, _: &Definition) -> Answer<Census> {
        Ok(Census::NONE)
    }
    fn is_searched(&self, _: &str) -> bool {
        true
    }
    async fn scale(&self, _: &Kind<'_>) -> Answer<Option<Scale>> {
        Ok(None)
    }
    async fn mounting_pods(&self, _: &str, _: &BTreeSet<String>) -> Answer<BTreeMap<String, Census>> {
        Ok(BTreeMap::new())
    }
    async fn ready_endpoints(&self, _: &str, _: &BTreeSet<String>) -> Answer<BTreeMap<String, Census>> {
        Ok(BTreeMap::new())
    }
    async fn pods_on_node(&self, _: &str) -> Answer<Census> {
        Ok(Census::NONE)
    }
    async fn dependents(&self, _: Option<&str>, _: &BTreeSet<String>) -> Answer<Dependents> {
        Ok(Dependents::default())
    }
    fn protections(&self) -> &Protections {
        PROTECTIONS.get_or_init(Protections::default)
    }
    async fn namespace_labels(&self, _: &str) -> Answer<BTreeMap<String, String>> {
        Ok(BTreeMap::new())
    }
    async fn all_namespace_labels(&self) -> Answer<BTreeMap<String, BTreeMap<String, String>>> {
        Ok(BTreeMap::new())
    }
    async fn search(
        &self,
        _: Place<'_>,
        _: &(dyn Fn(&Subject<'_>, bool) -> Judged + Sync),
    ) -> Answer<Search> {
        Ok(Search::default())
    }
    fn note_author(&self, _: &BudgetAuthor<'_>, _: bool) -> u32 {
        0
    }
    async fn pod(&self, _: &str, name: &str) -> Answer<Option<String>> {
        let labels = json!({"policy.kruise.io/delete-protection": "Always"});
        Ok((name == "kept")
            .then(|| json!({"metadata": {"name": name, "namespace": "shop", "labels": labels}}).to_string()))
    }
}

fn service() -> (Router, Arc<Metrics>) {
    let settings = Settings { own_namespace: "palisade-system".to_owned(), gates: FeatureGates::default() };
    let metrics = Arc::new(Metrics::default());
    (router(Arc::new(Door::new(Small, settings, metrics.clone(), |_| {}))), metrics)
}

async fn send(request: Request<Body>) -> (StatusCode, String) {
    let response = service().0.oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn post(body: impl Into<Body>) -> (StatusCode, String) {
    let request = Request::post("/admit?timeout=5s").header("content-type", "application/json");
    send(request.body(body.into()).unwrap()).await
}

/// A review that is answered.
async fn ask(review: &Value) -> Value {
    let (status, body) = post(review.to_string()).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
    answer["response"].clone()
}

fn review(operation: &str, old_object: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Namespace"},
        "resource": {"group": "", "version": "v1", "resource": "namespaces"},
        "name": "shop", "operation": operation, "userInfo": {"username": "jane", "groups": ["dev"]},
        "object": null, "oldObject": old_object, "dryRun": false, "options": {"kind": "DeleteOptions"},
    }})
}

fn namespace(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {"policy.kruise.io/delete-protection": value}}})
}

fn eviction(name: &str, body: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "1", "kind": {"group": "policy", "version": "v1", "kind": "Eviction"},
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "subResource": "eviction",
        "name": name, "namespace": "shop", "operation": "CREATE", "object": body,
    }})
}

#[tokio::test]
async fn a_refusal_has_code_reason_message_causes_and_an_audit_annotation() {
    let response = ask(&review("DELETE", &namespace("shop", "Always"))).await;
    assert_eq!(
        response,
        json!({"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": false,
            "status": {"status": "Failure", "code": 403, "reason": "Forbidden",
                "message": "namespace \"shop\" is protected from deletion: \
                    label policy.kruise.io/delete-protection=Always. \
                    To lift it: kubectl label namespace shop policy.kruise.io/delete-protection-",
                "details": {"causes": [
                    {"reason": "labels", "message": "label policy.kruise.io/delete-protection=Always"}]}},
            "auditAnnotations": {"refused-by": "labels"}})
    );
}

#[tokio::test]
async fn an_allowed_review_says_nothing_else() {
    let response = ask(&review("DELETE", &json!({"metadata": {"name": "shop"}}))).await;
    assert_eq!(response, json!({"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": true}));
}

#[tokio::test]
async fn warnings_come_with_either_outcome() {
    let response = ask(&review("DELETE", &namespace("shop", "alway"))).await;
    assert_eq!((&response["allowed"], response["warnings"].as_array().unwrap().len()), (&false.into(), 1));
    let labels = json!({"policy.kruise.io/disable-cascading-deletion": "yes"});
    let mut other = review("DELETE", &json!({"metadata": {"name": "shop", "labels": labels}}));
    other["request"]["kind"]["kind"] = "ConfigMap".into();
    let response = ask(&other).await;
    assert_eq!((&response["allowed"], response["warnings"].as_array().unwrap().len()), (&true.into(), 1));
}

#[tokio::test]
async fn identity_comes_from_the_old_object() {
    let mut collection = review("DELETE", &namespace("other", "Always"));
    collection["request"]["name"] = "".into();
    let message = ask(&collection).await["status"]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("namespace \"other\" is protected"), "{message}");
}

#[rstest]
#[case::no_old_object(review("DELETE", &Value::Null), "a DELETE without oldObject")]
#[case::no_name(review("DELETE", &json!({"metadata": {}})), "no name")]
#[case::unknown_operation(review("DESTROY", &namespace("shop", "Always")), "\"DESTROY\" is not known")]
#[case::labels_of_a_wrong_type(review("DELETE", &json!({"metadata": {"name": "a", "labels": ["x"]}})), "could not be read")]
#[case::old_object_of_a_wrong_type(review("DELETE", &json!("text")), "could not be read")]
#[case::an_eviction_of_nobody(eviction("", &json!({})), "names no pod")]
#[case::an_eviction_that_is_none(eviction("kept", &json!([1])), "could not be read")]
#[tokio::test]
async fn a_review_that_makes_no_sense_is_refused(#[case] review: Value, #[case] why: &str) {
    let response = ask(&review).await;
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 400);
    assert_eq!(response["status"]["reason"], "BadRequest");
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.contains(why), "{message}");
}

#[rstest]
#[case::not_json("{", StatusCode::BAD_REQUEST, "no AdmissionReview")]
#[case::empty("", StatusCode::BAD_REQUEST, "no AdmissionReview")]
#[case::not_a_review("{}", StatusCode::BAD_REQUEST, "expected an AdmissionReview")]
#[case::no_request(
    r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#,
    StatusCode::BAD_REQUEST,
    "holds no request"
)]
#[case::another_version(
    r#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}"#,
    StatusCode::BAD_REQUEST,
    "admission.k8s.io/v1"
)]
#[case::no_uid(
    r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"operation":"DELETE"}}"#,
    StatusCode::BAD_REQUEST,
    "uid"
)]
#[case::not_utf8("\u{fffd}", StatusCode::BAD_REQUEST, "no AdmissionReview")]
#[tokio::test]
async fn a_body_that_is_no_review_is_a_client_error(
    #[case] body: &'static str,
    #[case] status: StatusCode,
    #[case] why: &str,
) {
    let (got, text) = post(body).await;
    assert_eq!(got, status);
    assert!(text.contains(why), "{text}");
}

#[tokio::test]
async fn deep_nesting_is_an_error_and_no_crash() {
    let depth = 100_000;
    let body = format!(r#"{{"request":{{"oldObject":{}{}}}}}"#, "[".repeat(depth), "]".repeat(depth));
    let (status, _) = post(body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn only_json_is_taken() {
    let body = review("DELETE", &namespace("shop", "Always")).to_string();
    for content_type in ["text/plain", "application/yaml", "application/vnd.kubernetes.protobuf", ""] {
        let request = Request::post("/admit").header("content-type", content_type);
        let (status, text) = send(request.body(Body::from(body.clone())).unwrap()).await;
        assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{text}");
    }
    let request = Request::post("/admit").body(Body::from(body.clone())).unwrap();
    assert_eq!(send(request).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let request = Request::post("/admit").header("content-type", "application/json; charset=utf-8");
    assert_eq!(send(request.body(Body::from(body)).unwrap()).await.0, StatusCode::OK);
}

#[tokio::test]
async fn bodies_end_at_8_mib_declared_or_not() {
    let mut large = review("DELETE", &namespace("shop", "Always"));
    large["request"]["oldObject"]["data"] = "x".repeat(7 << 20).into();
    assert_eq!(ask(&large).await["status"]["code"], 403);
    large["request"]["oldObject"]["data"] = "x".repeat(9 << 20).into();
    let (status, text) = post(large.to_string()).await;
    assert_eq!((status, text.as_str()), (StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 8 MiB"));
    let declared = Request::post("/admit")
        .header("content-type", "application/json")
        .header("content-length", "9000000");
    assert_eq!(send(declared.body(Body::empty()).unwrap()).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn other_paths_and_methods_are_not_there() {
    let get = Request::get("/admit").body(Body::empty()).unwrap();
    assert_eq!(send(get).await.0, StatusCode::METHOD_NOT_ALLOWED);
    let elsewhere = Request::post("/metrics").body(Body::empty()).unwrap();
    assert_eq!(send(elsewhere).await.0, StatusCode::NOT_FOUND);
}

#[rstest]
#[case("timeout=abc", StatusCode::BAD_REQUEST)]
#[case("timeout=0s", StatusCode::BAD_REQUEST)]
#[case("timeout=-1s", StatusCode::BAD_REQUEST)]
#[case("timeout=", StatusCode::BAD_REQUEST)]
#[case("timeout=10s", StatusCode::OK)]
#[case("timeout=99999s", StatusCode::OK)]
#[case("other=1", StatusCode::OK)]
#[tokio::test]
async fn timeouts(#[case] query: &str, #[case] status: StatusCode) {
    let body = review("DELETE", &namespace("shop", "Always")).to_string();
    let request = Request::post(format!("/admit?{query}")).header("content-type", "application/json");
    assert_eq!(send(request.body(Body::from(body)).unwrap()).await.0, status);
}

#[tokio::test(start_paused = true)]
async fn a_question_without_an_answer_is_refused_before_the_caller_gives_up() {
    for (query, patience) in [("?timeout=2s", 2), ("?timeout=600s", 30), ("", 10)] {
        let started = Instant::now();
        let body = review("DELETE", &namespace("slow", "Cascading")).to_string();
        let request = Request::post(format!("/admit{query}")).header("content-type", "application/json");
        let (status, text) = send(request.body(Body::from(body)).unwrap()).await;
        assert_eq!(status, StatusCode::OK);
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["response"]["allowed"], false);
        assert_eq!(answer["response"]["status"]["code"], 503);
        assert_eq!(answer["response"]["status"]["reason"], "ServiceUnavailable");
        let took = started.elapsed();
        assert!(took < Duration::from_secs(patience) && took > Duration::from_secs(patience) / 2, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_given_up() {
    let never = Body::new(http_body_util::StreamBody::new(NeverReady));
    let (status, text) = post(never).await;
    assert_eq!((status, text.as_str()), (StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"));
}

struct NeverReady;

impl futures_core::Stream for NeverReady {
    type Item = Result<http_body::Frame<axum::body::Bytes>, std::io::Error>;
    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Pending
    }
}

#[tokio::test]
async fn evictions_are_judged_by_the_pod() {
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "kept", "namespace": "shop"}});
    let response = ask(&eviction("kept", &body)).await;
    assert_eq!((&response["allowed"], &response["status"]["code"]), (&false.into(), &403.into()));
    assert_eq!(ask(&eviction("", &body)).await["status"]["code"], 403, "the body names the pod as well");
    assert_eq!(ask(&eviction("gone", &body)).await["allowed"], true);
}

#[rstest]
#[case("CREATE")]
#[case("UPDATE")]
#[case("CONNECT")]
#[tokio::test]
async fn operations_that_delete_nothing_are_allowed(#[case] operation: &str) {
    let mut review = review(operation, &namespace("shop", "Always"));
    review["request"]["object"] = namespace("shop", "");
    assert_eq!(ask(&review).await["allowed"], true);
}

#[tokio::test]
async fn what_happens_is_counted() {
    let (router, metrics) = service();
    for (body, times) in [
        (review("DELETE", &namespace("shop", "Always")).to_string(), 2),
        (review("DELETE", &json!({"metadata": {"name": "shop"}})).to_string(), 1),
        ("nonsense".to_owned(), 1),
    ] {
        for _ in 0..times {
            let request = Request::post("/admit").header("content-type", "application/json");
            router.clone().oneshot(request.body(Body::from(body.clone())).unwrap()).await.unwrap();
        }
    }
    let text = metrics.text();
    for line in [
        r#"palisade_reviews_total{outcome="refused"} 2"#,
        r#"palisade_reviews_total{outcome="allowed"} 1"#,
        r#"palisade_refusals_total{guard="labels",code="403"} 2"#,
        r#"palisade_rejected_requests_total{why="unreadable"} 1"#,
        "palisade_review_duration_seconds_count 3",
    ] {
        assert!(text.lines().any(|each| each == line), "{line} is not in {text}");
    }
}

#[rstest]
#[case::name(&["oldObject", "metadata", "name"], 1_024)]
#[case::namespace(&["oldObject", "metadata", "namespace"], 63)]
#[case::uid(&["oldObject", "metadata", "uid"], 128)]
#[case::resource_version(&["oldObject", "metadata", "resourceVersion"], 128)]
#[case::user(&["userInfo", "username"], 1_024)]
#[tokio::test]
async fn what_is_longer_than_it_can_be_is_malformed(#[case] path: &[&str], #[case] longest: usize) {
    for (length, code) in [(longest, 403), (longest + 1, 400)] {
        let mut review = review("DELETE", &namespace("shop", "Always"));
        let mut place = &mut review["request"];
        for key in path {
            place = &mut place[*key];
        }
        *place = "x".repeat(length).into();
        assert_eq!(ask(&review).await["status"]["code"], code, "{path:?} of {length}");
    }
}

#[tokio::test]
async fn a_uid_that_is_longer_than_it_can_be_is_not_answered() {
    let mut review = review("DELETE", &namespace("shop", "Always"));
    review["request"]["uid"] = "x".repeat(129).into();
    assert_eq!(post(review.to_string()).await.0, StatusCode::BAD_REQUEST);
}

#[rstest]
#[case::removed(json!({}), Some("label policy.kruise.io/delete-protection=Always was removed"))]
#[case::weakened(
    json!({"policy.kruise.io/delete-protection": "Cascading"}),
    Some("label policy.kruise.io/delete-protection=Always was changed to \"Cascading\"")
)]
#[case::kept(json!({"policy.kruise.io/delete-protection": "Always", "app": "web"}), None)]
#[case::as_strong(json!({"policy.kruise.io/delete-protection": "sure"}), None)]
#[tokio::test]
async fn a_protection_that_an_update_lifts_is_told_to_the_audit_log(
    #[case] labels: Value,
    #[case] expected: Option<&str>,
) {
    let mut review = review("UPDATE", &namespace("shop", "Always"));
    review["request"]["object"] = json!({"metadata": {"name": "shop", "labels": labels}});
    let response = ask(&review).await;
    assert_eq!(response["allowed"], true);
    assert_eq!(response["auditAnnotations"]["lifted-protection"].as_str(), expected, "{response}");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_knows_older_policies_than_it_is_asked_by_answers_503() {
    let ask = async |path: &str| {
        let request = Request::post(format!("{path}?timeout=5s")).header("content-type", "application/json");
        let body = Body::from(review("CREATE", &Value::Null).to_string());
        let (status, body) = send(request.body(body).unwrap()).await;
        (status, serde_json::from_str::<Value>(&body).unwrap_or_default()["response"].clone())
    };
    for path in
        ["/admit", "/admit/labels", "/admit/budgets/at/budgets-100", "/admit/cascade/at/critical-9.flow-7"]
    {
        let (status, answer) = ask(path).await;
        assert_eq!((status, &answer["allowed"]), (StatusCode::OK, &json!(true)), "{path}");
    }
    let started = Instant::now();
    let (_, answer) = ask("/admit/budgets/at/budgets-101").await;
    assert_eq!((&answer["allowed"], &answer["status"]["code"]), (&json!(false), &json!(503)), "{answer}");
    let message = answer["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("has not seen the newest policies of the kind PodUnavailableBudget"),
        "{message}"
    );
    assert!(started.elapsed() < Duration::from_secs(5), "before the API server gives up");
    let (_, answer) = ask("/admit/flow/at/flow-101").await;
    let message = answer["status"]["message"].as_str().unwrap();
    assert!(message.contains("kubectl edit customresourcedefinition poddeletionflowcontrols."), "{message}");
    for path in [
        "/admit/budgets/at",
        "/admit/budgets/at/",
        "/admit/budgets/at/nobody-1",
        "/admit/budgets/at/budgets-x",
    ] {
        assert_eq!(ask(path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_path_that_only_warns_never_refuses() {
    let ask = async |path: &str, review: &Value| {
        let request = Request::post(format!("{path}?timeout=5s")).header("content-type", "application/json");
        let (status, body) = send(request.body(Body::from(review.to_string())).unwrap()).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        serde_json::from_str::<Value>(&body).unwrap()["response"].clone()
    };
    let off = "/admit/disabled/resourcesdeletionprotection";
    let answer = ask(off, &review("DELETE", &namespace("shop", "Always"))).await;
    assert_eq!(answer["allowed"], true, "{answer}");
    let warnings = answer["warnings"].as_array().unwrap();
    assert!(warnings[0].as_str().unwrap().contains("ResourcesDeletionProtection is off"), "{answer}");
    // Neither what can't be decided nor a replica that is behind holds anything up.
    for path in [off, "/admit/advice"] {
        assert_eq!(ask(path, &review("DELETE", &Value::Null)).await["allowed"], true, "{path}");
        assert_eq!(ask(path, &review("NONSENSE", &Value::Null)).await["allowed"], true, "{path}");
        let behind = format!("{path}/at/budgets-101.flow-101");
        assert_eq!(ask(&behind, &review("CREATE", &Value::Null)).await["allowed"], true, "{path}");
    }
    assert_eq!(ask("/admit/labels", &review("DELETE", &Value::Null)).await["allowed"], false);
    for path in ["/admit/disabled", "/admit/disabled/nothing"] {
        let request = Request::post(path).header("content-type", "application/json").body(Body::empty());
        assert_eq!(send(request.unwrap()).await.0, StatusCode::NOT_FOUND, "{path}");
    }
}
