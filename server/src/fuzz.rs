//! Entry points and invariants for fuzz targets; only built with `cfg(fuzzing)`.

#![allow(clippy::panic)]

use std::path::Path;
use std::sync::LazyLock;

use hyper::header::{AUTHORIZATION, HeaderValue};
use rustls::pki_types::CertificateDer;
use telexec_engine::ResolvedCommand;
use telexec_executor::Command;
use telexec_shell::{Redirection, SimpleCommand};

use crate::analysis::CommandAnalysis;
use crate::audit::records_of_request;
use crate::audit::verify::Verifier;
use crate::audit::witness::Witness;
use crate::call::Rpc;
use crate::call::caller::{Caller, Transport};
use crate::identity::Identity;
use crate::policy::{AgentFacts, Detail, Facts, Policy, Subject};
use crate::tls::certificate::Certificate;
use crate::tls::peer_certificate::PeerCertificate;
use crate::token::{KeySet, TokenIssuerConfig, TokenIssuers};

/// Parses a certificate as if it were a caller's.
///
/// # Panics
/// An invariant is violated.
pub fn certificate(der: &[u8]) {
    let chain = [CertificateDer::from(der)];
    let own = Certificate::first_of(&chain);
    if let Some(peer) = PeerCertificate::parse(&chain) {
        let name = peer.identity.as_str();
        assert!(own.is_ok() && !name.is_empty() && !name.contains(char::is_control), "{name:?}");
        assert!(name.starts_with("spiffe://") || !name.contains([':', '/']), "{name:?}");
    }
}

/// Rules that use every attribute of a command.
const RULES: &str = r#"
@id("listed") @environment("*") permit(principal, action, resource) when { ["ls", "cat"].containsAll(context.programs) };
@id("other") permit(principal, action, resource) when {
  context.transport == "tcp" && context.command like "*a*b*" && context.shell != "x" && context.argv.contains("a") &&
  context.environment.contains("A") && context.working_directory like "/*" && context.user == "root" &&
  context.user_id == 0 && context has timeout && context.timeout < duration("1h") &&
  context.limits has cpus && context.limits.cpus.lessThan(decimal("2.0")) &&
  context.limits has memory_bytes && context.limits.memory_bytes < 1 &&
  context.limits has max_processes && context.limits.max_processes < 1 &&
  context.labels.contains("a=b") && (context.terminal || context.accepts_input || context.login || context.background)
};
@id("unsafe") forbid(principal, action, resource) when { context.uses_sudo || context.programs.contains("rm") };
@id("reason") forbid(principal, action, resource) when { context.reason == "forbidden" };
@id("counts") permit(principal, action, resource)
when { context.each_command.program == "wc" && context.each_command.arg1 == "-l" && context.each_command.argument_count == 1 };
"#;

static POLICY: LazyLock<Policy> = LazyLock::new(|| {
    // every action of the rules is one that starts something
    let rules = RULES.replace("principal, action, resource", "principal, action in Action::\"start\", resource");
    Policy::parse(Path::new("policy"), &rules, None, AgentFacts::default()).unwrap_or_else(|error| panic!("{error}"))
});

