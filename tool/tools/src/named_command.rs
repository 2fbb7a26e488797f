//! Named commands as tools: defined by an agent's configuration, and run by their names.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use telexec_executor::{Command, CommandBuilder, Executor, ExecutorError, InvalidCommand, NAMED_COMMAND};

use crate::bash::{BashOutput, BashTool, Style};
use crate::parameters::text;
use crate::summary::shorten;
use crate::{Tool, ToolContext, ToolDefinition, ToolError, ToolResult};

/// Beside the parameters of the command. An agent has none of these names.
const INPUT: &str = "input";
const REASON: &str = "reason";

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
    /// The longest that it may run.
    pub timeout: Option<Duration>,
    /// It may be given standard input.
    pub accepts_input: bool,
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
    /// All values that it may have; empty: there are more than a few, or they are not known.
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

    /// What asks the executor for the command.
    fn command(&self, params: &Value) -> Result<CommandBuilder, ToolError> {
        let invalid = |text: String| ToolError::InvalidArgs(text);
        let none = Map::new();
        let params = match params {
            Value::Null => &none,
            Value::Object(params) => params,
            _ => return Err(invalid("expected an object".to_owned())),
        };
        let known = self.definition.input_schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        if let Some(other) = params.keys().find(|name| !known.contains_key(*name)) {
            let known = known.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(invalid(format!("{other}: unknown parameter; {} has {known}", self.command.name)));
        }
        let text = |name: &str| match params.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            // models are free with the type of what looks like a number
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(_) => Err(invalid(format!("{name}: is not a string"))),
        };
        let argument = |parameter: &NamedParameter| {
            text(&parameter.name)?.ok_or_else(|| invalid(format!("{}: is missing", parameter.name)))
        };
        let program = format!("{NAMED_COMMAND}{}", self.command.name);
        let argv = std::iter::once(Ok(program)).chain(self.command.parameters.iter().map(argument));
        let command = Command::argv(argv.collect::<Result<Vec<_>, _>>()?);
        Ok(command.reason(text(REASON)?.unwrap_or_default()).stdin(text(INPUT)?.unwrap_or_default()))
    }

    /// An error in the words of the schema: `argv[1]` is the first parameter.
    fn in_words(&self, error: InvalidCommand) -> ToolError {
        let position = error.field.strip_prefix("argv[").and_then(|rest| rest.strip_suffix(']')?.parse::<usize>().ok());
        let parameter = position.and_then(|position| self.command.parameters.get(position.checked_sub(1)?));
        let field = parameter.map_or(error.field.as_ref(), |parameter| &parameter.name);
        ToolError::InvalidArgs(format!("{field}: {}", error.reason))
    }
}

#[async_trait]
impl Tool for NamedCommandTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    async fn execute(&self, params: Value, context: ToolContext) -> Result<ToolResult, ToolError> {
        let command = self.command(&params)?.trace(context.trace.clone()).build();
        let command = command.map_err(|error| self.in_words(error))?;
        match context.cancel.run_until_cancelled(self.runner.run(command, context.output)).await {
            Some(Ok(ran)) => {
                let timeout = self.command.timeout.unwrap_or(ran.wall_time());
                self.runner.result(ran, timeout)
            }
            Some(Err(ExecutorError::Invalid(error))) => Err(self.in_words(error)),
            Some(Err(error)) => self.runner.failure(error),
            None => Err(ToolError::Cancelled),
        }
    }

    fn is_destructive(&self) -> bool {
        true
    }

    fn is_open_world(&self) -> bool {
        true
    }

    /// The name and the arguments in brackets, on one line and cut to 60 characters.
    fn summary(&self, params: &Value) -> String {
        let arguments = self.command.parameters.iter().filter_map(|parameter| params.get(&parameter.name)?.as_str());
        let words: Vec<_> = std::iter::once(self.command.name.as_str()).chain(arguments).collect();
        format!("[{}]", shorten(&words.join(" ")))
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
    // patterns are none of JavaScript's, which schemas have
    let parameter = |definition: ToolDefinition, parameter: &NamedParameter| {
        let schema = match parameter.values.is_empty() {
            false => json!({ "type": "string", "enum": parameter.values }),
            true => text(&format!("In place of {}; matches {}", parameter.word, parameter.pattern)),
        };
        definition.parameter(&parameter.name, schema, true)
    };
    let definition = ToolDefinition::new(&command.name, about);
    let definition = command.parameters.iter().fold(definition, parameter);
    let definition = match command.accepts_input {
        true => definition.parameter(INPUT, text("Standard input"), false),
        false => definition,
    };
    let reason = text("Why it is run, for the policy and the audit log");
    definition.parameter(REASON, reason, false).closed().returns::<BashOutput>()
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
            accepts_input: false,
        };
        NamedCommandTool::new(Fake::default(), command)
    }

    #[test]
    fn arguments_are_in_the_order_of_the_words() {
        let command = tool().command(&json!({ "to": "a", "version": 7, "reason": "why" })).unwrap().build().unwrap();
        assert_eq!((command.text().as_str(), command.reason()), ("@deploy 7 a", "why"));
        for (params, named) in [
            (json!({ "to": "a" }), "version: is missing"),
            (json!({ "to": "a", "version": null }), "version: is not a string"),
            (json!({ "to": "a", "version": "1", "user": "root" }), "user: unknown parameter; deploy has "),
            (json!({ "to": "a", "version": "1", "input": "x" }), "input: unknown parameter"),
            (json!([]), "expected an object"),
        ] {
            let refused = tool().command(&params).unwrap_err();
            assert!(matches!(&refused, ToolError::InvalidArgs(text) if text.starts_with(named)), "{refused:?}");
        }
    }

    #[test]
    fn errors_name_the_parameter() {
        for (field, text) in [("argv[2]", "to: bad"), ("argv[7]", "argv[7]: bad"), ("reason", "reason: bad")] {
            let error = tool().in_words(InvalidCommand::new(field, "bad"));
            assert!(matches!(&error, ToolError::InvalidArgs(said) if said == text), "{error:?}");
        }
    }

    #[test]
    fn the_definition_has_the_values_or_a_pattern() {
        let definition = tool().definition;
        assert_eq!(definition.description, "Deploys the application. Runs: deploy --version={version}");
        let properties = &definition.input_schema["properties"];
        assert_eq!(properties["to"]["enum"], json!(["a", "b"]));
        assert_eq!(properties["version"]["description"], "In place of --version={version}; matches ^x$");
        assert_eq!(definition.input_schema["required"], json!(["version", "to"]));
        assert_eq!(definition.input_schema["additionalProperties"], false);
    }

    #[test]
    fn the_summary_has_the_arguments() {
        assert_eq!(tool().summary(&json!({ "to": "a", "version": "v1" })), "[deploy v1 a]");
        assert_eq!(tool().summary(&Value::Null), "[deploy]");
    }
}
