//! As whom a Unix socket is used. TCP is spoken by the agent itself.

use std::borrow::Cow;

use telexec_executor::{Command, ExecutorError, InvalidCommand};

use super::Forwards;
use crate::admission::Stack;
use crate::call::Call;
use crate::policy::{Endpoint, PortAction, PortUse};

/// Who is to use something, as the call says; empty: the user of commands that name none. `field` is its name. `field` is its name.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) user: &'a str,
    pub(super) field: &'static str,
}

impl Asked<'_> {
    fn invalid(self, reason: impl Into<Cow<'static, str>>) -> ExecutorError {
        InvalidCommand::new(self.field, reason).into()
    }

    fn unsupported(self, reason: &str) -> ExecutorError {
        ExecutorError::Unsupported { field: self.field.into(), reason: reason.to_owned() }
    }
}

impl Forwards {
    /// The name of the user of a Unix socket, for the policy; `None`: it is TCP, or there is no such user.
    ///
    /// # Errors
    /// What is asked for is no name; or [`ExecutorError::Internal`].
    pub(super) async fn user_of(
        &self,
        stack: &Stack,
        call: &Call,
        action: PortAction,
        endpoint: &Endpoint,
        asked: Asked<'_>,
    ) -> Result<Option<String>, ExecutorError> {
        match endpoint {
            Endpoint::Tcp { .. } => Ok(None),
            Endpoint::Unix(_) if self.uses_itself(action, asked.user) => Ok(Some(self.own.user.clone())),
            Endpoint::Unix(_) => {
                let named = Some(asked.user).filter(|user| !user.is_empty());
                let command = named.into_iter().fold(Command::argv(["true"]), |command, user| command.user(user));
                let command = command.build().map_err(|error| asked.invalid(error.reason))?;
                let identity = call.caller.identity.as_str();
                let (resolved, _) = stack.evaluator.resolve(identity, &stack.engine, command).await?;
                Ok(resolved.map(|resolved| resolved.user))
            }
        }
    }

    /// Whether the agent itself uses a Unix socket for this user.
    fn uses_itself(&self, action: PortAction, user: &str) -> bool {
        match action {
            PortAction::Listen => self.is_own(user),
            PortAction::Forward => self.connects_as(user),
        }
    }

    /// Whether a use that is permitted is possible as who was asked for.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] or [`ExecutorError::Unsupported`], with the name of the field.
    pub(super) fn check_user(&self, used: &PortUse, asked: Asked<'_>) -> Result<(), ExecutorError> {
        match (&used.endpoint, used.action) {
            (Endpoint::Tcp { .. }, _) if self.is_own(asked.user) => Ok(()),
            (Endpoint::Unix(_), action) if self.uses_itself(action, asked.user) => Ok(()),
            (Endpoint::Tcp { .. }, _) => {
                Err(asked.unsupported("is for Unix sockets; leave it out: TCP is spoken by the agent itself"))
            }
            (Endpoint::Unix(_), PortAction::Listen) => {
                Err(asked.unsupported("the agent listens on Unix sockets as its own user only"))
            }
            (Endpoint::Unix(_), PortAction::Forward) if used.user.is_none() => {
                Err(asked.invalid("there is no such user, or it cannot be looked up"))
            }
            (Endpoint::Unix(_), PortAction::Forward) if !self.has_processes => {
                Err(asked.unsupported("this agent uses Unix sockets as its own user only"))
            }
            (Endpoint::Unix(_), PortAction::Forward) => Ok(()),
        }
    }
}
