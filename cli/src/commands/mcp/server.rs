//! The MCP server: lists the tools of all targets and calls them.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::OptionFuture;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, JsonObject, ListToolsResult,
    MetaObject, PaginatedRequestParams, ServerCapabilities, ServerConfig, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use telexec_executor::TraceContext;
use telexec_tool::{Content, Tool, ToolContext, ToolError, ToolFailure, ToolResult};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::progress::Progress;

/// The parameter that selects one of several targets.
const TARGET: &str = "target";
/// The target that ends with this process.
const LOCAL: &str = "local";
/// The header that names a session.
const SESSION_ID: &str = "mcp-session-id";
/// The key of the details of a failed call, which do not fit the tool's output schema.
const DETAILS: &str = "telexec/details";
/// What a model needs to choose between the tools; what each does is in its description.
pub(super) const TOOLS: [&str; 6] = [
    "bash: commands that end soon. It waits for the end, or for its timeout, which ends the command.",
    "exec_command: builds, tests, servers and whatever may take long: after `yield_time_ms` it continues as a task. With \
     `tty` also for interactive programs such as python, psql or ssh.",
    "task_output: reads on. task_input: types into a task and returns what it prints next. task_stop: ends it. task_list: \
     finds tasks again.",
    "read_file: a text file, with line numbers. write_file: a whole file. edit_file: a part of one. list_directory: names \
     and sizes. glob: files by name. grep: lines in files. Prefer these to cat, sed, ls, find and grep in bash. Their \
     relative paths begin at the home directory, wherever bash is.",
    "Long output is cut in the middle, where a line says how much is missing. If exec_command names artifacts, they have \
     all of it, as files on that machine: look into them with bash (grep, sed -n, tail).",
    "An exit code other than 0 is a result, not a failure of the tool.",
];
/// Chunks of output between a tool and its progress notifications.
const QUEUE: usize = 16;

/// A target and its tools.
#[derive(Clone)]
pub(super) struct TargetTools {
    pub(super) name: String,
    /// Who commands run as; `None`: the agent's user.
    pub(super) user: Option<String>,
    pub(super) tools: Vec<Arc<dyn Tool>>,
    /// Instead of the tool of that name for requests without a session, which remember nothing.
    pub(super) sessionless: Option<Arc<dyn Tool>>,
}

impl TargetTools {
    /// What sets it apart from others.
    fn remark(&self) -> Option<String> {
        let user = self.user.as_ref().map(|user| format!("commands run as {user}"));
        let local = (self.name == LOCAL).then(|| "this machine; its tasks end with this server".to_owned());
        let remarks: Vec<_> = local.into_iter().chain(user).collect();
        (!remarks.is_empty()).then(|| format!("{}: {}.", self.name, remarks.join("; ")))
    }

    fn tools(&self, has_session: bool) -> impl Iterator<Item = &dyn Tool> {
        let sessionless = self.sessionless.as_deref().filter(|_| !has_session);
        self.tools.iter().map(move |tool| {
            sessionless.filter(|other| other.definition().name == tool.definition().name).unwrap_or(tool.as_ref())
        })
    }

    fn tool(&self, name: &str, has_session: bool) -> Option<&dyn Tool> {
        self.tools(has_session).find(|tool| tool.definition().name == name)
    }

    /// An error as a result for the model, which knows the target by this name.
    fn error_result(&self, error: ToolError) -> ToolResult {
        match error {
            ToolError::Failed { message, source: Some(_) } if !message.contains(&self.name) => {
                ToolResult::error(format!("{}: {message}", self.name))
            }
            error => ToolResult::error(error.to_string()),
        }
    }
}

pub(super) struct Server {
    /// At least one.
    targets: Vec<TargetTools>,
    /// What the tools are for, a line each.
    about: &'static [&'static str],
    /// For calls without a trace context.
    trace: Option<TraceContext>,
    calls: Calls,
}

/// The calls of all servers in this process.
#[derive(Clone, Default)]
pub(super) struct Calls {
    pub(super) running: TaskTracker,
    /// Ends them.
    pub(super) stop: CancellationToken,
}