/// Decides whether a command may be run.
///
/// # Panics
/// The decision contradicts the rules.
pub fn policy(command: Command) {
    let place = ResolvedCommand {
        user: "root".into(),
        uid: 0,
        working_directory: "/".into(),
        shell: Some("bash".into()),
        variables: Vec::new(),
        no_new_privileges: command.no_new_privileges(),
    };
    let place = command.user().is_none().then_some(place);
    let caller = Caller::new(Identity::anonymous(), Transport::Tcp, "");
    let timeout = command.timeout();
    let facts = Facts::at(command, CommandAnalysis::new(Some("bash")), place, timeout);
    let decision = POLICY.decide(&caller, Rpc::Execute, &Subject::Command(&facts), Detail::Explained);
    let (analysis, command) = (facts.analysis(), &facts.command);
    assert!(!decision.reason.contains("cannot decide"), "{decision:?}");
    let named = |rule: &str| decision.rules.iter().any(|name| name == rule);
    if !analysis.understood {
        assert!(!decision.allowed && named("unsafe"), "{decision:?}");
    }
    let unsafe_one = analysis.uses_sudo || analysis.programs.iter().any(|program| program == "rm");
    let forbidden = unsafe_one || !analysis.understood || command.reason() == "forbidden";
    assert!(!(decision.allowed && forbidden), "{decision:?}");
    let is_listed = analysis.programs.iter().all(|program| program == "ls" || program == "cat");
    let is_count = |command: &SimpleCommand| command.program == "wc" && command.arguments == [Some("-l".to_owned())];
    let is_null = |file: &Redirection| file.path.as_deref() == Some("/dev/null");
    if decision.allowed && decision.rules == ["counts"] {
        assert!(analysis.commands.iter().all(is_count) && !analysis.commands.is_empty(), "{decision:?}");
        assert!(analysis.redirections.iter().all(is_null), "{decision:?}");
    }
    if !forbidden && is_listed {
        assert!(decision.allowed && named("listed"), "{decision:?}");
    }
}

/// Parses a policy.
///
/// # Panics
/// The parser does.
pub fn policy_text(text: &str) {
    let _ = Policy::parse(Path::new("policy"), text, None, AgentFacts::default());
}

/// Reads an audit log.
///
/// # Panics
/// A broken log is taken for whole.
pub fn audit(bytes: &[u8]) {
    let _ = Witness::read(bytes);
    let mut verifier = Verifier::new();
    if verifier.read(bytes).is_ok() {
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(verifier.finish().records, lines as u64);
    }
}

/// Reads the records that an agent sends to be kept.
///
/// # Panics
/// A line that is no record is taken for one.
pub fn logs(bytes: &[u8]) {
    for line in records_of_request(bytes) {
        assert!(line.ends_with(b"\"}") && !line.contains(&b'\n'), "{line:?}");
    }
}

/// A public key (P-256) whose private one nobody has kept.
const KEY_SET: &str = r#"{"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": "1",
  "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

const ISSUER: &str = r#"
issuer = "https://i"
audiences = ["a"]
names = ["*"]
claims = { c = ["x*"] }
roles = { r = { g = ["y"] } }
"#;

static TOKEN_ISSUERS: LazyLock<TokenIssuers> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("telexec-fuzz-{}.json", std::process::id()));
    let written = std::fs::write(&path, KEY_SET);
    let config: TokenIssuerConfig = toml::from_str(ISSUER).unwrap_or_else(|error| panic!("{error}"));
    let config = TokenIssuerConfig { keys_file: Some(path.clone()), ..config };
    let issuers = TokenIssuers::load(&[("i".to_owned(), config)].into());
    let _ = std::fs::remove_file(path);
    issuers.unwrap_or_else(|error| panic!("{error}: {written:?}"))
});

/// Reads a set of keys, an authorization header with a token, and the claims of one.
///
/// # Panics
/// A caller is known by what nobody has signed, or by a name of another kind.
pub fn token(bytes: &[u8]) {
    let _ = KeySet::parse(bytes, "fuzz");
    let stranger = Caller::new(Identity::unknown(), Transport::Tls, "");
    if let Ok(value) = HeaderValue::from_bytes(&[b"Bearer ", bytes].concat()) {
        let headers = [(AUTHORIZATION, value)].into_iter().collect();
        assert!(!TOKEN_ISSUERS.accepts(&stranger, &headers, 1_000_000));
    }
    if let Ok(claims) = serde_json::from_slice(bytes)
        && let Some(name) = TOKEN_ISSUERS.named(&claims, &stranger, 1_000_000)
    {
        assert!(name.starts_with("i:") && name.len() > 2 && !name.contains(char::is_control), "{name:?}");
    }
}
