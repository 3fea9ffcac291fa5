//! What the Secret should hold next.
//!
//! | when | then |
//! | --- | --- |
//! | it holds nothing that can be used | everything anew |
//! | the authority has less than a year left | a new authority beside the old one, which still vouches for what we serve |
//! | the authority has been known for [`OVERLAP`], and what we serve is by an older one | a new serving certificate |
//! | the serving certificate has less than a third left, or lacks a host | a new serving certificate |
//! | the serving certificate has been in use for [`OVERLAP`], and there are older authorities | they are dropped |
//!
//! So at every moment the published authorities vouch for both the certificate that a replica serves now and
//! the one it serves next.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData,
};
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;
use x509_parser::prelude::X509Certificate;

const DAY: SignedDuration = SignedDuration::from_hours(24);
const AUTHORITY_LASTS: SignedDuration = SignedDuration::from_hours(24 * 3650);
const AUTHORITY_RENEWED: SignedDuration = SignedDuration::from_hours(24 * 365);
const SERVING_LASTS: SignedDuration = SignedDuration::from_hours(24 * 365);
const SERVING_RENEWED: SignedDuration = SignedDuration::from_hours(24 * 120);
/// For callers whose clock is behind ours.
const BACKDATED: SignedDuration = SignedDuration::from_hours(1);
/// Long enough for every API server and replica to have seen a change.
const OVERLAP: SignedDuration = SignedDuration::from_hours(2);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The API server could not be asked, or did not take our write.
    #[error("the Secret: {0}")]
    Api(#[from] Box<kube::Error>),
    /// There is no Secret (yet).
    #[error("there is no Secret {}", palisade_api::names::TLS_SECRET)]
    Missing,
    /// The Secret lacks an entry, or holds one that is no certificate or key.
    #[error("the Secret's {0} cannot be used")]
    Unusable(&'static str),
    /// A certificate could not be made.
    #[error("making a certificate: {0}")]
    Making(#[from] rcgen::Error),
}

/// What the Secret holds, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Material {
    /// The authorities, the newest last.
    pub authorities: String,
    /// The newest authority's key.
    authority_key: String,
    pub certificate: String,
    pub key: String,
}

impl Material {
    pub(super) fn from_secret(secret: &Secret) -> Result<Self, CertificateError> {
        let entry = |name: &'static str| {
            let bytes = secret.data.as_ref().and_then(|data| data.get(name));
            bytes
                .and_then(|ByteString(bytes)| String::from_utf8(bytes.clone()).ok())
                .ok_or(CertificateError::Unusable(name))
        };
        let material = Self {
            authorities: entry("ca.crt")?,
            authority_key: entry("ca.key")?,
            certificate: entry("tls.crt")?,
            key: entry("tls.key")?,
        };
        material.inspect()?;
        Ok(material)
    }

    pub(super) fn write_to(&self, secret: &mut Secret) {
        let Self { authorities, authority_key, certificate, key } = self;
        let data = secret.data.get_or_insert_default();
        for (name, text) in
            [("ca.crt", authorities), ("ca.key", authority_key), ("tls.crt", certificate), ("tls.key", key)]
        {
            data.insert(name.to_owned(), ByteString(text.clone().into_bytes()));
        }
    }

    /// When the serving certificate ends.
    pub fn expiry(&self) -> Option<Timestamp> {
        self.inspect().ok().map(|(_, serving)| serving.ends)
    }

    fn inspect(&self) -> Result<(Vec<Inspected>, Inspected), CertificateError> {
        let authorities = inspect(&self.authorities).ok_or(CertificateError::Unusable("ca.crt"))?;
        let serving = inspect(&self.certificate).ok_or(CertificateError::Unusable("tls.crt"))?;
        let serving = serving.into_iter().next().ok_or(CertificateError::Unusable("tls.crt"))?;
        let fits = |key: &str, certificate: &Inspected| {
            KeyPair::from_pem(key).is_ok_and(|key| key.subject_public_key_info() == certificate.public_key)
        };
        let newest = authorities.last().ok_or(CertificateError::Unusable("ca.crt"))?;
        if !fits(&self.authority_key, newest) {
            return Err(CertificateError::Unusable("ca.key"));
        }
        if !fits(&self.key, &serving) {
            return Err(CertificateError::Unusable("tls.key"));
        }
        Ok((authorities, serving))
    }
}

