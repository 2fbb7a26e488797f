//! Methods of an executor that call those of another.

use std::future::Future;
use std::pin::Pin;

use crate::ExecutorError;

/// What a method of `#[async_trait] trait Executor` returns.
#[doc(hidden)]
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, ExecutorError>> + Send + 'a>>;

/// Writes methods of an [`Executor`](crate::Executor) that do nothing but call the same method of another one.
///
/// It stands in an `impl Executor`: `self`, then an expression for the other executor, which may await and use `?`
/// (`self.connected().await?`), then the methods. They are listed so that a new method of the trait does not compile
/// until every wrapper has decided on it.
///
/// ```
/// use async_trait::async_trait;
/// use telexec_executor::{Command, Execution, Executor, ExecutorError, forward_executor};
///
/// /// Prints the commands that it starts.
/// struct Printed<E>(E);
///
/// #[async_trait]
/// impl<E: Executor> Executor for Printed<E> {
///     async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
///         println!("{}", command.text());
///         self.0.execute(command).await
///     }
///
///     forward_executor!(self => self.0; attach, write_input, resize, signal, get, list);
/// }
/// ```
#[macro_export]
macro_rules! forward_executor {
    ($this:ident => $other:expr; $($method:ident),+ $(,)?) => {
        $($crate::forward_executor!(@$method $this => $other);)+
    };

    // one arm for each method of the trait
    (@execute $($to:tt)+) => {
        $crate::forward_executor!(@plain $($to)+; execute(command: Command) -> $crate::Execution);
    };
    (@attach $($to:tt)+) => {
        $crate::forward_executor!(@of_id $($to)+; attach(from: Attach) -> $crate::Execution);
    };
    (@write_input $($to:tt)+) => {
        $crate::forward_executor!(@of_id $($to)+; write_input(input: Input) -> u64);
    };
    (@resize $($to:tt)+) => {
        $crate::forward_executor!(@of_id $($to)+; resize(size: TerminalSize) -> ());
    };
    (@signal $($to:tt)+) => {
        $crate::forward_executor!(@of_id $($to)+; signal(signal: Signal) -> $crate::ExecutionInfo);
    };
    (@get $($to:tt)+) => {
        $crate::forward_executor!(@of_id $($to)+; get() -> $crate::ExecutionInfo);
    };
    (@list $($to:tt)+) => {
        $crate::forward_executor!(@plain $($to)+; list(query: ListQuery) -> $crate::ListPage);
    };

    // written as async_trait writes them, since it does not look into macros
    (@plain $this:ident => $other:expr; $method:ident($argument:ident: $type:ident) -> $answer:ty) => {
        fn $method<'this, 'answer>(
            &'this $this,
            $argument: $crate::$type,
        ) -> $crate::forward::Answer<'answer, $answer>
        where
            'this: 'answer,
            Self: 'answer,
        {
            ::std::boxed::Box::pin(async move { $other.$method($argument).await })
        }
    };
    (@of_id $this:ident => $other:expr; $method:ident($($argument:ident: $type:ident)?) -> $answer:ty) => {
        fn $method<'this, 'id, 'answer>(
            &'this $this,
            id: &'id $crate::ExecutionId,
            $($argument: $crate::$type,)?
        ) -> $crate::forward::Answer<'answer, $answer>
        where
            'this: 'answer,
            'id: 'answer,
            Self: 'answer,
        {
            ::std::boxed::Box::pin(async move { $other.$method(id $(, $argument)?).await })
        }
    };
}
