//! `telexec commands`: lists the named commands of an agent.

use std::time::Duration;

use serde_json::json;
use telexec_client::NamedCommand;
use telexec_executor::NAMED_COMMAND;

use crate::args::CommandsArgs;
use crate::connect::{call_failure, with_agent};
use crate::output::{self, Failure, exit, printable, table};
use crate::terminal;

const HEADING: [&str; 4] = ["COMMAND", "DESCRIPTION", "USER", "RUNS"];
/// The columns that are omitted if no command has anything in them.
const OPTIONAL: [usize; 2] = [2, 1];

pub(crate) async fn run(args: CommandsArgs) -> Result<u8, Failure> {
    let info = with_agent(&args.agent.target, &args.connect, async |agent| {
        agent.info().await.map_err(|error| call_failure(exit::of_error(&error), &args.agent.target, &error))
    });
    let commands = info.await?.named_commands;
    let text = match args.json {
        true => commands.iter().map(|command| format!("{}\n", as_json(command))).collect(),
        false => as_table(&commands),
    };
    output::print(text.as_bytes()).map(|()| 0)
}

/// How it is called: `@restart-web web-{1..9}`.
fn usage(command: &NamedCommand) -> String {
    let name = format!("{NAMED_COMMAND}{}", command.name);
    let words = command.parameters.iter().map(|parameter| parameter.word.clone());
    std::iter::once(name).chain(words).collect::<Vec<_>>().join(" ")
}

fn as_table(commands: &[NamedCommand]) -> String {
    let heading = HEADING.map(str::to_owned).to_vec();
    let row = |command: &NamedCommand| {
        let texts = [usage(command), command.description.clone(), command.user.clone(), command.argv.join(" ")];
        texts.map(|text| printable(&text)).to_vec()
    };
    let mut rows: Vec<_> = std::iter::once(heading).chain(commands.iter().map(row)).collect();
    for column in OPTIONAL {
        if rows.iter().skip(1).all(|row| row.get(column).is_none_or(String::is_empty)) {
            rows.iter_mut().for_each(|row| drop(row.remove(column)));
        }
    }
    table(&rows, terminal::output_width())
}

fn as_json(command: &NamedCommand) -> serde_json::Value {
    let parameters = command.parameters.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "word": parameter.word,
            "pattern": parameter.pattern,
            "values": parameter.values,
        })
    });
    let timeout = command.timeout.and_then(|timeout| Duration::try_from(timeout).ok());
    json!({
        "name": command.name,
        "description": command.description,
        "argv": command.argv,
        "parameters": parameters.collect::<Vec<_>>(),
        "user": command.user,
        "timeout_ms": timeout.map(|timeout| timeout.as_millis()),
        "accepts_input": command.accepts_input,
        "accepts_terminal": command.accepts_terminal,
    })
}
