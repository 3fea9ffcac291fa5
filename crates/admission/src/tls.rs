//! The serving certificate, exchanged without dropping a connection, and the certificates that callers must show.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme};

/// Why a certificate cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file holds no certificate or key, or a broken one.
    #[error("reading the serving certificate: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// The key is of no kind we can sign with, or does not belong to the certificate.
    #[error("using the serving certificate: {0}")]
    Key(#[from] rustls::Error),
    /// The file with the callers' certificate authorities can't be used.
    #[error("reading the callers' certificate authorities: {0}")]
    ClientAuthorities(String),
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

    /// TLS 1.2 or newer, HTTP/1.1. With authorities of callers, one of them must vouch for whoever calls.
    pub(crate) fn config(
        self: Arc<Self>,
        callers: Option<Arc<ClientAuthorities>>,
    ) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS12, &TLS13])?;
        let builder = match callers {
            Some(callers) => builder.with_client_cert_verifier(callers),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(self);
        // Not HTTP/2, which the API server would take on a loopback address: it would hold all reviews of a
        // replica on one connection, and none would ever reach the next replica.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// The certificate authorities one of which must have signed a caller's certificate.
///
/// Whoever shows the very certificate that we serve is let in, too: all replicas share it and nobody else has its key,
/// and they ask each other whether they answer before they register.
#[derive(Debug)]
pub struct ClientAuthorities {
    verifier: ArcSwap<Arc<dyn ClientCertVerifier>>,
    own: Arc<ServingCertificate>,
}

impl ClientAuthorities {
    /// `authorities` is PEM.
    pub fn new(authorities: &str, own: Arc<ServingCertificate>) -> Result<Self, TlsError> {
        Ok(Self { verifier: ArcSwap::from_pointee(verifier(authorities)?), own })
    }

    /// Asks for certificates of others from now on. Connections that are open stay.
    pub fn replace(&self, authorities: &str) -> Result<(), TlsError> {
        self.verifier.store(Arc::new(verifier(authorities)?));
        Ok(())
    }
}

fn verifier(authorities: &str) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let wrong = |why: String| TlsError::ClientAuthorities(why);
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        let authority = authority.map_err(|error| wrong(error.to_string()))?;
        roots.add(authority).map_err(|error| wrong(error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let built = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    built.map_err(|error: VerifierBuilderError| wrong(error.to_string()))
}

impl ClientCertVerifier for ClientAuthorities {
    /// None: a caller with one certificate shows it, and the list would not outlive a change of the file.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if self.own.0.load().cert.first() == Some(end_entity) {
            return Ok(ClientCertVerified::assertion());
        }
        self.verifier.load().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.load().verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.load().verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.load().supported_verify_schemes()
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
