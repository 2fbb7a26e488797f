//! How the tool describes itself.

use serde_json::json;
use telexec_tool::bash::Style;
use telexec_tool::{BashTool, Tool};

use super::here;

#[test]
fn flags_say_that_it_can_destroy() {
    let tool = BashTool::new(here());
    assert_eq!((tool.is_destructive(), tool.is_read_only(), tool.is_concurrent_safe()), (true, false, false));
}

#[test]
fn definition_has_command_and_timeout() {
    let tool = BashTool::new(here());
    let definition = tool.definition();
    assert_eq!(definition.name, "bash");
    assert!(definition.description.contains("bash"), "{}", definition.description);
    let schema = &definition.input_schema;
    assert_eq!((&schema["type"], &schema["required"]), (&json!("object"), &json!(["command"])));
    assert_eq!(schema["properties"].as_object().unwrap().keys().collect::<Vec<_>>(), ["command", "timeout"]);
    assert_eq!(schema["properties"]["command"]["type"], "string");
    assert_eq!(schema["properties"]["timeout"]["default"], 120);
}

#[test]
fn summary_has_the_command_in_brackets() {
    assert_eq!(BashTool::new(here()).summary(&json!({ "command": "ls -la" })), "[bash: ls -la]");
}

#[test]
fn summary_cuts_between_characters() {
    let tool = BashTool::new(here());
    for letter in ["x", "é", "語", "🦀"] {
        let summary = |length| tool.summary(&json!({ "command": letter.repeat(length) }));
        assert_eq!(summary(60), format!("[bash: {}]", letter.repeat(60)));
        assert_eq!(summary(61), format!("[bash: {}...]", letter.repeat(57)));
    }
}

#[test]
fn summary_without_a_command_is_the_name() {
    let tool = BashTool::new(here());
    for params in [json!({}), json!({ "command": 1 }), json!(null)] {
        assert_eq!(tool.summary(&params), "[bash]");
    }
}

#[test]
fn activity_is_described() {
    let tool = BashTool::new(here());
    assert_eq!(tool.activity_description(&json!({})).as_deref(), Some("Running command..."));
}

#[test]
fn definition_of_sections_has_five_seconds_and_no_sudo() {
    let tool = BashTool::new(here()).style(Style::sections());
    let properties = &tool.definition().input_schema["properties"];
    assert_eq!((&properties["timeout"]["default"], &properties["timeout"]["type"]), (&json!(5), &json!("number")));
    assert_eq!(properties["timeout"]["exclusiveMinimum"], 0);
    assert!(properties["command"]["description"].as_str().unwrap().contains("sudo is not permitted"));
}

#[test]
fn permission_is_for_the_first_word_with_any_arguments() {
    let tool = BashTool::new(here()).style(Style::sections());
    let pattern = |command: &str| tool.permission_pattern(&json!({ "command": command }));
    assert_eq!(pattern("ls -la /tmp").as_deref(), Some("ls **"));
    assert_eq!(pattern("pwd").as_deref(), Some("pwd **"));
    assert_eq!(tool.permission_pattern(&json!({})), None);
}
