//! Invalid settings.

/// An invalid setting, or one that conflicts with another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSetting(pub String);
