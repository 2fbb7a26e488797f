//! `Execution`, lists of them, and [`ExecutionInfo`].

use telexec_executor::{ExecutionInfo, ExecutionState, ExecutorError, ListPage, ListQuery, Program};

use super::event::{exited_from_wire, exited_to_wire, usage_from_wire, usage_to_wire};
use super::time::reported_time;
use super::unexpected;
use crate::v1;

/// An execution as it travels.
pub fn execution_to_wire(info: ExecutionInfo) -> v1::Execution {
    let (command, argv, shell, login) = match info.program {
        Program::Shell { text, shell, login } => (text, Vec::new(), shell.unwrap_or_default(), login),
        Program::Argv(argv) => (String::new(), argv, String::new(), false),
    };
    let state = match info.state {
        ExecutionState::Running => v1::ExecutionState::Running,
        ExecutionState::Lingering => v1::ExecutionState::Lingering,
        ExecutionState::Exited => v1::ExecutionState::Exited,
    };
    v1::Execution {
        execution_id: info.id.to_string(),
        command,
        argv,
        working_directory: info.working_directory,
        shell,
        login,
        user: info.user,
        terminal: info.terminal,
        identity: info.identity,
        labels: info.labels.into_iter().collect(),
        state: state.into(),
        pid: info.pid,
        start_time: Some(info.start_time.into()),
        position: info.position,
        exited: info.exited.map(exited_to_wire),
        processes: info.processes,
        usage: usage_to_wire(info.usage),
    }
}

/// An execution that arrived.
///
/// # Errors
/// The agent sent none, or what this side does not understand.
pub fn execution_from_wire(wire: Option<v1::Execution>) -> Result<ExecutionInfo, ExecutorError> {
    let wire = wire.ok_or_else(|| unexpected("no execution"))?;
    let state = match v1::ExecutionState::try_from(wire.state) {
        Ok(v1::ExecutionState::Running) => ExecutionState::Running,
        Ok(v1::ExecutionState::Lingering) => ExecutionState::Lingering,
        Ok(v1::ExecutionState::Exited) => ExecutionState::Exited,
        Ok(v1::ExecutionState::Unspecified) | Err(_) => return Err(unexpected("an unknown state")),
    };
    let shell = Some(wire.shell).filter(|shell| !shell.is_empty());
    Ok(ExecutionInfo {
        id: wire.execution_id.parse().map_err(|_| unexpected("a malformed execution_id"))?,
        program: match wire.argv.is_empty() {
            true => Program::Shell { text: wire.command, shell, login: wire.login },
            false => Program::Argv(wire.argv),
        },
        working_directory: wire.working_directory,
        user: wire.user,
        terminal: wire.terminal,
        identity: wire.identity,
        labels: wire.labels.into_iter().collect(),
        state,
        pid: wire.pid,
        start_time: reported_time(wire.start_time),
        position: wire.position,
        exited: wire.exited.map(exited_from_wire).transpose()?,
        processes: wire.processes,
        usage: usage_from_wire(wire.usage),
    })
}

/// A query that arrived; whose executions it may see is not its own to say.
pub fn query_from_wire(wire: v1::ListExecutionsRequest) -> ListQuery {
    ListQuery {
        identity: None,
        include_exited: wire.include_exited,
        labels: wire.labels.into_iter().collect(),
        page_size: wire.page_size,
        page_token: wire.page_token,
    }
}

/// A query as it travels.
pub fn query_to_wire(query: ListQuery) -> v1::ListExecutionsRequest {
    v1::ListExecutionsRequest {
        include_exited: query.include_exited,
        labels: query.labels.into_iter().collect(),
        page_size: query.page_size,
        page_token: query.page_token,
    }
}

/// A page as it travels.
pub fn page_to_wire(page: ListPage) -> v1::ListExecutionsResponse {
    v1::ListExecutionsResponse {
        executions: page.executions.into_iter().map(execution_to_wire).collect(),
        next_page_token: page.next_page_token,
    }
}

/// A page that arrived.
///
/// # Errors
/// The agent sent what this side does not understand.
pub fn page_from_wire(wire: v1::ListExecutionsResponse) -> Result<ListPage, ExecutorError> {
    let executions = wire.executions.into_iter().map(|execution| execution_from_wire(Some(execution)));
    Ok(ListPage { executions: executions.collect::<Result<_, _>>()?, next_page_token: wire.next_page_token })
}
