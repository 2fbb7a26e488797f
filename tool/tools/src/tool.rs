//! What an AI orchestrator calls.

use std::fmt;

use async_trait::async_trait;
use schemars::{JsonSchema, schema_for};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use telexec_executor::{Output, TraceContext};

/// Something a model can ask for by name, with parameters that fit a JSON schema.
#[async_trait]
pub trait Tool: Send + Sync {
    /// Its name, what it is for, and its parameters.
    fn definition(&self) -> &ToolDefinition;

    /// Does it.
    ///
    /// A failure that the model should see and can act on, such as a non-zero exit code, is a [`ToolResult`].
    ///
    /// # Errors
    /// The call itself failed: see [`ToolError`].
    async fn execute(&self, params: Value, context: ToolContext) -> Result<ToolResult, ToolError>;

    /// It can do what cannot be undone. Default: no.
    fn is_destructive(&self) -> bool {
        false
    }

    /// It changes nothing. Default: no.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Several calls may run at once. Default: no.
    fn is_concurrent_safe(&self) -> bool {
        false
    }

    /// The same call again changes nothing more. Default: what changes nothing at all.
    fn is_idempotent(&self) -> bool {
        self.is_read_only()
    }

    /// It may have effects beyond the machine, such as on the network. Default: no.
    fn is_open_world(&self) -> bool {
        false
    }

    /// The call in one short line, for people. Default: the name in brackets.
    fn summary(&self, _params: &Value) -> String {
        format!("[{}]", self.definition().name)
    }

    /// What it is doing, for people. Default: nothing.
    fn activity_description(&self, _params: &Value) -> Option<String> {
        None
    }

    /// A pattern that stands for calls like this one, for "always allow". Default: none.
    fn permission_pattern(&self, _params: &Value) -> Option<String> {
        None
    }
}

/// A tool's name, purpose and parameters, as a model gets them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolDefinition {
    /// What it is called by.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON schema of the parameters: an object.
    #[serde(rename = "inputSchema")]
    pub input_schema: Value,
    /// JSON schema of [`ToolResult::structured`]: an object; null: there is none.
    #[serde(rename = "outputSchema", skip_serializing_if = "Value::is_null")]
    pub output_schema: Value,
}

impl ToolDefinition {
    /// A tool without parameters yet.
    pub fn new(name: impl Into<String>, description: impl Into<String>) -> Self {
        let input_schema = json!({ "type": "object", "properties": {}, "required": [] });
        Self { name: name.into(), description: description.into(), input_schema, output_schema: Value::Null }
    }

    /// The same tool with one more parameter; `schema` is the parameter's own JSON schema.
    pub fn parameter(mut self, name: &str, schema: Value, required: bool) -> Self {
        if let Some(properties) = self.input_schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.insert(name.to_owned(), schema);
        }
        if let (true, Some(names)) = (required, self.input_schema.get_mut("required").and_then(Value::as_array_mut)) {
            names.push(name.into());
        }
        self
    }

    /// The same tool, whose structured results are of this type.
    pub fn returns<T: JsonSchema>(mut self) -> Self {
        self.output_schema = schema_for!(T).to_value();
        without_descriptions(&mut self.output_schema);
        self
    }

    /// The same tool, which refuses any other parameter.
    pub fn closed(mut self) -> Self {
        if let Some(schema) = self.input_schema.as_object_mut() {
            schema.insert("additionalProperties".to_owned(), false.into());
        }
        self
    }
}

/// Names say what fields are: clients put schemas into the model's context, where each word costs.
fn without_descriptions(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|name, field| {
                !(field.is_string() && ["description", "title", "$schema"].contains(&name.as_str()))
            });
            fields.values_mut().for_each(without_descriptions);
        }
        Value::Array(items) => items.iter_mut().for_each(without_descriptions),
        _ => {}
    }
}

/// What a call gets from its caller besides parameters.
#[derive(Clone, Debug, Default)]
pub struct ToolContext {
    /// Cancelled when the caller no longer wants the call; the tool then answers [`ToolError::Cancelled`].
    pub cancel: CancellationToken,
    /// Gets the output while the tool runs. A full channel slows the tool down; a closed one is ignored.
    pub output: Option<mpsc::Sender<Output>>,
    /// The span that the call belongs to: what it starts gets it.
    pub trace: Option<TraceContext>,
}

