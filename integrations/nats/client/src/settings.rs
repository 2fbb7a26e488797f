//! How to connect to a NATS server.

use std::fmt;
use std::path::{Path, PathBuf};

use async_nats::ConnectOptions;
use nkeys::KeyPair;

/// Credentials of NATS's own accounts, and files for TLS. Default: none, and the system's CA certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settings {
    /// A file with a JWT and its nkey seed.
    pub creds: Option<PathBuf>,
    /// A file with an nkey seed.
    pub nkey: Option<PathBuf>,
    /// A user and its password.
    pub user: Option<(String, Password)>,
    /// A PEM file with the CA certificates that the server is verified against; TLS is required then.
    pub ca: Option<PathBuf>,
    /// A PEM file with the certificate chain that is shown to the server; needs `key`.
    pub cert: Option<PathBuf>,
    /// A PEM file with its private key.
    pub key: Option<PathBuf>,
}

/// A password, which is not shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Password(pub String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("...")
    }
}

/// A file of the [`Settings`] that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: {reason}", file.display())]
pub struct BadFile {
    /// Which one.
    pub file: PathBuf,
    /// Why.
    pub reason: String,
}

impl BadFile {
    pub(crate) fn new(file: &Path, reason: &dyn fmt::Display) -> Self {
        Self { file: file.to_owned(), reason: reason.to_string() }
    }
}

impl Settings {
    /// For the library.
    ///
    /// # Errors
    /// A file cannot be used.
    pub async fn options(&self) -> Result<ConnectOptions, BadFile> {
        let mut options = ConnectOptions::new();
        if let Some((user, password)) = &self.user {
            options = options.user_and_password(user.clone(), password.0.clone());
        }
        if let Some(creds) = &self.creds {
            options = options.credentials_file(creds).await.map_err(|error| BadFile::new(creds, &error))?;
        }
        if let Some(nkey) = &self.nkey {
            let (seed, _) = seed(nkey)?;
            options = options.nkey(seed);
        }
        for file in [&self.ca, &self.cert, &self.key].into_iter().flatten() {
            std::fs::File::open(file).map_err(|error| BadFile::new(file, &error))?;
        }
        if let Some(ca) = &self.ca {
            options = options.add_root_certificates(ca.clone()).require_tls(true);
        }
        if let Some((cert, key)) = self.cert.as_ref().zip(self.key.as_ref()) {
            options = options.add_client_certificate(cert.clone(), key.clone()).require_tls(true);
        }
        Ok(options)
    }
}

/// A seed and its key, from a file.
///
/// # Errors
/// The file cannot be read, or has none.
pub fn seed(file: &Path) -> Result<(String, KeyPair), BadFile> {
    if file.to_str().is_some_and(|text| KeyPair::from_seed(text).is_ok()) {
        return Err(BadFile::new(Path::new("S..."), &"this is a seed, and not the name of a file that has it"));
    }
    let text = std::fs::read_to_string(file).map_err(|error| BadFile::new(file, &error))?;
    let seed = text.trim();
    let pair = KeyPair::from_seed(seed).map_err(|_| BadFile::new(file, &"it has no nkey seed (SU...)"))?;
    Ok((seed.to_owned(), pair))
}