/// What decides about a certificate.
struct Inspected {
    pem: String,
    subject: String,
    issuer: String,
    begins: Timestamp,
    ends: Timestamp,
    hosts: Vec<String>,
    public_key: Vec<u8>,
}

fn inspect(pem: &str) -> Option<Vec<Inspected>> {
    Pem::iter_from_buffer(pem.as_bytes())
        .map(|block| {
            let block = block.ok()?;
            let certificate = block.parse_x509().ok()?;
            Some(Inspected {
                pem: pem::encode(&pem::Pem::new("CERTIFICATE", block.contents.clone())),
                subject: certificate.subject().to_string(),
                issuer: certificate.issuer().to_string(),
                begins: Timestamp::from_second(certificate.validity().not_before.timestamp()).ok()?,
                ends: Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?,
                hosts: hosts(&certificate),
                public_key: certificate.public_key().raw.to_vec(),
            })
        })
        .collect()
}

fn hosts(certificate: &X509Certificate<'_>) -> Vec<String> {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress([a, b, c, d]) => Some(std::net::Ipv4Addr::new(*a, *b, *c, *d).to_string()),
            GeneralName::IPAddress(bytes) => {
                <[u8; 16]>::try_from(*bytes).ok().map(|bytes| std::net::Ipv6Addr::from(bytes).to_string())
            }
            _ => None,
        })
        .collect()
}

/// The material to hold from `now` on; the same as `held` where that is good.
pub(super) fn next(
    held: Option<&Material>,
    wanted: &[String],
    now: Timestamp,
) -> Result<Material, CertificateError> {
    let Some((held, (authorities, serving))) = held.and_then(|held| Some((held, held.inspect().ok()?)))
    else {
        return everything(wanted, now);
    };
    let Some(newest) = authorities.last().filter(|newest| newest.ends > now) else {
        return everything(wanted, now);
    };
    if newest.ends < now + AUTHORITY_RENEWED {
        let (certificate, key) = authority(now)?;
        let authorities = held.authorities.clone() + &certificate;
        return Ok(Material { authorities, authority_key: key.serialize_pem(), ..held.clone() });
    }
    let by_newest = serving.issuer == newest.subject;
    let lacks_host = wanted.iter().any(|host| !serving.hosts.contains(host));
    // An authority that nobody else vouches for needs no overlap.
    let known = newest.begins + BACKDATED + OVERLAP <= now || authorities.len() == 1;
    if serving.ends < now + DAY
        || lacks_host
        || (known && (!by_newest || serving.ends < now + SERVING_RENEWED))
    {
        let issuer = KeyPair::from_pem(&held.authority_key)?;
        let issuer = Issuer::from_ca_cert_pem(&newest.pem, issuer)?;
        let (certificate, key) = serving_certificate(&issuer, wanted, now)?;
        return Ok(Material { certificate, key, ..held.clone() });
    }
    if by_newest && authorities.len() > 1 && serving.begins + BACKDATED + OVERLAP <= now {
        return Ok(Material { authorities: newest.pem.clone(), ..held.clone() });
    }
    Ok(held.clone())
}

fn everything(hosts: &[String], now: Timestamp) -> Result<Material, CertificateError> {
    let (authorities, key) = authority(now)?;
    let authority_key = key.serialize_pem();
    let issuer = Issuer::from_ca_cert_pem(&authorities, key)?;
    let (certificate, key) = serving_certificate(&issuer, hosts, now)?;
    Ok(Material { authorities, authority_key, certificate, key })
}