impl Server {
    pub(super) fn new(targets: Vec<TargetTools>, about: &'static [&'static str], calls: Calls) -> Self {
        Self { targets, about, trace: TraceContext::from_environment(), calls }
    }

    fn names(&self) -> Vec<&str> {
        self.targets.iter().map(|target| target.name.as_str()).collect()
    }

    /// The targets that have a tool.
    fn names_with(&self, tool: &str) -> Vec<&str> {
        let with = self.targets.iter().filter(|target| target.tool(tool, true).is_some());
        with.map(|target| target.name.as_str()).collect()
    }

    /// Which tool is for what, and where.
    fn instructions(&self) -> String {
        let mut lines = vec![format!("Commands run on: {}.", self.names().join(", "))];
        lines.extend(self.targets.iter().filter_map(TargetTools::remark));
        if self.targets.len() > 1 {
            lines.push("Each has its own files, working directory and tasks: `target` selects it.".to_owned());
        }
        lines.extend(self.about.iter().map(|&line| line.to_owned()));
        lines.join("\n")
    }

    /// The definition of a tool for the client.
    fn mcp_definition(&self, tool: &dyn Tool) -> rmcp::model::Tool {
        let mut definition = tool.definition().clone();
        if self.targets.len() > 1 {
            let about = "Machine; each has its own files, working directory and tasks";
            let schema = json!({ "type": "string", "description": about, "enum": self.names_with(&definition.name) });
            definition = definition.parameter(TARGET, schema, true);
        }
        let schema = match definition.input_schema {
            Value::Object(schema) => schema,
            _ => JsonObject::new(),
        };
        let annotations = ToolAnnotations::new()
            .read_only(tool.is_read_only())
            .destructive(tool.is_destructive())
            .idempotent(tool.is_idempotent())
            .open_world(tool.is_open_world());
        let tool = rmcp::model::Tool::new(definition.name, definition.description, Arc::new(schema));
        let tool = match definition.output_schema {
            Value::Object(schema) => tool.with_raw_output_schema(Arc::new(schema)),
            _ => tool,
        };
        tool.with_annotations(annotations)
    }

    /// Takes the target out of the parameters of a call.
    fn target(&self, params: &mut JsonObject) -> Option<&TargetTools> {
        match &self.targets[..] {
            [only] => Some(only),
            targets => {
                let named = params.remove(TARGET)?;
                targets.iter().find(|target| named == target.name)
            }
        }
    }

    /// Names a parameter that does not exist. Without several targets the tool does that; it does not know `target`.
    fn unknown_parameter(&self, tool: &dyn Tool, params: &JsonObject) -> Option<String> {
        let definition = tool.definition();
        let known = definition.input_schema.get("properties").and_then(Value::as_object)?;
        let name = params.keys().find(|name| self.targets.len() > 1 && !known.contains_key(*name))?;
        let known: Vec<_> = [TARGET].into_iter().chain(known.keys().map(String::as_str)).collect();
        Some(format!("{name}: unknown parameter; {} has {}", definition.name, known.join(", ")))
    }

    /// Calls a tool; cancelling the request drops the call, which ends its command.
    async fn call(
        &self,
        tool: &dyn Tool,
        params: JsonObject,
        request: RequestContext<RoleServer>,
    ) -> Result<ToolResult, ToolError> {
        let meta = &request.meta;
        let _running = self.calls.running.token();
        let parent = meta.get_traceparent();
        let trace = parent.and_then(|parent| TraceContext::parse(parent, meta.get_tracestate().unwrap_or_default()));
        let (output, progress) = match meta.get_progress_token() {
            Some(token) => {
                let (output, chunks) = mpsc::channel(QUEUE);
                (Some(output), Some(Progress::new(request.peer, token).follow(chunks)))
            }
            None => (None, None),
        };
        let trace = trace.or_else(|| self.trace.clone());
        let context = ToolContext { cancel: request.ct.clone(), output, trace };
        let call = async { tokio::join!(tool.execute(params.into(), context), OptionFuture::from(progress)).0 };
        let call = request.ct.run_until_cancelled(self.calls.stop.run_until_cancelled(call));
        call.await.flatten().unwrap_or(Err(ToolError::Cancelled))
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("telexec", env!("CARGO_PKG_VERSION")))
            .with_instructions(self.instructions())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let all = self.targets.iter().flat_map(|target| target.tools(has_session(&context)));
        let mut names = HashSet::new();
        let tools = all.filter(|tool| names.insert(tool.definition().name.as_str()));
        Ok(ListToolsResult::with_all_items(tools.map(|tool| self.mcp_definition(tool)).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut params = request.arguments.unwrap_or_default();
        let session = has_session(&context);
        let target = self.target(&mut params).filter(|target| target.tool(&request.name, session).is_some());
        let tool = target.into_iter().chain(&self.targets).find_map(|target| target.tool(&request.name, session));
        let Some(tool) = tool else {
            return Err(ErrorData::invalid_params(format!("unknown tool {:?}", request.name), None));
        };
        let invalid = |error| ToolResult::failure("Call failed", &ToolFailure::invalid_input(&request.name, error));
        let result = match target {
            None => invalid(format!("{TARGET}: expected one of {}", self.names_with(&request.name).join(", "))),
            Some(_) if let Some(error) = self.unknown_parameter(tool, &params) => invalid(error),
            Some(target) => self.call(tool, params, context).await.unwrap_or_else(|error| target.error_result(error)),
        };
        Ok(answer(result).into())
    }
}

/// Over HTTP, requests of MCP since 2026-07-28 have no session.
fn has_session(request: &RequestContext<RoleServer>) -> bool {
    let http = request.extensions.get::<http::request::Parts>();
    http.is_none_or(|parts| parts.headers.contains_key(SESSION_ID))
}

fn answer(result: ToolResult) -> CallToolResult {
    let content = result.content.into_iter().map(|Content::Text(text)| ContentBlock::text(text)).collect();
    let mut answer = match result.is_error {
        true => CallToolResult::error(content),
        false => CallToolResult::success(content),
    };
    match (result.structured, result.details) {
        (Value::Null, Value::Null) => {}
        (Value::Null, details) => {
            answer.meta = Some(MetaObject(JsonObject::from_iter([(DETAILS.to_owned(), details)])));
        }
        (structured, _) => answer.structured_content = Some(structured),
    }
    answer
}
