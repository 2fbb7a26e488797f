//! What an MCP client sees: the tools of all targets, as their definitions say, and what calls of them come to.

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

use super::progress::Progress;

/// The parameter that tells targets apart, where there are several.
const TARGET: &str = "target";
/// Where a result has its details for programs. Not in `structuredContent`: there are clients that show a model that in
/// place of the text.
const DETAILS: &str = "telexec/details";
/// Chunks of output between a tool and what is told of it.
const QUEUE: usize = 16;

/// A target, and its tools; all have the same.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) tools: Vec<Box<dyn Tool>>,
}

impl Host {
    fn tool(&self, name: &str) -> Option<&dyn Tool> {
        self.tools.iter().map(AsRef::as_ref).find(|tool| tool.definition().name == name)
    }

    /// An error in words for a model, which knows the target by its name here.
    fn told(&self, error: ToolError) -> ToolResult {
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
    hosts: Vec<Host>,
    /// For calls that say nothing of one.
    trace: Option<TraceContext>,
}

impl Server {
    pub(super) fn new(hosts: Vec<Host>) -> Self {
        Self { hosts, trace: TraceContext::from_environment() }
    }

    fn names(&self) -> Vec<&str> {
        self.hosts.iter().map(|host| host.name.as_str()).collect()
    }

    /// A tool as the client is told of it.
    fn described(&self, tool: &dyn Tool) -> rmcp::model::Tool {
        let mut definition = tool.definition().clone();
        if self.hosts.len() > 1 {
            let about = "The machine; each has a working directory and tasks of its own";
            let schema = json!({ "type": "string", "description": about, "enum": self.names() });
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
        rmcp::model::Tool::new(definition.name, definition.description, Arc::new(schema)).with_annotations(annotations)
    }

    /// The target of a call, whose parameters are then those of its tool.
    fn host(&self, params: &mut JsonObject) -> Option<&Host> {
        match &self.hosts[..] {
            [only] => Some(only),
            hosts => {
                let named = params.remove(TARGET)?;
                hosts.iter().find(|host| named == host.name)
            }
        }
    }

    /// Calls a tool; cancelling the request drops the call, which ends its command.
    async fn call(
        &self,
        tool: &dyn Tool,
        params: JsonObject,
        request: RequestContext<RoleServer>,
    ) -> Result<ToolResult, ToolError> {
        let meta = &request.meta;
        let parent = meta.get_traceparent();
        let trace = parent.and_then(|parent| TraceContext::parse(parent, meta.get_tracestate().unwrap_or_default()));
        let (output, told) = match meta.get_progress_token() {
            Some(token) => {
                let (output, chunks) = mpsc::channel(QUEUE);
                (Some(output), Some(Progress::new(request.peer, token).follow(chunks)))
            }
            None => (None, None),
        };
        let trace = trace.or_else(|| self.trace.clone());
        let context = ToolContext { cancel: request.ct.clone(), output, trace };
        let call = async { tokio::join!(tool.execute(params.into(), context), OptionFuture::from(told)).0 };
        request.ct.run_until_cancelled(call).await.unwrap_or(Err(ToolError::Cancelled))
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let names = self.names().join(", ");
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("telexec", env!("CARGO_PKG_VERSION")))
            .with_instructions(format!("Commands run on: {names}."))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        // those of every target are the same
        let tools = self.hosts.iter().take(1).flat_map(|host| &host.tools);
        Ok(ListToolsResult::with_all_items(tools.map(|tool| self.described(tool.as_ref())).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut params = request.arguments.unwrap_or_default();
        let host = self.host(&mut params);
        let Some(tool) = host.or(self.hosts.first()).and_then(|host| host.tool(&request.name)) else {
            return Err(ErrorData::invalid_params(format!("unknown tool {:?}", request.name), None));
        };
        let result = match host {
            Some(host) => self.call(tool, params, context).await.unwrap_or_else(|error| host.told(error)),
            None => {
                let error = format!("{TARGET}: give one of {}", self.names().join(", "));
                ToolResult::failure("Call failed", &ToolFailure::invalid_input(&request.name, error))
            }
        };
        Ok(answer(result).into())
    }
}

fn answer(result: ToolResult) -> CallToolResult {
    let content = result.content.into_iter().map(|Content::Text(text)| ContentBlock::text(text)).collect();
    let mut answer = match result.is_error {
        true => CallToolResult::error(content),
        false => CallToolResult::success(content),
    };
    if !result.details.is_null() {
        answer.meta = Some(MetaObject(JsonObject::from_iter([(DETAILS.to_owned(), result.details)])));
    }
    answer
}
