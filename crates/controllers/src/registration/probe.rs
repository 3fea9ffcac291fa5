//! Can the server answer, the way the API server will ask?

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::certificates::Material;

/// A review of something that no guard minds.
const REVIEW: &str = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"probe","kind":{"group":"","version":"v1","kind":"ConfigMap"},"resource":{"group":"","version":"v1","resource":"configmaps"},"operation":"CREATE","dryRun":true}}"#;

/// Whom to ask, and by what name it must be vouched for.
#[derive(Clone, Debug)]
pub struct Probe {
    /// `host:port`
    pub address: String,
    pub host: String,
}

impl Probe {
    /// Sends a review over TLS, trusting only our own authorities, and expects it to be allowed. Where callers must show
    /// a certificate, the one that we serve is good for it.
    pub(super) async fn ask(&self, material: &Material) -> io::Result<()> {
        timeout(Duration::from_secs(5), self.converse(material)).await?
    }

    async fn converse(&self, material: &Material) -> io::Result<()> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(material.authorities.as_bytes()) {
            roots.add(authority.map_err(io::Error::other)?).map_err(io::Error::other)?;
        }
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(material.certificate.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(material.key.as_bytes()).map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain.map_err(io::Error::other)?, key)
            .map_err(io::Error::other)?;
        let host = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        let stream = TcpStream::connect(&self.address).await?;
        let mut stream = TlsConnector::from(Arc::new(config)).connect(host, stream).await?;
        let request = format!(
            "POST /admit/labels?timeout=5s HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{REVIEW}",
            self.host,
            REVIEW.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer);
        if answer.starts_with("HTTP/1.1 200") && answer.contains(r#""allowed":true"#) {
            return Ok(());
        }
        let status = answer.lines().next().unwrap_or_default();
        Err(io::Error::other(format!("it answered \"{status}\" to a review that it should allow")))
    }
}
