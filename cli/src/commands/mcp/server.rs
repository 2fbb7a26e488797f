//! The MCP server: lists the tools of all targets and calls them.

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

/// The parameter that selects one of several targets.
const TARGET: &str = "target";
/// The key of a result's details for programs. Not `structuredContent`, because some clients show that to the model
/// instead of the text.
const DETAILS: &str = "telexec/details";
/// Chunks of output between a tool and its progress notifications.
const QUEUE: usize = 16;

/// A target and its tools, which are the same for all targets.
pub(super) struct TargetTools {
    pub(super) name: String,
    pub(super) tools: Vec<Box<dyn Tool>>,
}

impl TargetTools {
    fn tool(&self, name: &str) -> Option<&dyn Tool> {
        self.tools.iter().map(AsRef::as_ref).find(|tool| tool.definition().name == name)
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
    /// For calls without a trace context.
    trace: Option<TraceContext>,
}

impl Server {
    pub(super) fn new(targets: Vec<TargetTools>) -> Self {
        Self { targets, trace: TraceContext::from_environment() }
    }

    fn names(&self) -> Vec<&str> {
        self.targets.iter().map(|target| target.name.as_str()).collect()
    }

    /// The definition of a tool for the client.
    fn mcp_definition(&self, tool: &dyn Tool) -> rmcp::model::Tool {
        let mut definition = tool.definition().clone();
        if self.targets.len() > 1 {
            let about = "Machine to run on; each has its own working directory and tasks";
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
        // all targets have the same tools
        let tools = self.targets.iter().take(1).flat_map(|target| &target.tools);
        Ok(ListToolsResult::with_all_items(tools.map(|tool| self.mcp_definition(tool.as_ref())).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut params = request.arguments.unwrap_or_default();
        let target = self.target(&mut params);
        let Some(tool) = target.or(self.targets.first()).and_then(|target| target.tool(&request.name)) else {
            return Err(ErrorData::invalid_params(format!("unknown tool {:?}", request.name), None));
        };
        let result = match target {
            Some(target) => self.call(tool, params, context).await.unwrap_or_else(|error| target.error_result(error)),
            None => {
                let error = format!("{TARGET}: expected one of {}", self.names().join(", "));
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
