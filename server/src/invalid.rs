//! Settings that are not valid.

/// A setting that is not valid, or does not go with another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSetting(pub String);
