//! The command line of `telexecd enroll` and `telexec certs enroll`, which are the same but for their directory.

use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::client::{Retry, Server};
use crate::error::EnrollError;
use crate::files;
use crate::machine::{Answer, MachineFiles, certificates, file};
use crate::token::{Token, is_name};

/// A token is shorter.
const MAX_TOKEN_BYTES: u64 = 4096;
/// The variable that may have the token instead of a file.
const TOKEN_VARIABLE: &str = "TELEXEC_ENROLL_TOKEN";

/// What to get, and from whom.
#[derive(Clone, Debug, Args)]
pub struct EnrollArgs {
    /// Machine on which `telexec certs serve` runs [default port: 7444]
    #[arg(long, value_name = "HOST[:PORT]", required_unless_present = "csr")]
    server: Option<String>,
    /// File with the token; - is standard input [default: the variable TELEXEC_ENROLL_TOKEN]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["renew", "csr"])]
    token_file: Option<PathBuf>,
    /// Renew the certificate if that is due, and replace ca.pem and crl.pem; needs no token
    #[arg(long)]
    renew: bool,
    /// Only make a key and a signing request, NAME.csr, for another CA
    #[arg(long, requires = "name", conflicts_with_all = ["server", "renew", "force"])]
    csr: bool,
    /// Base name of the files [default: the token's; with --renew the only one in the directory]
    #[arg(long)]
    name: Option<String>,
    /// Host name in the signing request; may be repeated [default: NAME]
    #[arg(long, value_name = "NAME", requires = "csr")]
    dns: Vec<String>,
    /// IP address in the signing request; may be repeated
    #[arg(long, value_name = "ADDRESS", requires = "csr")]
    ip: Vec<IpAddr>,
    /// Replace an existing certificate and its key; with --renew: renew it even if that is not due
    #[arg(long)]
    force: bool,
    /// How long to try while the server cannot be reached
    #[arg(long, value_name = "DUR", default_value = "30s", value_parser = parse_timeout)]
    timeout: Duration,
}

/// What has been done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enrolled {
    /// A certificate was issued, or renewed.
    Certificate(MachineFiles),
    /// Nothing was due; the CAs and revocation lists are up to date.
    NotDue(MachineFiles),
    /// A signing request was written to this file; the certificate goes to those.
    Request(PathBuf, MachineFiles),
}

impl EnrollArgs {
    /// Does it, with the files in this directory. `report` gets the first failure if the server is tried again, and for how
    /// long it will be.
    ///
    /// # Errors
    /// Why nothing was issued.
    pub async fn run(
        &self,
        directory: &Path,
        report: impl Fn(&EnrollError, Duration),
    ) -> Result<Enrolled, EnrollError> {
        let retry = Retry { timeout: self.timeout, report: &report };
        if directory.join("ca.key").exists() {
            return Err(EnrollError::DirectoryOfCa(directory.to_owned()));
        }
        if let Some(name) = self.name.as_deref().filter(|name| !is_name(name)) {
            let text = format!("invalid name {name:?}: use only letters, digits and . _ - @ :, and no . or - first");
            return Err(EnrollError::Usage(text));
        }
        if let Some(name) = self.name.as_deref().filter(|name| is_reserved(name)) {
            return Err(EnrollError::Usage(format!("--name {name}: {name}.pem is for the CA: choose another name")));
        }
        let server = self.server.as_deref().map(str::parse::<Server>).transpose().map_err(EnrollError::Usage)?;
        match (server, self.name.as_deref()) {
            (None, Some(name)) => self.request(directory, name),
            (None, None) => Err(EnrollError::Usage("--server is missing".into())),
            (Some(server), _) if self.renew => self.renew(directory, &server, &retry).await,
            (Some(server), _) => self.enroll(directory, &server, &retry).await,
        }
    }

    async fn enroll(&self, directory: &Path, server: &Server, retry: &Retry<'_>) -> Result<Enrolled, EnrollError> {
        let token = self.token()?;
        let name = self.name.as_deref().unwrap_or(token.name());
        if is_reserved(name) {
            return Err(EnrollError::Usage(format!("the token is for {name:?}: {name}.pem is for the CA: use --name")));
        }
        let machine = MachineFiles::new(directory, name);
        let is_new = !directory.exists();
        make_directory(directory)?;
        if !self.force {
            machine.check_ca(&token)?;
        }
        let resumes = machine.pending_key().exists();
        let key = machine.prepare_key(self.force)?;
        let request = CertificateParams::default().serialize_request(&key)?;
        let issued = server.enroll(&token, request.der(), retry).await.inspect_err(|error| {
            if error.is_final() && !resumes {
                let _ = std::fs::remove_file(machine.pending_key());
            }
            if error.is_final() && is_new {
                let _ = std::fs::remove_dir(directory);
            }
        })?;
        let answer = Answer {
            certificate: issued.certificate,
            ca_certificates: issued.ca_certificates,
            revocation_lists: issued.revocation_lists,
        };
        let cas = parsed(server, &answer.ca_certificates)?;
        if !cas.iter().any(|ca| token.is_of(ca)) {
            return Err(wrong_answer(server, "the CA of the token is not among those to trust"));
        }
        check_key(server, &answer.certificate, &key)?;
        machine.place(&answer)?;
        Ok(Enrolled::Certificate(machine))
    }

