//! The operator's configuration is that of `telexec-config`; `flags` go before it.

mod flags;

pub(crate) use telexec_config::{Config, NatsConfig, ResolvedTarget, Route, UnconfiguredName, locate};

pub(crate) use self::flags::ConnectArgs;
