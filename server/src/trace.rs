//! The agent's part of a trace: a span for each command, between its caller's span and its own.

use aws_lc_rs::rand::fill;
use telexec_tool::Command;

use crate::call::Call;

/// The same command in a span of its own, if its call is a part of a trace.
pub(crate) fn continued(call: &Call, command: Command) -> Command {
    let trace = call.trace.as_ref().and_then(|parent| Some(parent.child(new_span()?)));
    command.with_trace(trace)
}

/// `None`: the system has no random numbers.
fn new_span() -> Option<[u8; 8]> {
    let mut id = [0; 8];
    fill(&mut id).ok()?;
    (id != [0; 8]).then_some(id)
}