/// What a call came to.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResult {
    /// For the model.
    pub content: Vec<Content>,
    /// For programs, in the layout that orchestrators are used to.
    pub details: Value,
    /// For programs, as the output schema of the tool says; null: the call failed.
    pub structured: Value,
    /// The tool did its part, but what was asked for failed.
    pub is_error: bool,
}

impl ToolResult {
    /// A result that is one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            content: vec![Content::Text(text.into())],
            details: Value::Null,
            structured: Value::Null,
            is_error: false,
        }
    }

    /// A failure that the model should see.
    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }

    /// A failure that the model should see: the heading on a line of its own, then the failure. Details:
    /// `{"error": failure}`.
    pub fn failure(heading: &str, failure: &ToolFailure) -> Self {
        Self::error(format!("{heading}\n{failure}\n")).with_details(json!({ "error": failure }))
    }

    /// The same result with details for programs.
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    /// The same result with what the output schema describes.
    pub fn with_structured(mut self, structured: Value) -> Self {
        self.structured = structured;
        self
    }

    /// All its text.
    pub fn as_text(&self) -> String {
        self.content.iter().map(|Content::Text(text)| text.as_str()).collect()
    }
}

/// A piece of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Plain text.
    Text(String),
}

/// A failure that programs can distinguish from others and that a model can correct itself by.
///
/// Its text is the message, and on a line of its own the hint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolFailure {
    /// Which kind, such as `invalid_tool_input`.
    pub kind: &'static str,
    /// What went wrong.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery_hint: Option<String>,
    /// More, by kind; null: nothing.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub details: Value,
}

impl ToolFailure {
    /// A failure without a hint or details.
    pub fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), recovery_hint: None, details: Value::Null }
    }

    /// `invalid_tool_input`: the parameters do not fit the schema of this tool. Details: `tool_name`, `parse_error`.
    pub fn invalid_input(tool: &str, parse_error: impl Into<String>) -> Self {
        let parse_error = parse_error.into();
        Self::new("invalid_tool_input", format!("invalid arguments: {parse_error}"))
            .with_hint(format!("provide input for {tool} that matches the published tool schema"))
            .with_details(json!({ "tool_name": tool, "parse_error": parse_error }))
    }

    /// The same failure with what to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.recovery_hint = Some(hint.into());
        self
    }

    /// The same failure with details for programs.
    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
}

impl fmt::Display for ToolFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.recovery_hint {
            Some(hint) => write!(f, "\nHint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Why a call failed as a call.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The parameters do not fit the schema.
    #[error("invalid arguments: {0}")]
    InvalidArgs(String),
    /// It could not be done; the text says why and is meant for the model.
    #[error("{message}")]
    Failed {
        /// For the model.
        message: String,
        /// The cause, if another error was.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The caller cancelled it.
    #[error("cancelled")]
    Cancelled,
}

impl ToolError {
    /// It could not be done, for a reason of the tool's own.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), source: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_reported_to_models_and_programs() {
        let result = ToolResult::failure("Call failed", &ToolFailure::invalid_input("cut", "unknown field `file`"));
        let text = "Call failed\ninvalid arguments: unknown field `file`\n\
                    Hint: provide input for cut that matches the published tool schema\n";
        assert_eq!((result.as_text().as_str(), result.is_error), (text, true));
        let error = &result.details["error"];
        assert_eq!(error["kind"], "invalid_tool_input");
        assert_eq!(error["details"], json!({ "tool_name": "cut", "parse_error": "unknown field `file`" }));

        let bare = ToolResult::failure("Call failed", &ToolFailure::new("denied", "a rule says no"));
        assert_eq!(bare.as_text(), "Call failed\na rule says no\n");
        assert_eq!(bare.details, json!({ "error": { "kind": "denied", "message": "a rule says no" } }));
    }

    #[test]
    fn a_closed_definition_says_so() {
        let definition = ToolDefinition::new("cut", "Cuts.").parameter("file", json!({ "type": "string" }), true);
        assert_eq!(definition.input_schema.get("additionalProperties"), None);
        assert_eq!(definition.closed().input_schema["additionalProperties"], false);
    }
}
