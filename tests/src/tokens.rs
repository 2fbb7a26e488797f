//! An issuer of JSON Web Tokens, with keys that are thrown away.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::KeyPair;
use serde_json::{Value, json};

/// The audience of its tokens.
pub const AUDIENCE: &str = "telexec-tests";

/// An issuer with one key.
pub struct TokenIssuer {
    url: String,
    key: EncodingKey,
    header: Header,
}

impl TokenIssuer {
    /// One that signs with P-256.
    ///
    /// # Panics
    /// No key can be made.
    pub fn new(url: &str) -> Self {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        Self::with_key(url, Algorithm::ES256, EncodingKey::from_ec_der(&key.serialize_der()))
    }

    /// The same with this key.
    pub fn with_key(url: &str, algorithm: Algorithm, key: EncodingKey) -> Self {
        let header = Header { kid: Some(crate::marker()), ..Header::new(algorithm) };
        Self { url: url.to_owned(), key, header }
    }

    /// The claim `iss`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its public key.
    ///
    /// # Panics
    /// It has none.
    pub fn public_key(&self) -> Value {
        let mut key = Jwk::from_encoding_key(&self.key, self.header.alg).unwrap();
        key.common.key_id.clone_from(&self.header.kid);
        serde_json::to_value(key).unwrap()
    }

    /// The set of public keys of these issuers.
    pub fn key_set(issuers: &[&Self]) -> String {
        json!({ "keys": issuers.iter().map(|issuer| issuer.public_key()).collect::<Vec<_>>() }).to_string()
    }

    /// A table of the configuration, with its key in `file`, and more lines.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn table(&self, name: &str, file: &Path, more: &str) -> String {
        std::fs::write(file, Self::key_set(&[self])).unwrap();
        format!("{}keys_file = {file:?}\n{more}\n", self.table_without_keys(name))
    }

    /// The same without keys.
    pub fn table_without_keys(&self, name: &str) -> String {
        let url = &self.url;
        format!("[token_issuers.{name}]\nissuer = {url:?}\naudiences = [\"{AUDIENCE}\"]\nnames = [\"**\"]\n")
    }

    /// A token for a caller, for five minutes.
    pub fn token(&self, name: &str) -> String {
        self.sign(json!({ "sub": name }))
    }

    /// A token with these claims, beside those that every token needs; `null`: without that one.
    ///
    /// # Panics
    /// It cannot be signed.
    pub fn sign(&self, claims: Value) -> String {
        self.sign_with(&self.header, claims)
    }

    /// The same with another header.
    ///
    /// # Panics
    /// It cannot be signed.
    pub fn sign_with(&self, header: &Header, claims: Value) -> String {
        let now = now();
        let mut all = json!({ "iss": self.url, "aud": AUDIENCE, "iat": now, "exp": now + 300 });
        for (name, value) in claims.as_object().unwrap() {
            match value {
                Value::Null => drop(all.as_object_mut().unwrap().remove(name)),
                value => all[name] = value.clone(),
            }
        }
        encode(header, &all, &self.key).unwrap()
    }

    /// Of its tokens.
    pub fn header(&self) -> Header {
        self.header.clone()
    }
}

/// Seconds since the epoch.
///
/// # Panics
/// The clock is before it.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A server of JSON on loopback, whose answers are of this moment.
pub struct JsonServer {
    url: String,
    answers: Arc<Mutex<Vec<(String, u16, String)>>>,
    asked: Arc<AtomicUsize>,
}

impl JsonServer {
    /// One that answers nothing but 404 yet.
    ///
    /// # Panics
    /// Nothing can listen.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Self { url, answers: Arc::default(), asked: Arc::default() };
        let (answers, asked) = (Arc::clone(&server.answers), Arc::clone(&server.asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let _ = answer(stream, &answers, &asked);
            }
        });
        server
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// It answers so from now on.
    ///
    /// # Panics
    /// A test has failed.
    pub fn set(&self, path: &str, status: u16, body: &str) {
        let mut answers = self.answers.lock().unwrap();
        answers.retain(|(known, ..)| known != path);
        answers.push((path.to_owned(), status, body.to_owned()));
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn answer(
    mut stream: TcpStream,
    answers: &Mutex<Vec<(String, u16, String)>>,
    asked: &AtomicUsize,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    asked.fetch_add(1, Ordering::SeqCst);
    let path = request.split(' ').nth(1).unwrap_or_default();
    let known = answers.lock().unwrap().iter().find(|(known, ..)| known == path).cloned();
    let (_, status, body) = known.unwrap_or_else(|| (String::new(), 404, String::new()));
    write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}
