//! Tools that are named commands: what an agent's configuration defines, and callers run by its name.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use telexec_executor::{Command, Executor, NAMED_COMMAND};

use crate::bash::{BashOutput, BashTool, Style};
use crate::summary::shorten;
use crate::{Tool, ToolContext, ToolDefinition, ToolError, ToolResult};

/// A named command, as its agent describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedCommand {
    /// Without the `@`; the tool is called so.
    pub name: String,
    /// What it is for, or "".
    pub description: String,
    /// The program and its arguments, parameters among them.
    pub argv: Vec<String>,
    /// The arguments that it takes, in order.
    pub parameters: Vec<NamedParameter>,
    /// The most that it may take.
    pub timeout: Option<Duration>,
}

/// An argument of a named command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedParameter {
    /// Its name in the schema of the tool.
    pub name: String,
    /// The word that it stands in place of.
    pub word: String,
    /// A regular expression for it.
    pub pattern: String,
    /// All that it may be; empty: too many, or not known.
    pub values: Vec<String>,
}

/// Runs a named command on an executor, and answers with its output, in the words of [`BashTool`]; its structured result is a
/// [`BashOutput`]. What the command runs, as whom, and which arguments it takes is for the executor to say.
pub struct NamedCommandTool {
    command: NamedCommand,
    runner: BashTool,
    definition: ToolDefinition,
}

impl NamedCommandTool {
    /// A tool for `command`, which `executor` has, with [`Style::plain`].
    pub fn new(executor: impl Executor + 'static, command: NamedCommand) -> Self {
        let definition = definition(&command);
        Self { command, runner: BashTool::new(executor), definition }
    }

    /// How it answers. Default: [`Style::plain`].
    #[must_use]
    pub fn style(mut self, style: Style) -> Self {
        self.runner = self.runner.style(style);
        self
    }

    /// See [`BashTool::max_output_characters`].
    #[must_use]
    pub fn max_output_characters(mut self, characters: usize) -> Self {
        self.runner = self.runner.max_output_characters(characters);
        self
    }

    /// See [`BashTool::deny`]: patterns of the name and its arguments, such as `@restart-web web-3`.
    #[must_use]
    pub fn deny(mut self, patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.runner = self.runner.deny(patterns);
        self
    }

    /// What asks the executor for the command.
    fn argv(&self, params: &Value) -> Result<Vec<String>, ToolError> {
        let invalid = |text: String| ToolError::InvalidArgs(text);
        let none = Map::new();
        let params = match params {
            Value::Null => &none,
            Value::Object(params) => params,
            _ => return Err(invalid("expected an object".to_owned())),
        };
        let parameters = &self.command.parameters;
        if let Some(other) = params.keys().find(|name| !parameters.iter().any(|parameter| parameter.name == **name)) {
            let known: Vec<_> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
            let has = if known.is_empty() { "no parameters".to_owned() } else { known.join(", ") };
            return Err(invalid(format!("{other}: unknown parameter; {} has {has}", self.command.name)));
        }
        let argument = |parameter: &NamedParameter| match params.get(&parameter.name) {
            Some(Value::String(text)) => Ok(text.clone()),
            // models are free with the type of what looks like a number
            Some(Value::Number(number)) => Ok(number.to_string()),
            _ => Err(invalid(format!("{}: is missing, or is not a string", parameter.name))),
        };
        let program = format!("{NAMED_COMMAND}{}", self.command.name);
        std::iter::once(Ok(program)).chain(parameters.iter().map(argument)).collect()
    }
}

#[async_trait]
impl Tool for NamedCommandTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    async fn execute(&self, params: Value, context: ToolContext) -> Result<ToolResult, ToolError> {
        let command = Command::argv(self.argv(&params)?).trace(context.trace.clone()).build();
        let command = command.map_err(|error| ToolError::InvalidArgs(error.to_string()))?;
        self.runner.run_to_end(command, self.command.timeout, context).await
    }

    fn is_destructive(&self) -> bool {
        true
    }

    fn is_open_world(&self) -> bool {
        true
    }

    /// The name and the arguments in brackets, on one line and cut to 60 characters.
    fn summary(&self, params: &Value) -> String {
        let text = self.argv(params).map_or_else(|_| self.command.name.clone(), |argv| argv.join(" "));
        format!("[{}]", shorten(text.trim_start_matches(NAMED_COMMAND)))
    }

    fn activity_description(&self, _params: &Value) -> Option<String> {
        Some(format!("Running {}...", self.command.name))
    }
}

fn definition(command: &NamedCommand) -> ToolDefinition {
    let runs = format!("Runs: {}", command.argv.join(" "));
    let about = match command.description.trim() {
        "" => runs,
        text if text.ends_with(['.', '!', '?']) => format!("{text} {runs}"),
        text => format!("{text}. {runs}"),
    };
    let parameter = |definition: ToolDefinition, parameter: &NamedParameter| {
        let about = format!("In place of {}", parameter.word);
        let schema = match parameter.values.is_empty() {
            false => json!({ "type": "string", "description": about, "enum": parameter.values }),
            true => json!({ "type": "string", "description": about, "pattern": parameter.pattern }),
        };
        definition.parameter(&parameter.name, schema, true)
    };
    let empty = ToolDefinition::new(&command.name, about);
    command.parameters.iter().fold(empty, parameter).closed().returns::<BashOutput>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    fn tool() -> NamedCommandTool {
        let parameter = |name: &str, values: &[&str]| NamedParameter {
            name: name.to_owned(),
            word: format!("--{name}={{{name}}}"),
            pattern: "^x$".to_owned(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
        };
        let command = NamedCommand {
            name: "deploy".to_owned(),
            description: "Deploys the application".to_owned(),
            argv: vec!["deploy".to_owned(), "--version={version}".to_owned()],
            parameters: vec![parameter("version", &[]), parameter("to", &["a", "b"])],
            timeout: None,
        };
        NamedCommandTool::new(Fake::default(), command)
    }

    #[test]
    fn arguments_are_in_the_order_of_the_words() {
        let argv = tool().argv(&json!({ "to": "a", "version": 7 })).unwrap();
        assert_eq!(argv, ["@deploy", "7", "a"]);
        for (params, named) in [
            (json!({ "to": "a" }), "version: "),
            (json!({ "to": "a", "version": null }), "version: "),
            (json!({ "to": "a", "version": "1", "user": "root" }), "user: unknown parameter; deploy has version, to"),
            (json!([]), "expected an object"),
        ] {
            let refused = tool().argv(&params).unwrap_err();
            assert!(matches!(&refused, ToolError::InvalidArgs(text) if text.starts_with(named)), "{refused:?}");
        }
    }

    #[test]
    fn the_definition_has_the_values_or_a_pattern() {
        let definition = tool().definition;
        assert_eq!(definition.description, "Deploys the application. Runs: deploy --version={version}");
        let properties = &definition.input_schema["properties"];
        assert_eq!(properties["to"]["enum"], json!(["a", "b"]));
        assert_eq!(properties["version"]["pattern"], "^x$");
        assert_eq!(definition.input_schema["required"], json!(["version", "to"]));
        assert_eq!(definition.input_schema["additionalProperties"], false);
    }

    #[test]
    fn the_summary_has_the_arguments() {
        assert_eq!(tool().summary(&json!({ "to": "a", "version": "v1" })), "[deploy v1 a]");
        assert_eq!(tool().summary(&Value::Null), "[deploy]");
    }
}
