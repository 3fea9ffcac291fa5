//! The certificates of a control plane that lives for an hour.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use crate::TestkitError;

/// A certificate authority and the folder its files go to.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
    name: String,
}

/// A certificate and its key, as files.
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new(folder: &Path, name: &str) -> Result<Self, TestkitError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let authority = Self { issuer, folder: folder.to_owned(), name: name.to_owned() };
        write(&authority.certificate(), &authority.issuer.pem())?;
        Ok(authority)
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.folder.join(format!("{}.crt", self.name))
    }

    /// A certificate for a client, whose user name and groups it holds: two of them at most.
    pub(crate) fn client(&self, user: &str, groups: &[&str]) -> Result<Identity, TestkitError> {
        /// A name holds an attribute once. Under its number it is another.
        const ORGANIZATION: &[u64] = &[2, 5, 4, 10];
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        let attributes = [DnType::OrganizationName, DnType::CustomDnType(ORGANIZATION.to_vec())];
        for (attribute, &group) in attributes.into_iter().zip(groups) {
            params.distinguished_name.push(attribute, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(&params, &user.replace([':', '/'], "-"))
    }

    /// A certificate for a server on loopback.
    pub(crate) fn server(&self, name: &str) -> Result<Identity, TestkitError> {
        let names = ["127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc"].map(str::to_owned);
        let mut params = CertificateParams::new(names)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(&params, name)
    }

    fn issue(&self, params: &CertificateParams, name: &str) -> Result<Identity, TestkitError> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let identity = Identity {
            certificate: self.folder.join(format!("{name}.crt")),
            key: self.folder.join(format!("{name}.key")),
        };
        write(&identity.certificate, &certificate.pem())?;
        write(&identity.key, &key.serialize_pem())?;
        Ok(identity)
    }
}

/// The key that signs service account tokens, as `service-accounts.key` and `service-accounts.pub`.
pub(crate) fn signing_key(folder: &Path) -> Result<(), TestkitError> {
    let key = KeyPair::generate()?;
    write(&folder.join("service-accounts.key"), &key.serialize_pem())?;
    write(&folder.join("service-accounts.pub"), &key.public_key_pem())
}

fn write(path: &Path, text: &str) -> Result<(), TestkitError> {
    std::fs::write(path, text).map_err(TestkitError::io(format!("writing {}", path.display())))
}