fn authority(now: Timestamp) -> Result<(String, KeyPair), CertificateError> {
    let mut params = CertificateParams::default();
    // A name of its own, by which a certificate tells which authority it is from.
    params.distinguished_name.push(DnType::CommonName, format!("palisade-ca {now}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    lasts(&mut params, now, AUTHORITY_LASTS);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    Ok((issuer.pem(), KeyPair::from_pem(&issuer.key().serialize_pem())?))
}

fn lasts(params: &mut CertificateParams, now: Timestamp, time: SignedDuration) {
    let seconds = |moment: Timestamp| OffsetDateTime::from_unix_timestamp(moment.as_second());
    // Both fail only beyond the year 9999, where rcgen's own defaults are as good.
    if let (Ok(begins), Ok(ends)) = (seconds(now - BACKDATED), seconds(now + time)) {
        (params.not_before, params.not_after) = (begins, ends);
    }
}

fn serving_certificate(
    issuer: &Issuer<'_, KeyPair>,
    hosts: &[String],
    now: Timestamp,
) -> Result<(String, String), CertificateError> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name.push(DnType::CommonName, "palisade");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    lasts(&mut params, now, SERVING_LASTS);
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Vec<String> {
        vec!["127.0.0.1".to_owned(), "palisade.palisade-system.svc".to_owned()]
    }

    fn start() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn fresh() -> Material {
        next(None, &hosts(), start()).unwrap()
    }

    /// Whether what is served could be verified by whoever trusts `published`.
    fn vouched(published: &Material, served: &Material) -> bool {
        let (_, serving) = served.inspect().unwrap();
        published.inspect().unwrap().0.iter().any(|authority| authority.subject == serving.issuer)
    }

    #[test]
    fn fresh_material_is_good_and_kept() {
        let material = fresh();
        let (authorities, serving) = material.inspect().unwrap();
        assert_eq!(authorities.len(), 1);
        assert_eq!(serving.hosts, hosts());
        assert_eq!(next(Some(&material), &hosts(), start() + DAY * 200).unwrap(), material);
    }

    #[test]
    fn it_survives_the_secret() {
        let material = fresh();
        let mut secret = Secret::default();
        material.write_to(&mut secret);
        assert_eq!(Material::from_secret(&secret).unwrap(), material);
    }

    #[test]
    fn a_secret_with_a_broken_or_foreign_entry_cannot_be_used() {
        for entry in ["ca.crt", "ca.key", "tls.crt", "tls.key"] {
            let mut secret = Secret::default();
            fresh().write_to(&mut secret);
            secret.data.as_mut().unwrap().insert(entry.to_owned(), ByteString(b"nonsense".to_vec()));
            assert!(Material::from_secret(&secret).is_err(), "{entry} broken");
            secret.data.as_mut().unwrap().remove(entry);
            assert!(Material::from_secret(&secret).is_err(), "{entry} missing");
        }
        let mut secret = Secret::default();
        fresh().write_to(&mut secret);
        let other = ByteString(fresh().key.into_bytes());
        secret.data.as_mut().unwrap().insert("tls.key".to_owned(), other);
        assert!(Material::from_secret(&secret).is_err(), "a key of another certificate");
    }

    #[test]
    fn a_serving_certificate_is_renewed_in_time_by_the_same_authority() {
        let old = fresh();
        let new = next(Some(&old), &hosts(), start() + DAY * 250).unwrap();
        assert_ne!(new.certificate, old.certificate);
        assert_eq!(new.authorities, old.authorities);
        assert!(vouched(&old, &new));
    }

    #[test]
    fn a_new_host_needs_a_new_serving_certificate() {
        let old = fresh();
        let hosts = vec!["10.0.0.7".to_owned(), "fd00::1".to_owned()];
        let new = next(Some(&old), &hosts, start()).unwrap();
        assert_eq!(new.inspect().unwrap().1.hosts, hosts);
        assert_eq!(new.authorities, old.authorities);
        assert_eq!(next(Some(&new), &hosts, start()).unwrap(), new);
    }

    #[test]
    fn authorities_overlap_when_they_change() {
        let mut now = start();
        let mut held = fresh();
        let mut steps = 0;
        let mut authorities = std::collections::BTreeSet::new();
        while now < start() + AUTHORITY_LASTS * 3 {
            let new = next(Some(&held), &hosts(), now).unwrap();
            if new != held {
                steps += 1;
                // A replica may still serve the old certificate, or the API server still trust the old bundle.
                assert!(vouched(&new, &held), "old certificate, new bundle at {now}");
                assert!(vouched(&held, &new), "new certificate, old bundle at {now}");
            }
            let (known, serving) = new.inspect().unwrap();
            assert!(serving.ends > now && known.iter().any(|authority| authority.ends > now));
            assert!(known.len() <= 2);
            authorities.extend(known.into_iter().map(|authority| authority.subject));
            held = new;
            now += SignedDuration::from_hours(31);
        }
        assert!(authorities.len() > 3, "the authority was renewed");
        assert!(steps < 200, "and nothing was written for nothing: {steps}");
    }

    #[test]
    fn expired_material_is_made_anew() {
        let old = fresh();
        let new = next(Some(&old), &hosts(), start() + AUTHORITY_LASTS + DAY).unwrap();
        assert_ne!(new.authorities, old.authorities);
        assert_eq!(new.inspect().unwrap().0.len(), 1);
    }
}
