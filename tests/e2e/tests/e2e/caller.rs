//! Somebody who reaches the webhook's port and is not the API server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::cluster::Cluster;

pub(crate) struct Caller {
    tls: TlsConnector,
    pub(crate) address: String,
}

impl Caller {
    /// One who trusts what the registration trusts, and shows no certificate.
    pub(crate) async fn of(cluster: &Cluster) -> Self {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
        let live = configurations.get("palisade").await.expect("the registration");
        let webhook = live.webhooks.expect("webhooks").remove(0);
        let authorities = webhook.client_config.ca_bundle.expect("a CA bundle").0;
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(&authorities) {
            roots.add(authority.expect("a certificate")).expect("a certificate authority");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let address = cluster.palisade.webhook_url().replace("https://", "");
        Self { tls: TlsConnector::from(Arc::new(config)), address }
    }

    pub(crate) async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let host = ServerName::try_from("127.0.0.1").expect("a name");
        self.tls.connect(host, TcpStream::connect(&self.address).await?).await
    }

    /// The status and the body that a review is answered with.
    pub(crate) async fn post(&self, path: &str, review: &str) -> io::Result<(u16, String)> {
        let exchange = async {
            let mut stream = self.connect().await?;
            let request = format!(
                "POST {path} HTTP/1.1\r\nHost: palisade\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{review}",
                review.len()
            );
            stream.write_all(request.as_bytes()).await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            Ok(String::from_utf8_lossy(&answer).into_owned())
        };
        let answer: io::Result<String> = tokio::time::timeout(Duration::from_secs(40), exchange).await?;
        let answer = answer?;
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
        Ok((status, body))
    }

    /// The `response` of a review that is answered.
    pub(crate) async fn ask(&self, path: &str, review: &str) -> Value {
        let (status, body) = self.post(path, review).await.expect("an answer");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Value>(&body).expect("JSON")["response"].clone()
    }
}

/// A review of a deletion, as the API server would send it.
pub(crate) fn deletion(kind: &str, resource: &str, object: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "operation": "DELETE", "dryRun": false,
        "kind": {"group": "", "version": "v1", "kind": kind},
        "resource": {"group": "", "version": "v1", "resource": resource},
        "name": object["metadata"]["name"], "namespace": object["metadata"]["namespace"].as_str().unwrap_or(""),
        "userInfo": {"username": "mallory", "groups": []}, "object": null, "oldObject": object,
    }})
}
