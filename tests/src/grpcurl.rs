//! A client that knows nothing of telexec: the program grpcurl, with what server reflection returns.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use crate::{Agent, Certs, Pair, within};

/// One call of grpcurl.
pub struct Grpcurl {
    program: PathBuf,
    options: Vec<OsString>,
    address: String,
}

/// What grpcurl said.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its exit code: 64 and the gRPC status code, if the call failed.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Grpcurl {
    /// To this agent, in plain text.
    ///
    /// # Panics
    /// There is no grpcurl.
    pub fn new(agent: &Agent) -> Self {
        let unix = agent.uri().starts_with("unix:");
        // h2 refuses the path that grpcurl would send as the authority
        let options: &[&str] = if unix { &["-plaintext", "-unix", "-authority", "localhost"] } else { &["-plaintext"] };
        let options = options.iter().map(Into::into).collect();
        Self { program: program(), options, address: agent.address().to_owned() }
    }

    /// To this address, by TLS as further options say.
    ///
    /// # Panics
    /// There is no grpcurl.
    pub fn at(address: &str) -> Self {
        Self { program: program(), options: Vec::new(), address: address.to_owned() }
    }

    /// To this agent, with this certificate.
    ///
    /// # Panics
    /// There is no grpcurl.
    pub fn with_tls(agent: &Agent, certs: &Certs, pair: &Pair) -> Self {
        let files = [("-cacert", &certs.ca.cert()), ("-cert", &pair.cert), ("-key", &pair.key)];
        let options = files.into_iter().flat_map(|(option, path)| [option.into(), path.into()]).collect();
        Self { program: program(), options, address: agent.address().to_owned() }
    }

    /// To this agent, with no certificate.
    ///
    /// # Panics
    /// There is no grpcurl.
    pub fn with_ca(agent: &Agent, certs: &Certs) -> Self {
        let options = vec!["-cacert".into(), certs.ca.cert().into()];
        Self { program: program(), options, address: agent.address().to_owned() }
    }

    /// More options.
    pub fn options(mut self, options: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.options.extend(options.into_iter().map(Into::into));
        self
    }

    /// `list`, `describe` or a method, with what follows it.
    ///
    /// # Panics
    /// It hangs.
    pub async fn ask(self, words: &[&str]) -> Answer {
        let mut command = Command::new(self.program);
        command.args(self.options).arg(self.address).args(words);
        let output = within(command.stdin(Stdio::null()).kill_on_drop(true).output()).await.expect("grpcurl runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        Answer { code: output.status.code().unwrap_or(-1), stdout, stderr }
    }

    /// Calls a method with a request in JSON.
    pub async fn call(self, method: &str, request: &Value) -> Answer {
        self.options(["-d".to_owned(), request.to_string()]).ask(&[method]).await
    }
}

impl Answer {
    /// The messages of a call that succeeded.
    ///
    /// # Panics
    /// It did not.
    pub fn messages(&self) -> Vec<Value> {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::Deserializer::from_str(&self.stdout).into_iter().collect::<Result<_, _>>().unwrap()
    }

    /// The one message of a call that succeeded.
    ///
    /// # Panics
    /// It did not, or gave more.
    pub fn message(&self) -> Value {
        match <[Value; 1]>::try_from(self.messages()) {
            Ok([message]) => message,
            Err(messages) => panic!("not one message: {messages:?}"),
        }
    }
}

fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("GRPCURL") {
        return path.into();
    }
    let search = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&search).map(|directory| directory.join("grpcurl")).find(|path| path.is_file());
    found.expect("no grpcurl in PATH, and GRPCURL does not name it: run tests/run, which installs it")
}
