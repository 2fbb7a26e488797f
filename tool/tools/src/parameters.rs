//! Parameters of tools: their schema, and how they are read.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::failure::Failure;

/// Reads the parameters of a tool.
pub(crate) fn parse<T: DeserializeOwned>(tool: &str, params: Value) -> Result<T, Failure> {
    serde_json::from_value(params).map_err(|error| Failure::invalid_input(tool, error.to_string()))
}

pub(crate) fn text(about: &str) -> Value {
    json!({ "type": "string", "description": about })
}

pub(crate) fn flag(about: &str, default: Value) -> Value {
    json!({ "type": "boolean", "description": about, "default": default })
}

pub(crate) fn number(about: &str, default: u64) -> Value {
    json!({ "type": "integer", "description": about, "minimum": 0, "default": default })
}
