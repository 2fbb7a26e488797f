//! `telexec ping` and `telexec info`: the state of an agent.

use std::collections::HashMap;
use std::time::SystemTime;

use serde_json::json;
use telexec_client::{AgentInfo, Target};
use telexec_executor::ExecutorError;
use telexec_receipt::PublicKey;

use crate::args::{InfoArgs, PingArgs};
use crate::config::{Config, Route};
use crate::connect::{Session, call_failure, check_own_certificate, own_expire_time};
use crate::output::{self, Failure, exit, fields, json};
use crate::syntax::Destination;

/// The agent answers, but is not serving.
const NOT_SERVING: u8 = 1;

pub(crate) async fn ping(args: PingArgs) -> Result<u8, Failure> {
    let session = Session::open(&args.agent.target, &args.connect).await?;
    let ping = session.agent.ping().await;
    session.close().await?;
    let ping = ping.map_err(|error| failure(&args.agent.target, &error))?;
    let state = if ping.serving { "serving" } else { "not serving: shutting down, or its keeper does not respond" };
    let millis = ping.round_trip.as_secs_f64() * 1000.0;
    output::print(format!("{}: {state}, {millis:.1} ms\n", args.agent.target).as_bytes())?;
    Ok(if ping.serving { 0 } else { NOT_SERVING })
}

pub(crate) async fn info(args: InfoArgs) -> Result<u8, Failure> {
    let config = Config::load()?;
    let resolved = config.resolve(&args.agent.target, &args.connect)?;
    check_own_certificate(&config, &resolved)?;
    let session = Session::connect(&resolved).await?;
    let info = session.agent.info().await;
    session.close().await?;
    let info = info.map_err(|error| failure(&args.agent.target, &error))?;
    // on a Unix socket or vsock none is shown
    let is_tcp = matches!(resolved.route, Route::Direct(Target::Tcp { .. }));
    let own = resolved.options.tls.as_ref().filter(|_| is_tcp).and_then(own_expire_time).and_then(json::time);
    let text = match args.json {
        true => {
            let mut object = as_json(&info);
            if let Some(object) = object.as_object_mut() {
                object.insert("own_certificate_expire_time".to_owned(), own.into());
            }
            format!("{object}\n")
        }
        false => as_text(&info, own),
    };
    output::print(text.as_bytes()).map(|()| 0)
}

fn failure(target: &Destination, error: &ExecutorError) -> Failure {
    call_failure(exit::of_error(error), target, error)
}

fn as_time<T>(time: Option<T>) -> Option<String>
where
    SystemTime: TryFrom<T>,
{
    time.and_then(|time| SystemTime::try_from(time).ok()).and_then(json::time)
}

pub(super) fn certificate_expire_time(info: &AgentInfo) -> Option<String> {
    as_time(info.certificate_expire_time)
}

fn as_text(info: &AgentInfo, own: Option<String>) -> String {
    let mut labels: Vec<String> = info.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    labels.sort();
    let (expiry, access) = (certificate_expire_time(info), as_time(info.caller_expire_time));
    fields([
        ("version", info.version.clone()),
        ("hostname", info.hostname.clone()),
        ("os", info.os.clone()),
        ("architecture", info.architecture.clone()),
        ("kernel", info.kernel.clone()),
        ("containment", info.containment.clone()),
        ("limits", limits(info)),
        ("agent user", info.agent_user.clone()),
        ("default user", info.default_user.clone()),
        ("policy", policy(info)),
        ("reload", failed_reloads(info)),
        ("keeper", has_keeper(info).map(|has| if has { "yes" } else { "no" }.to_owned()).unwrap_or_default()),
        ("executions", format!("{} running, at most {}", info.running_executions, info.max_executions)),
        ("ended", counts(&info.ended_executions)),
        ("refused", counts(&info.refusals)),
        ("started", as_time(info.start_time).unwrap_or_default()),
        ("labels", labels.join(" ")),
        ("identity", info.identity.clone()),
        ("roles", info.roles.join(", ")),
        ("agent's cert", expiry.map(|time| format!("expires {time}")).unwrap_or_default()),
        ("receipt key", receipt_key(info)),
        ("your cert", own.as_ref().map(|time| format!("expires {time}")).unwrap_or_default()),
        // a token, or a certificate of the Workload API
        ("access", access.filter(|_| own.is_none()).map(|time| format!("expires {time}")).unwrap_or_default()),
    ])
}

/// `None`: older agents do not say.
fn has_keeper(info: &AgentInfo) -> Option<bool> {
    (!info.agent_user.is_empty()).then_some(info.has_keeper)
}

/// Empty: it has none, or does not say.
fn policy(info: &AgentInfo) -> String {
    match info.policy_sha256.as_str() {
        "" => String::new(),
        digest => format!("SHA-256 {digest}"),
    }
}

/// Empty if there are none.
fn failed_reloads(info: &AgentInfo) -> String {
    match info.failed_reloads.join(", ") {
        none if none.is_empty() => none,
        files => format!("failed: {files}; what was read before is in use (the agent's log says why)"),
    }
}

/// Without the field that they are in.
fn limits(info: &AgentInfo) -> String {
    if has_keeper(info).is_none() {
        return String::new();
    }
    let names = info.limits.iter().map(|limit| limit.strip_prefix("limits.").unwrap_or(limit));
    match names.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "none".to_owned(),
        names => names,
    }
}

/// The id of the key that signs receipts.
fn receipt_key(info: &AgentInfo) -> String {
    let keys = PublicKey::from_pem(info.receipt_key.as_bytes()).unwrap_or_default();
    keys.iter().map(PublicKey::id).collect::<Vec<_>>().join(" ")
}

/// Sorted by count, descending.
fn counts(counts: &HashMap<String, u64>) -> String {
    let mut counts: Vec<_> = counts.iter().collect();
    counts.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), *name));
    counts.into_iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

pub(super) fn as_json(info: &AgentInfo) -> serde_json::Value {
    json!({
        "version": info.version,
        "hostname": info.hostname,
        "os": info.os,
        "architecture": info.architecture,
        "kernel": info.kernel,
        "containment": info.containment,
        "limits": has_keeper(info).map(|_| &info.limits),
        "agent_user": has_keeper(info).map(|_| &info.agent_user),
        "default_user": has_keeper(info).map(|_| &info.default_user),
        "has_keeper": has_keeper(info),
        "running_executions": info.running_executions,
        "max_executions": info.max_executions,
        "start_time": as_time(info.start_time),
        "labels": info.labels,
        "identity": info.identity,
        "roles": info.roles,
        "caller_expire_time": as_time(info.caller_expire_time),
        "policy_sha256": Some(&info.policy_sha256).filter(|digest| !digest.is_empty()),
        "failed_reloads": info.failed_reloads,
        "certificate_expire_time": certificate_expire_time(info),
        "ended_executions": info.ended_executions,
        "refusals": info.refusals,
        "receipt_key": Some(&info.receipt_key).filter(|key| !key.is_empty()),
    })
}
