//! The serving certificate, exchanged without dropping a connection.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};

/// Why a certificate cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file holds no certificate or key, or a broken one.
    #[error("reading the serving certificate: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// The key is of no kind we can sign with, or does not belong to the certificate.
    #[error("using the serving certificate: {0}")]
    Key(#[from] rustls::Error),
}

/// The certificate that new connections are served with.
#[derive(Debug)]
pub struct ServingCertificate(ArcSwap<CertifiedKey>);

impl ServingCertificate {
    pub fn new(certificate: &str, key: &str) -> Result<Self, TlsError> {
        Ok(Self(ArcSwap::from_pointee(certified(certificate, key)?)))
    }

    /// Serves another one from now on. Connections that are open keep theirs.
    pub fn replace(&self, certificate: &str, key: &str) -> Result<(), TlsError> {
        self.0.store(Arc::new(certified(certificate, key)?));
        Ok(())
    }

    /// TLS 1.2 or newer, HTTP/1.1.
    pub(crate) fn config(self: Arc<Self>) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS12, &TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(self);
        // Not HTTP/2, which the API server would take on a loopback address: it would hold all reviews of a
        // replica on one connection, and none would ever reach the next replica.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

fn certified(certificate: &str, key: &str) -> Result<CertifiedKey, TlsError> {
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = any_supported_type(&PrivateKeyDer::from_pem_slice(key.as_bytes())?)?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match()?;
    Ok(certified)
}
