//! The control plane: sandboxes are created, listed, prolonged, paused and killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::warn;

use crate::app::App;
use crate::auth;
use crate::claim::{Claim, ClaimState};
use crate::connect::whole;
use crate::failure::{Code, Failure, answer, put};
use crate::metrics;
use crate::room::Room;
use crate::sandbox::Sandbox;
use crate::target::{Target, TargetError};
use crate::times::{later, rfc3339};

/// What the SDKs ask for: features of envd that they use.
const ENVD_VERSION: &str = "0.6.7";
const CLIENT_ID: &str = "telexec";
/// Where the SDKs name none: what E2B's documentation promises, and not the 15 s of its API's description.
const DEFAULT_TIMEOUT_SECONDS: u64 = 300;
const MAX_BODY_BYTES: usize = 1024 * 1024;
const MAX_KEY_BYTES: usize = 256;

type Shared = State<Arc<App>>;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct New {
    #[serde(rename = "templateID")]
    template_id: String,
    timeout: Option<u64>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    auto_pause: Option<bool>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<Value>,
    volume_mounts: Option<Vec<Value>>,
    mcp: Option<Value>,
    iam: Option<Value>,
}

impl New {
    /// What cannot be had is refused, rather than left out.
    fn check(&self) -> Result<(), Failure> {
        let is_some =
            |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null() && *value != json!({}));
        let refused = [
            ("autoPause", self.auto_pause == Some(true)),
            ("allow_internet_access", self.allow_internet_access == Some(false)),
            ("network", is_some(&self.network)),
            ("volumeMounts", self.volume_mounts.as_ref().is_some_and(|mounts| !mounts.is_empty())),
            ("mcp", is_some(&self.mcp)),
            ("iam", is_some(&self.iam)),
        ];
        match refused.iter().find(|(_, refused)| *refused) {
            Some((field, _)) => Err(Failure::invalid(format!("{field}: telexec-e2b does not support this"))),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
struct Timeout {
    timeout: Option<u64>,
}

async fn body<Q: DeserializeOwned + Default>(body: Body, room: &Room) -> Result<Q, Failure> {
    let message = whole(body, MAX_BODY_BYTES, room).await?;
    if message.is_empty() { Ok(Q::default()) } else { message.parse() }
}

impl App {
    fn deadline(&self, seconds: u64) -> Result<SystemTime, Failure> {
        let longest = self.max_timeout;
        let wanted = Duration::from_secs(seconds);
        if wanted > longest {
            let message = format!("timeout: is longer than the {} s that telexec-e2b allows", longest.as_secs());
            return Err(Failure::invalid(message));
        }
        Ok(later(wanted))
    }

    fn sandbox(&self, headers: &HeaderMap, id: &str) -> Result<(&Arc<Target>, Arc<Sandbox>), Failure> {
        self.keys.check(headers)?;
        self.pool.find(id).ok_or_else(|| not_found(id))
    }
}

fn not_found(id: &str) -> Failure {
    Failure::new(Code::NotFound, format!("sandbox {id:?} was not found"))
}

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Failure(failure) => failure,
            TargetError::TakenOver => Self::gone(),
            error => Self::new(Code::Unavailable, crate::chain(&error)),
        }
    }
}

pub(crate) async fn create(State(app): Shared, headers: HeaderMap, body: Body) -> Result<Response, Failure> {
    app.keys.check(&headers)?;
    let new: New = whole(body, MAX_BODY_BYTES, &app.room).await?.parse()?;
    new.check()?;
    let started = SystemTime::now();
    let claim = Claim {
        state: ClaimState::Running,
        owner: String::new(),
        id: String::new(),
        home: String::new(),
        token: auth::secret()?,
        template: new.template_id,
        metadata: new.metadata.unwrap_or_default(),
        envs: new.env_vars.unwrap_or_default(),
        idempotency_key: idempotency_key(&headers)?,
        started,
        deadline: app.deadline(new.timeout.unwrap_or(DEFAULT_TIMEOUT_SECONDS))?,
    };
    check_envs(&claim.envs)?;
    claim.check().map_err(|error| Failure::invalid(error.to_string()))?;
    let sandbox = app.pool.create(claim).await?;
    Ok(answer(StatusCode::CREATED, &access(&sandbox)))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    match key.to_str() {
        Ok(key) if key.len() <= MAX_KEY_BYTES => Ok(Some(key.to_owned())),
        _ => Err(Failure::invalid(format!("idempotency-key: is not text of at most {MAX_KEY_BYTES} bytes"))),
    }
}

