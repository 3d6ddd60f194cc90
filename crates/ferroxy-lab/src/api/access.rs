//! Authentication and TLS: certificates, tokens, and their renewal while the server runs. `kubeconfig` writes them for
//! clients.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio_rustls::rustls;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// The credentials that a client must present.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    #[default]
    Open,
    /// A bearer token.
    Token,
    /// A certificate of ours. Needs TLS.
    ClientCertificate,
}

/// A certificate cannot be created or used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("use a certificate: {0}")]
    Use(#[from] rustls::Error),
    #[error("accept client certificates: {0}")]
    Clients(#[from] rustls::server::VerifierBuilderError),
}

/// A certificate with its key.
pub(super) struct Identity {
    pub certificate: String,
    pub key: String,
    certificate_der: CertificateDer<'static>,
    key_der: Vec<u8>,
}

/// Signs certificates.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub certificate: String,
    pub certificate_der: CertificateDer<'static>,
}

/// The certificates of the server, and the credentials that are valid now.
pub(super) struct Doors {
    access: Access,
    /// The server's address, for its certificates.
    address: IpAddr,
    authority: Authority,
    /// A separate authority, so that client certificates stay valid if the server's authority is replaced.
    client_authority: Authority,
    tls: Option<Arc<ServerConfig>>,
    token: String,
    tokens: HashSet<String>,
    client: Identity,
    clients: HashSet<Vec<u8>>,
    issued: usize,
}

impl Doors {
    pub fn new(access: Access, tls: bool, address: IpAddr) -> Result<Doors, CertificateError> {
        let client_authority = Authority::new("ferroxy-lab clients")?;
        let client = client_authority.client_certificate(0)?;
        let mut doors = Doors {
            access,
            address,
            authority: Authority::new("ferroxy-lab 0")?,
            client_authority,
            tls: None,
            token: token(0),
            tokens: HashSet::from([token(0)]),
            clients: HashSet::from([client.certificate_der.to_vec()]),
            client,
            issued: 0,
        };
        if tls {
            doors.renew_server_certificate()?;
        }
        Ok(doors)
    }

    pub fn admits(&self, token: Option<&str>, certificate: Option<&[u8]>) -> bool {
        match self.access {
            Access::Open => true,
            Access::Token => token.is_some_and(|token| self.tokens.contains(token)),
            Access::ClientCertificate => certificate.is_some_and(|der| self.clients.contains(der)),
        }
    }

    /// The TLS configuration for new connections. None without TLS.
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.clone()
    }

    /// The certificate of the authority that has signed the server's certificate.
    pub fn authority_certificate(&self) -> &str {
        &self.authority.certificate
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn client(&self) -> &Identity {
        &self.client
    }

    /// A new token and a new client certificate. The old ones stay valid.
    pub fn renew_credentials(&mut self) -> Result<(), CertificateError> {
        self.issued += 1;
        self.token = token(self.issued);
        self.tokens.insert(self.token.clone());
        self.client = self.client_authority.client_certificate(self.issued)?;
        self.clients.insert(self.client.certificate_der.to_vec());
        Ok(())
    }

    /// Revokes all tokens and client certificates except the newest.
    pub fn revoke_old_credentials(&mut self) {
        self.tokens.retain(|token| *token == self.token);
        self.clients.retain(|der| **der == *self.client.certificate_der);
    }

    /// A new certificate of the same authority. Also drops TLS sessions, which clients could resume without checking the
    /// certificate.
    pub fn renew_server_certificate(&mut self) -> Result<(), CertificateError> {
        let server = self.authority.server_certificate(self.address)?;
        let mut roots = RootCertStore::empty();
        roots.add(self.client_authority.certificate_der.clone())?;
        let provider = Arc::new(ring::default_provider());
        // Optional, as in API servers: a client without a certificate gets the answer 401.
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![server.certificate_der.clone()], server.key_der())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        self.tls = Some(Arc::new(config));
        Ok(())
    }

    /// A new authority and server certificate: clients need a new kubeconfig.
    pub fn renew_authority(&mut self) -> Result<(), CertificateError> {
        self.issued += 1;
        self.authority = Authority::new(&format!("ferroxy-lab {}", self.issued))?;
        self.renew_server_certificate()
    }
}

impl Authority {
    pub fn new(name: &str) -> Result<Authority, CertificateError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        let (pem, der) = (certificate.pem(), certificate.der().clone());
        Ok(Authority { issuer: Issuer::new(params, key), certificate: pem, certificate_der: der })
    }

    pub fn server_certificate(&self, address: IpAddr) -> Result<Identity, CertificateError> {
        let params = CertificateParams::new(server_names(address))?;
        self.sign(params, "kube-apiserver", ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for the user of kube-proxy. The number makes each certificate different.
    pub fn client_certificate(&self, number: usize) -> Result<Identity, CertificateError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::OrganizationName, format!("issue {number}"));
        self.sign(params, "system:kube-proxy", ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        name: &str,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Identity, CertificateError> {
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            certificate_der: certificate.der().clone(),
            key_der: key.serialize_der(),
        })
    }
}

impl Identity {
    fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key_der.clone()))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

fn token(number: usize) -> String {
    format!("ferroxy-lab-token-{number}")
}

/// The names in the server certificate: its address, loopback, and the names and the cluster IP that pods use.
fn server_names(address: IpAddr) -> Vec<String> {
    let known = ["localhost", "127.0.0.1", "::1", "10.96.0.1", "kubernetes", "kubernetes.default.svc"];
    let mut names: Vec<String> = known.map(str::to_owned).into();
    if !names.contains(&address.to_string()) {
        names.push(address.to_string());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doors(access: Access) -> Doors {
        Doors::new(access, true, [127, 0, 0, 1].into()).unwrap()
    }

    #[test]
    fn old_credentials_are_good_until_they_are_revoked() {
        let mut doors = doors(Access::Token);
        let old = doors.token().to_owned();
        doors.renew_credentials().unwrap();
        let new = doors.token().to_owned();
        assert_ne!(old, new);
        assert!(doors.admits(Some(&old), None) && doors.admits(Some(&new), None));
        doors.revoke_old_credentials();
        assert!(!doors.admits(Some(&old), None) && doors.admits(Some(&new), None));
        assert!(!doors.admits(None, None));
    }

    #[test]
    fn each_access_wants_its_own_credential() {
        let mut doors = doors(Access::ClientCertificate);
        let der = doors.client().certificate_der.to_vec();
        assert!(doors.admits(None, Some(&der)));
        assert!(!doors.admits(Some(&token(0)), None));
        doors.renew_credentials().unwrap();
        doors.revoke_old_credentials();
        assert!(!doors.admits(None, Some(&der)));
    }

    #[test]
    fn a_new_authority_is_another_one() {
        let mut doors = doors(Access::Open);
        let old = doors.authority_certificate().to_owned();
        doors.renew_server_certificate().unwrap();
        assert_eq!(doors.authority_certificate(), old);
        doors.renew_authority().unwrap();
        assert_ne!(doors.authority_certificate(), old);
    }
}
