//! Executors that stand before another and may say no.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Command, Execution, Executor, ExecutorError, forward_executor};

type Verdict = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// An executor that asks a rule before every command. What the rule refuses does not run and is
/// [`ExecutorError::Denied`] with the rule's reason.
///
/// A rule sees text, not what a shell will make of it: it keeps a model from mistakes, it is not a sandbox.
#[derive(Clone)]
pub struct Guard<E> {
    inner: E,
    rule: Arc<dyn Fn(String) -> Verdict + Send + Sync>,
}

impl<E> Guard<E> {
    /// Refuses commands whose text ([`Command::text`]) contains one of these patterns.
    pub fn deny(inner: E, patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let patterns: Arc<[String]> = patterns.into_iter().map(Into::into).collect();
        Self::new(inner, move |text| {
            let found = patterns.iter().find(|pattern| text.contains(pattern.as_str())).cloned();
            async move {
                match found {
                    Some(pattern) => Err(format!("Command blocked by safety policy: contains '{pattern}'")),
                    None => Ok(()),
                }
            }
        })
    }

    /// Asks someone, such as the person before the screen, with the command's text.
    pub fn confirm<F: Future<Output = bool> + Send + 'static>(
        inner: E,
        ask: impl Fn(String) -> F + Send + Sync + 'static,
    ) -> Self {
        Self::new(inner, move |text| {
            let answer = ask(text);
            async move {
                match answer.await {
                    true => Ok(()),
                    false => Err("Command was not confirmed by the user.".to_owned()),
                }
            }
        })
    }

    /// Any other rule: it gets the command's text, and gives the reason of a refusal.
    pub fn new<F: Future<Output = Result<(), String>> + Send + 'static>(
        inner: E,
        rule: impl Fn(String) -> F + Send + Sync + 'static,
    ) -> Self {
        Self { inner, rule: Arc::new(move |text| Box::pin(rule(text))) }
    }
}

#[async_trait]
impl<E: Executor> Executor for Guard<E> {
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        (self.rule)(command.text()).await.map_err(ExecutorError::denied)?;
        self.inner.execute(command).await
    }

    forward_executor!(self => self.inner; attach, write_input, resize, signal, get, list);
}