/// Now, rather than when the first command runs.
fn check_envs(envs: &BTreeMap<String, String>) -> Result<(), Failure> {
    let check = telexec_executor::Command::argv(["true"]).envs(envs.clone()).build();
    check.map(drop).map_err(|error| Failure::invalid(format!("envVars: {error}")))
}

/// What an SDK needs to use a sandbox.
fn access(sandbox: &Sandbox) -> Value {
    json!({
        "sandboxID": sandbox.id(),
        "templateID": sandbox.claim.template,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": sandbox.claim.token,
    })
}

/// What is known of it.
pub(crate) fn detail(target: &Target, sandbox: &Sandbox) -> Value {
    let machine = target.machine();
    let claim = &sandbox.claim;
    json!({
        "sandboxID": claim.id,
        "templateID": claim.template,
        "alias": claim.template,
        "clientID": CLIENT_ID,
        "startedAt": rfc3339(claim.started),
        "endAt": rfc3339(claim.deadline),
        "envdVersion": ENVD_VERSION,
        "cpuCount": machine.processors,
        "memoryMB": machine.memory_bytes / (1024 * 1024),
        "diskSizeMB": machine.disk_bytes / (1024 * 1024),
        "metadata": claim.metadata,
        "state": if sandbox.is_paused { "paused" } else { "running" },
    })
}

pub(crate) async fn info(State(app): Shared, headers: HeaderMap, Path(id): Path<String>) -> Result<Response, Failure> {
    let (target, sandbox) = app.sandbox(&headers, &id)?;
    let mut detail = detail(target, &sandbox);
    put(&mut detail, "envdAccessToken", sandbox.claim.token.as_str());
    Ok(answer(StatusCode::OK, &detail))
}

pub(crate) async fn kill(State(app): Shared, headers: HeaderMap, Path(id): Path<String>) -> Result<Response, Failure> {
    let (target, _) = app.sandbox(&headers, &id)?;
    let target = Arc::clone(target);
    // who goes meanwhile has killed it too
    let ended = app.pool.run(async move { target.end(&id).await.map_err(|error| (id, error)) });
    match ended.await? {
        Ok(()) => Ok(StatusCode::NO_CONTENT.into_response()),
        Err((id, TargetError::Failure(failure))) if failure.code == Code::BadGateway => Err(not_found(&id)),
        Err((_, error)) => Err(error.into()),
    }
}

pub(crate) async fn set_timeout(
    State(app): Shared,
    headers: HeaderMap,
    Path(id): Path<String>,
    request: Body,
) -> Result<Response, Failure> {
    let (target, sandbox) = app.sandbox(&headers, &id)?;
    let seconds =
        body::<Timeout>(request, &app.room).await?.timeout.ok_or_else(|| Failure::invalid("timeout: is missing"))?;
    let deadline = app.deadline(seconds)?;
    if sandbox.is_paused {
        return Err(not_found(&id));
    }
    let target = Arc::clone(target);
    app.pool.run(async move { target.change(&id, |claim| claim.deadline = deadline).await }).await??;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Resumes it, if it is paused; it lives for as long as is asked for, if that is longer than it would.
pub(crate) async fn connect(
    State(app): Shared,
    headers: HeaderMap,
    Path(id): Path<String>,
    request: Body,
) -> Result<Response, Failure> {
    let (target, sandbox) = app.sandbox(&headers, &id)?;
    let seconds = body::<Timeout>(request, &app.room).await?.timeout;
    let deadline = app.deadline(seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS))?;
    let target = Arc::clone(target);
    if sandbox.is_paused {
        let resumed = app.pool.run(async move { target.resume(&id, deadline).await }).await??;
        return Ok(answer(StatusCode::CREATED, &access(&resumed)));
    }
    if seconds.is_some() && deadline > sandbox.claim.deadline {
        app.pool
            .run(async move { target.change(&id, |claim| claim.deadline = claim.deadline.max(deadline)).await })
            .await??;
    }
    Ok(answer(StatusCode::OK, &access(&sandbox)))
}

pub(crate) async fn pause(State(app): Shared, headers: HeaderMap, Path(id): Path<String>) -> Result<Response, Failure> {
    let target = Arc::clone(app.sandbox(&headers, &id)?.0);
    app.pool.run(async move { target.pause(&id).await }).await??;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// One sample: of now.
pub(crate) async fn metrics(
    State(app): Shared,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let (_, sandbox) = app.sandbox(&headers, &id)?;
    let metric =
        metrics::metric(&sandbox.link.executor).await.inspect_err(|error| warn!("{id}: no metrics: {error}"))?;
    Ok(answer(StatusCode::OK, &json!([metric])))
}

/// What the SDKs can ask for, and this is not.
pub(crate) async fn unsupported() -> Failure {
    Failure::new(Code::Unimplemented, "telexec-e2b does not support this")
}
