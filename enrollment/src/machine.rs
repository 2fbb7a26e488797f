//! The files of a machine: `NAME.key`, which never leaves it, `NAME.pem`, `ca.pem` and `crl.pem`.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::error::EnrollError;
use crate::files;
use crate::token::Token;

/// The files of one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineFiles {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The CAs to trust.
    pub ca: PathBuf,
    /// Their revocation lists.
    pub crl: PathBuf,
}

/// What a CA answered, as PEM.
pub(crate) struct Answer {
    pub(crate) certificate: String,
    pub(crate) ca_certificates: String,
    pub(crate) revocation_lists: String,
}

impl MachineFiles {
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        Self {
            cert: directory.join(format!("{name}.pem")),
            key: directory.join(format!("{name}.key")),
            ca: directory.join("ca.pem"),
            crl: directory.join("crl.pem"),
        }
    }

    /// The only certificate of the directory that has a key.
    pub(crate) fn only(directory: &Path) -> Result<Self, EnrollError> {
        let unreadable = |source| file("read", directory, source);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let is_key = path.extension().is_some_and(|extension| extension == "key");
            if let Some(name) = path.file_stem().and_then(|name| name.to_str()).filter(|_| is_key)
                && Self::new(directory, name).cert.exists()
            {
                names.push(name.to_owned());
            }
        }
        match &names[..] {
            [name] => Ok(Self::new(directory, name)),
            _ => Err(EnrollError::Ambiguous { directory: directory.to_owned(), found: names.len() }),
        }
    }

    /// A key for a certificate that is to be requested: it is on the disk before anyone knows of it. One that an interrupted
    /// enrolment left is used again, so that the same token serves.
    pub(crate) fn prepare_key(&self, force: bool) -> Result<KeyPair, EnrollError> {
        let pending = self.pending_key();
        let fits = self.pair().is_ok();
        if fits && !force {
            return Err(EnrollError::Exists(self.cert.clone()));
        }
        if pending.exists() {
            return read_key(&pending);
        }
        if self.key.exists() && !fits {
            return read_key(&self.key);
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        match files::create(&pending, files::SECRET, &key.serialize_pem()) {
            // another enrolment was faster
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read_key(&pending),
            written => written.map(|()| key).map_err(|source| file("write", &pending, source)),
        }
    }

    /// A key for a request that is signed elsewhere; an existing one is kept.
    pub(crate) fn key(&self) -> Result<KeyPair, EnrollError> {
        if self.key.exists() {
            return read_key(&self.key);
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let written = files::create(&self.key, files::SECRET, &key.serialize_pem());
        written.map(|()| key).map_err(|source| file("write", &self.key, source))
    }

    /// Refuses to replace the CA that the machine trusts by that of a token.
    pub(crate) fn check_ca(&self, token: &Token) -> Result<(), EnrollError> {
        match certificates(&self.ca) {
            Ok(present) if !present.iter().any(|ca| token.is_of(ca)) => Err(EnrollError::AnotherCa(self.ca.clone())),
            _ => Ok(()),
        }
    }

    /// Writes an answer. The key is put in its place before the certificate: a key without its certificate is one that
    /// [`prepare_key`](Self::prepare_key) uses again.
    pub(crate) fn place(&self, answer: &Answer) -> Result<(), EnrollError> {
        write(&self.ca, &answer.ca_certificates)?;
        if !answer.revocation_lists.is_empty() {
            write(&self.crl, &answer.revocation_lists)?;
        }
        if answer.certificate.is_empty() {
            return Ok(());
        }
        let pending = self.pending_key();
        if pending.exists() {
            files::rename(&pending, &self.key).map_err(|source| file("write", &self.key, source))?;
        }
        write(&self.cert, &answer.certificate)
    }

    /// The certificate, with its intermediates, and its key.
    pub(crate) fn pair(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), EnrollError> {
        let chain = certificates(&self.cert)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| content(&self.key, error))?;
        let fits = CertifiedKey::from_der(chain.clone(), key.clone_key(), &aws_lc_rs::default_provider());
        fits.map_err(|error| content(&self.key, error))?;
        Ok((chain, key))
    }

    /// Where a new key is until its certificate is there.
    pub(crate) fn pending_key(&self) -> PathBuf {
        let mut path = self.key.clone().into_os_string();
        path.push(".new");
        path.into()
    }
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, EnrollError> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    found.map_err(|error| content(path, error))
}

