//! YAML, as far as inventories use it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// How a value begins that only `ansible-vault` can read.
pub(super) const VAULT: &str = "$ANSIBLE_VAULT";

/// A document, or a part of one. Mappings keep their order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    /// As digits, whatever it was written as.
    Number(String),
    Text(String),
    List,
    Mapping(Mapping),
}

pub(super) type Mapping = Vec<(Value, Value)>;

impl Value {
    /// The text as YAML, with its merge keys (`<<`) applied. Depth and size are limited.
    ///
    /// # Errors
    /// It is not YAML.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        // an error is one line, beside the name of the file; a host may be called y
        let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_mapping(&self) -> Option<&Mapping> {
        if let Self::Mapping(mapping) = self { Some(mapping) } else { None }
    }

    /// The value of a variable that has a single one.
    pub(super) fn as_variable(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.as_str()).filter(|text| !text.starts_with(VAULT)),
            Self::Number(digits) => Some(digits),
            Self::Bool(value) => Some(if *value { "true" } else { "false" }),
            Self::Null | Self::List | Self::Mapping(_) => None,
        }
    }
}

/// For errors.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => value.fmt(f),
            Self::Number(text) | Self::Text(text) => f.write_str(text),
            Self::List => f.write_str("a list"),
            Self::Mapping(_) => f.write_str("a mapping"),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Number(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while items.next_element::<Value>()?.is_some() {}
        Ok(Value::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut mapping = Mapping::new();
        while let Some(entry) = entries.next_entry()? {
            mapping.push(entry);
        }
        Ok(Value::Mapping(mapping))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_of_their_kinds() {
        let value =
            Value::parse("a: &b {x: 1}\nb: {<<: *b, y: [1], 2: true}\nc: !vault |\n  $ANSIBLE_VAULT;1.1\nd: 1.5\ne:\n");
        let value = value.unwrap();
        let text = |text: &str| Value::Text(text.to_owned());
        let number = |digits: &str| Value::Number(digits.to_owned());
        let b = vec![(text("y"), Value::List), (number("2"), Value::Bool(true)), (text("x"), number("1"))];
        let [(_, _), (_, merged), (_, vault), (_, fraction), (_, null)] = &value.as_mapping().unwrap()[..] else {
            panic!("{value:?}")
        };
        assert_eq!((merged, fraction, null), (&Value::Mapping(b), &number("1.5"), &Value::Null));
        assert_eq!((vault.as_str(), vault.as_variable()), (Some("$ANSIBLE_VAULT;1.1\n"), None));
        assert!(!Value::parse("web: {").unwrap_err().contains('\n'));
    }
}
