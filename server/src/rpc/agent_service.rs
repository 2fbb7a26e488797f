//! `telexec.v1.AgentService`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use telexec_engine::look_up_users;
use telexec_executor::InvalidCommand;
use telexec_proto::convert::{command_from_wire, error_to_status};
use telexec_proto::v1::agent_service_server::AgentService;
use telexec_proto::v1::{CheckCommandRequest, CheckCommandResponse, GetAgentRequest, GetAgentResponse};
use telexec_shell::{Analysis, permission_pattern};
use tonic::{Request, Response, Status};

use crate::admission::Stack;
use crate::call::caller::Caller;
use crate::call::status::{counted, invalid};
use crate::call::{Call, Rpc};
use crate::config::Config;
use crate::hostname::hostname;
use crate::identity::Identity;
use crate::identity::patterns::{OF_NOBODY, is_of_nobody};
use crate::named_command::Resolved;
use crate::policy::Decision;
use crate::reload::ReloadStates;
use crate::tls::Tls;

pub(crate) struct Agent {
    stack: Stack,
    tls: Option<Tls>,
    reloads: ReloadStates,
    max_executions: u32,
    labels: HashMap<String, String>,
    start_time: SystemTime,
    user: String,
    has_keeper: bool,
}

impl Agent {
    pub(crate) fn new(
        stack: Stack,
        tls: Option<Tls>,
        reloads: ReloadStates,
        config: &Config,
        start_time: SystemTime,
    ) -> Self {
        let labels = config.labels.clone().into_iter().collect();
        let (max_executions, has_keeper) = (config.max_executions, config.kept_by.is_some());
        Self { stack, tls, reloads, max_executions, labels, start_time, user: own_user(), has_keeper }
    }

    /// When it was started.
    pub(crate) fn start_time(&self) -> SystemTime {
        self.start_time
    }
}

#[tonic::async_trait]
impl AgentService for Agent {
    async fn get_agent(&self, request: Request<GetAgentRequest>) -> Result<Response<GetAgentResponse>, Status> {
        let call = Call::of(&request, Rpc::GetAgent)?;
        self.stack.permit(&call).await.map_err(|error| error_to_status(&error))?;
        let engine = &self.stack.engine;
        let system = rustix::system::uname();
        let answer = GetAgentResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            hostname: hostname(),
            os: std::env::consts::OS.into(),
            architecture: std::env::consts::ARCH.into(),
            kernel: system.release().to_string_lossy().into_owned(),
            containment: engine.containment().as_str().into(),
            running_executions: u32::try_from(engine.running()).unwrap_or(u32::MAX),
            max_executions: self.max_executions,
            start_time: Some(self.start_time.into()),
            labels: self.labels.clone(),
            identity: call.caller.identity.to_string(),
            certificate_expire_time: self.tls.as_ref().and_then(Tls::end).map(Into::into),
            ended_executions: self.stack.metrics.ended(),
            refusals: self.stack.metrics.refusals(),
            named_commands: self.stack.named_commands.list(),
            receipt_key: self.stack.receipts.public_key(),
            limits: engine.limits().into_iter().map(str::to_owned).collect(),
            default_user: engine.user().to_owned(),
            agent_user: self.user.clone(),
            has_keeper: self.has_keeper,
            roles: self.stack.roles(&call.caller),
            caller_expire_time: call.caller.expiry().map(Into::into),
            policy_sha256: self
                .stack
                .policy
                .as_ref()
                .map(|policy| policy.current().digest.to_string())
                .unwrap_or_default(),
            failed_reloads: self.reloads.failing(),
        };
        counted(&call.reservation, answer)
    }

    async fn check_command(
        &self,
        request: Request<CheckCommandRequest>,
    ) -> Result<Response<CheckCommandResponse>, Status> {
        let call = Call::of(&request, Rpc::CheckCommand)?;
        let CheckCommandRequest { request: asked, identity } = request.into_inner();
        let asked = asked.ok_or_else(|| invalid(InvalidCommand::new("request", "is missing")))?;
        let command = command_from_wire(asked, None).map_err(invalid)?;
        if is_of_nobody(&identity) {
            return Err(invalid(InvalidCommand::new("identity", format!("{identity:?} {OF_NOBODY}"))));
        }
        let caller = self.about(&call, &identity).await?;
        // evaluating it costs as much as a start
        self.stack.start_limiter.count(&call.caller.identity).map_err(|error| error_to_status(&error))?;
        let resolved = self.stack.resolve(&call, command).await.map_err(|error| error_to_status(&error))?;
        let Resolved { command, refusal } = resolved;
        let judged = self.stack.judge(&call, caller, Rpc::Execute, command).await;
        let (facts, decision) = judged.map_err(|error| error_to_status(&error))?;
        let is_possible = decision.allowed || decision.approval.is_some();
        if let (true, Some(refusal)) = (is_possible, refusal) {
            return Err(error_to_status(&refusal));
        }
        let user = facts.place().map_or(Ok(()), |place| self.stack.engine.check_user(place));
        if let (true, Err(refusal)) = (is_possible, user) {
            let reason = refusal.to_string();
            let refused = CheckCommandResponse { reason, ..Default::default() };
            return counted(&call.reservation, with_analysis(refused, facts.analysis()));
        }
        let Decision { allowed, reason, missing, approval, record: recorded, .. } = decision;
        let needs_approval = approval.is_some();
        // which users there are is for those alone who may run something as them
        let user = is_possible.then(|| facts.place().map(|place| place.user.clone()).unwrap_or_default());
        let answer =
            CheckCommandResponse { allowed, reason, missing, needs_approval, recorded, user, ..Default::default() };
        // who may not run a named command learns nothing of its definition
        let answer = match allowed || needs_approval || !facts.are_of_named_command() {
            true => with_analysis(answer, facts.analysis()),
            false => answer,
        };
        counted(&call.reservation, answer)
    }
}

/// The user of this process.
fn own_user() -> String {
    let id = rustix::process::geteuid().as_raw().to_string();
    let found = look_up_users(std::slice::from_ref(&id)).unwrap_or_default();
    found.into_iter().next().map_or(id, |user| user.name)
}

/// What the command runs.
fn with_analysis(answer: CheckCommandResponse, analysis: &Analysis) -> CheckCommandResponse {
    CheckCommandResponse {
        permission_pattern: permission_pattern(analysis).unwrap_or_default(),
        uses_sudo: analysis.uses_sudo,
        understood: analysis.understood,
        programs: analysis.programs.clone(),
        ..answer
    }
}

impl Agent {
    /// Whom CheckCommand asks about, if the caller may ask.
    async fn about(&self, call: &Call, identity: &str) -> Result<Arc<Caller>, Status> {
        if identity.is_empty() || identity == call.caller.identity.as_str() {
            self.stack.permit(call).await.map_err(|error| error_to_status(&error))?;
            return Ok(Arc::clone(&call.caller));
        }
        let malformed =
            || invalid(InvalidCommand::new("identity", "is not the name of a caller, as GetAgent reports it"));
        let identity = Identity::from_name(identity).ok_or_else(malformed)?;
        self.stack.permit_as(call, &identity).await.map_err(|error| error_to_status(&error))?;
        Ok(Arc::new(Caller::imagined(identity)))
    }
}
