//! Throwaway certificates.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256, RevokedCertParams, RsaKeySize, SanType,
    SerialNumber, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use telexec_client::TlsOptions;
use tempfile::TempDir;
use time::OffsetDateTime;

/// A private CA with an agent's certificate and one client's. The files last as long as this.
pub struct Certs {
    /// Who signed both.
    pub ca: Ca,
    /// For an agent on this machine.
    pub agent: Pair,
    /// For the client called `client`.
    pub client: Pair,
}

/// A CA of its own.
pub struct Ca {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    serial: SerialNumber,
}

/// A certificate that is to be issued.
pub struct Leaf {
    params: CertificateParams,
    rsa: bool,
}

impl Certs {
    /// New ones.
    pub fn new() -> Self {
        let ca = Ca::new("telexec tests");
        let agent = ca.issue(Leaf::server("localhost"));
        let client = ca.issue(Leaf::client("client"));
        Self { ca, agent, client }
    }

    /// What the holder of this certificate connects with.
    pub fn options(&self, pair: &Pair) -> TlsOptions {
        TlsOptions::new(&pair.cert, &pair.key, self.ca.cert())
    }

    /// The same for [`crate::Wire`]; `None`: it shows no certificate.
    pub fn config(&self, pair: Option<&Pair>) -> Arc<ClientConfig> {
        self.config_with_versions(pair, rustls::ALL_VERSIONS)
    }