/// Reads a key that only its owner can read, or, if that is root, also its group, which is the agent's: another user could have put
/// it there, to be given a certificate for it.
fn read_key(path: &Path) -> Result<KeyPair, EnrollError> {
    let unreadable = |source| file("read", path, source);
    // neither a link nor a named pipe, which would be waited for
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut key = match File::options().read(true).custom_flags(flags).open(path) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
            return Err(EnrollError::ForeignKey(path.to_owned()));
        }
        key => key.map_err(unreadable)?,
    };
    let opened = key.metadata().map_err(unreadable)?;
    let others = if opened.uid() == 0 { 0o037 } else { 0o077 };
    if !opened.is_file() || opened.uid() != geteuid().as_raw() || opened.mode() & others != 0 {
        return Err(EnrollError::ForeignKey(path.to_owned()));
    }
    let mut text = String::new();
    key.read_to_string(&mut text).map_err(unreadable)?;
    KeyPair::from_pem(&text).map_err(|error| content(path, error))
}

fn write(path: &Path, text: &str) -> Result<(), EnrollError> {
    // not touched if nothing has changed: an agent would load it again
    if std::fs::read_to_string(path).is_ok_and(|present| present == text) {
        return Ok(());
    }
    files::replace(path, files::PUBLIC, text).map_err(|source| file("write", path, source))
}

pub(crate) fn file(what: &'static str, path: &Path, source: io::Error) -> EnrollError {
    EnrollError::File { what, path: path.to_owned(), source }
}

fn content(path: &Path, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> EnrollError {
    EnrollError::Content { path: path.to_owned(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rcgen::CertificateParams;

    use super::*;

    fn answer(key: &KeyPair) -> Answer {
        let pem = CertificateParams::default().self_signed(key).unwrap().pem();
        Answer { certificate: pem.clone(), ca_certificates: pem, revocation_lists: "list".into() }
    }

    #[test]
    fn an_interrupted_enrolment_goes_on_with_its_key() {
        let directory = tempfile::tempdir().unwrap();
        let machine = MachineFiles::new(directory.path(), "web1");
        let key = machine.prepare_key(false).unwrap();
        let mode = machine.pending_key().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // before the answer
        assert_eq!(machine.prepare_key(false).unwrap().serialize_pem(), key.serialize_pem());
        // between the two files
        files::rename(&machine.pending_key(), &machine.key).unwrap();
        assert_eq!(machine.prepare_key(false).unwrap().serialize_pem(), key.serialize_pem());
        machine.place(&answer(&key)).unwrap();
        assert!(matches!(machine.prepare_key(false), Err(EnrollError::Exists(_))));

        // a second one, cut off at the same places: the first pair works until then
        let next = machine.prepare_key(true).unwrap();
        assert_ne!(next.serialize_pem(), key.serialize_pem());
        machine.pair().unwrap();
        assert_eq!(machine.prepare_key(true).unwrap().serialize_pem(), next.serialize_pem());
        files::rename(&machine.pending_key(), &machine.key).unwrap();
        assert_eq!(machine.prepare_key(false).unwrap().serialize_pem(), next.serialize_pem());
        machine.place(&answer(&next)).unwrap();
        machine.pair().unwrap();
        assert_eq!(MachineFiles::only(directory.path()).unwrap(), machine);
    }

    #[test]
    fn a_key_that_others_may_know_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let machine = MachineFiles::new(directory.path(), "web1");
        machine.prepare_key(false).unwrap();
        let pending = machine.pending_key();
        for mode in [0o660, 0o604] {
            std::fs::set_permissions(&pending, Permissions::from_mode(mode)).unwrap();
            let refused = machine.prepare_key(false).unwrap_err();
            assert!(matches!(&refused, EnrollError::ForeignKey(path) if *path == pending), "{refused}");
        }
        std::fs::set_permissions(&pending, Permissions::from_mode(0o600)).unwrap();
        let elsewhere = directory.path().join("elsewhere");
        std::fs::rename(&pending, &elsewhere).unwrap();
        symlink(&elsewhere, &pending).unwrap();
        assert!(matches!(machine.prepare_key(false), Err(EnrollError::ForeignKey(_))));
        std::fs::remove_file(&pending).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pending, fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        assert!(matches!(machine.prepare_key(false), Err(EnrollError::ForeignKey(_))));
    }
}