    async fn renew(&self, directory: &Path, server: &Server, retry: &Retry<'_>) -> Result<Enrolled, EnrollError> {
        let machine = match &self.name {
            Some(name) => MachineFiles::new(directory, name),
            None => MachineFiles::only(directory)?,
        };
        let (chain, key) = machine.pair()?;
        let own = KeyPair::try_from(&key)?;
        let cas = certificates(&machine.ca)?;
        let renewed = server.renew(chain, key, cas, self.force, retry).await?;
        let answer = Answer {
            certificate: renewed.certificate,
            ca_certificates: renewed.ca_certificates,
            revocation_lists: renewed.revocation_lists,
        };
        parsed(server, &answer.ca_certificates)?;
        let is_due = !answer.certificate.is_empty();
        if is_due {
            check_key(server, &answer.certificate, &own)?;
        }
        machine.place(&answer)?;
        Ok(if is_due { Enrolled::Certificate(machine) } else { Enrolled::NotDue(machine) })
    }

    fn request(&self, directory: &Path, name: &str) -> Result<Enrolled, EnrollError> {
        let machine = MachineFiles::new(directory, name);
        make_directory(directory)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let dns = if self.dns.is_empty() && self.ip.is_empty() { vec![name.to_owned()] } else { self.dns.clone() };
        for dns in dns {
            params.subject_alt_names.push(SanType::DnsName(dns.as_str().try_into()?));
        }
        params.subject_alt_names.extend(self.ip.iter().copied().map(SanType::IpAddress));
        let pem = params.serialize_request(&machine.key()?)?.pem()?;
        let path = directory.join(format!("{name}.csr"));
        files::replace(&path, files::PUBLIC, &pem).map_err(|source| file("write", &path, source))?;
        Ok(Enrolled::Request(path, machine))
    }

    /// From the file, standard input or the environment: the arguments of a process are for everybody to read.
    fn token(&self) -> Result<Token, EnrollError> {
        let mut text = String::new();
        let read = |reader: &mut dyn Read, text: &mut String| reader.take(MAX_TOKEN_BYTES).read_to_string(text);
        match &self.token_file {
            None => match std::env::var(TOKEN_VARIABLE) {
                Ok(token) => text = token,
                Err(_) => {
                    let missing = format!("no token: use --token-file, or the variable {TOKEN_VARIABLE}");
                    return Err(EnrollError::Usage(missing));
                }
            },
            Some(path) if path == Path::new("-") => {
                read(&mut std::io::stdin(), &mut text).map_err(|source| file("read", path, source))?;
            }
            Some(path) => {
                let opened = std::fs::File::open(path).and_then(|mut file| read(&mut file, &mut text));
                opened.map_err(|source| file("read", path, source))?;
            }
        }
        Ok(text.parse()?)
    }
}

/// A number without a unit is in seconds, as in all flags of `telexec`.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    let wrong = || "expected seconds, or a duration such as 500ms, 10s, 5m, 1h30m".to_owned();
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = || text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let parsed = if is_number { seconds() } else { humantime::parse_duration(text).ok() };
    parsed.filter(|timeout| !timeout.is_zero()).ok_or_else(wrong)
}

/// The certificate would have the name of the CA's, or of the revocation lists, where upper case is the same.
fn is_reserved(name: &str) -> bool {
    ["ca", "crl"].iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
}

fn make_directory(directory: &Path) -> Result<(), EnrollError> {
    files::make_directory(directory).map_err(|source| file("create", directory, source))
}

fn parsed(server: &Server, pem: &str) -> Result<Vec<CertificateDer<'static>>, EnrollError> {
    let found = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|_| wrong_answer(server, "a certificate is malformed"))?;
    if found.is_empty() { Err(wrong_answer(server, "there is no certificate")) } else { Ok(found) }
}

/// The certificate is for this key.
fn check_key(server: &Server, certificate: &str, key: &KeyPair) -> Result<(), EnrollError> {
    let chain = parsed(server, certificate)?;
    let der = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    match rustls::sign::CertifiedKey::from_der(chain, der.into(), &provider) {
        Ok(_) => Ok(()),
        Err(_) => Err(wrong_answer(server, "the certificate is not for the key of this machine")),
    }
}

fn wrong_answer(server: &Server, what: &'static str) -> EnrollError {
    EnrollError::Answer { server: server.to_string(), what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_a_unit_or_is_in_seconds() {
        for (text, millis) in [("3", 3000), ("0.5", 500), ("500ms", 500), ("1m30s", 90_000)] {
            assert_eq!(parse_timeout(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for wrong in ["", "0", ".", "-1", "1e3", "10x", "99999999999999999999"] {
            assert!(parse_timeout(wrong).is_err_and(|error| error.contains("10s")), "{wrong}");
        }
    }
}