    /// The same with these versions of TLS.
    ///
    /// # Panics
    /// The files are gone.
    pub fn config_with_versions(
        &self,
        pair: Option<&Pair>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.ca.cert()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match pair {
            None => builder.with_no_client_auth(),
            Some(Pair { cert, key, .. }) => {
                let chain = vec![CertificateDer::from_pem_file(cert).unwrap()];
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }
}

impl Default for Certs {
    fn default() -> Self {
        Self::new()
    }
}

impl Ca {
    /// A new one.
    ///
    /// # Panics
    /// Its files cannot be written.
    pub fn new(name: &str) -> Self {
        let directory = tempfile::Builder::new().prefix("telexec-certs-").tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        std::fs::write(directory.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { directory, issuer: Issuer::new(params, key) }
    }

    /// Its own certificate.
    pub fn cert(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// Issues a certificate by a CA between, which is for these uses.
    ///
    /// # Panics
    /// Its files cannot be written.
    pub fn intermediate(&self, usages: &[KeyUsagePurpose], leaf: Leaf) -> Pair {
        let between = Leaf::new("intermediate", ExtendedKeyUsagePurpose::ServerAuth).with_key_usages(usages);
        let mut params = between.params;
        (params.extended_key_usages, params.is_ca) = (Vec::new(), IsCa::Ca(BasicConstraints::Unconstrained));
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let directory = tempfile::tempdir_in(self.directory.path()).unwrap();
        let pair = Self { directory, issuer: Issuer::new(params, key) }.issue_to(self.directory.path(), leaf);
        pair.append(&cert.pem());
        pair
    }

    /// Issues a certificate with which others can be issued.
    ///
    /// # Panics
    /// Its files cannot be written.
    pub fn issue_ca(&self, mut leaf: Leaf) -> Pair {
        leaf.params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        self.issue(leaf)
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Issues a certificate.
    ///
    /// # Panics
    /// Its files cannot be written.
    pub fn issue(&self, leaf: Leaf) -> Pair {
        self.issue_to(self.directory.path(), leaf)
    }

    fn issue_to(&self, directory: &Path, mut leaf: Leaf) -> Pair {
        let serial = SerialNumber::from(fastrand::u64(1..));
        leaf.params.serial_number = Some(serial.clone());
        let key = match leaf.rsa {
            true => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_3072).unwrap(),
            false => KeyPair::generate().unwrap(),
        };
        let cert = leaf.params.signed_by(&key, &self.issuer).unwrap();
        let name = crate::marker();
        let file = |extension: &str| directory.join(format!("{name}.{extension}"));
        let pair = Pair { cert: file("pem"), key: file("key"), serial };
        std::fs::write(&pair.cert, cert.pem()).unwrap();
        write_private(&pair.key, &key.serialize_pem());
        pair
    }

    /// A list (PEM) of the certificates that it takes back.
    ///
    /// # Panics
    /// It cannot be signed.
    pub fn revocation_list(&self, revoked: &[&Pair]) -> String {
        let yesterday = OffsetDateTime::now_utc() - Duration::from_secs(24 * 60 * 60);
        let revoked = revoked.iter().map(|pair| RevokedCertParams {
            serial_number: pair.serial.clone(),
            revocation_time: yesterday,
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: yesterday,
            next_update: date_time_ymd(3000, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

impl Pair {
    /// Presents this one (PEM), too.
    ///
    /// # Panics
    /// The file is gone.
    pub fn append(&self, pem: &str) {
        OpenOptions::new().append(true).open(&self.cert).unwrap().write_all(pem.as_bytes()).unwrap();
    }

    /// The certificate as it is presented.
    ///
    /// # Panics
    /// The file is gone.
    pub fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(&self.cert).unwrap()
    }
}

fn write_private(path: &Path, text: &str) {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

impl Leaf {
    /// For a client with this common name.
    pub fn client(common_name: &str) -> Self {
        Self::new(common_name, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// For an agent on this machine, by this name or by its address.
    pub fn server(name: &str) -> Self {
        let leaf = Self::new(name, ExtendedKeyUsagePurpose::ServerAuth).dns(name);
        leaf.with(SanType::IpAddress([127, 0, 0, 1].into()))
    }

    /// An X.509-SVID, for both sides.
    pub fn svid(id: &str) -> Self {
        let mut leaf = Self::new("SPIRE", ExtendedKeyUsagePurpose::ClientAuth).uri(id);
        leaf.params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        leaf.params.is_ca = IsCa::ExplicitNoCa;
        leaf
    }

    /// With an RSA key of 3,072 bits, whose signatures cost twenty times as much as the usual ones.
    pub fn rsa(mut self) -> Self {
        self.rsa = true;
        self
    }

    /// For clients alone.
    pub fn for_clients(mut self) -> Self {
        self.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self
    }

    /// For these uses instead.
    pub fn with_key_usages(mut self, usages: &[KeyUsagePurpose]) -> Self {
        self.params.key_usages = usages.to_vec();
        self
    }

    fn new(common_name: &str, usage: ExtendedKeyUsagePurpose) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        Self { params, rsa: false }
    }

    /// Names a host too.
    ///
    /// # Panics
    /// It is no name.
    pub fn dns(self, name: &str) -> Self {
        self.with(SanType::DnsName(name.try_into().unwrap()))
    }

    /// Names a URI too.
    ///
    /// # Panics
    /// It is no URI.
    pub fn uri(self, uri: &str) -> Self {
        self.with(SanType::URI(uri.try_into().unwrap()))
    }

    /// Names no one.
    pub fn nameless(mut self) -> Self {
        self.params.distinguished_name = rcgen::DistinguishedName::new();
        self
    }

    /// Its time is over.
    pub fn expired(mut self) -> Self {
        (self.params.not_before, self.params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1));
        self
    }

    /// Its time is over this long from now.
    pub fn ends_in(mut self, rest: Duration) -> Self {
        self.params.not_after = OffsetDateTime::now_utc() + rest;
        self
    }

    /// Its time has not come.
    pub fn not_yet_valid(mut self) -> Self {
        (self.params.not_before, self.params.not_after) = (date_time_ymd(3000, 1, 1), date_time_ymd(3001, 1, 1));
        self
    }

    fn with(mut self, name: SanType) -> Self {
        self.params.subject_alt_names.push(name);
        self
    }
}
