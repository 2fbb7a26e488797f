//! What agents answered: a table of all hosts at the end, or JSON lines as answers come.

use std::io;
use std::time::SystemTime;

use telexec_client::{AgentInfo, Ping};
use telexec_executor::{ExecutionInfo, OutputStream};

use super::Show;
use crate::commands::fleet::event::{Answer, Event, Outcome};
use crate::commands::fleet::hosts::Host;
use crate::commands::fleet::screen::Screen;
use crate::commands::{info, ps};
use crate::output::{json, printable, table};
use crate::terminal;

const AGENT_HEADING: [&str; 7] = ["HOST", "VERSION", "CONTAINMENT", "RUNNING", "CERTIFICATE", "POLICY", "OS"];
/// Digits of a policy's SHA-256: enough to see which hosts have another one.
const SHOWN_DIGITS: usize = 12;
/// As `failed_reloads` has them.
const CERTIFICATES: &str = "certificates";
const POLICY: &str = "policy";

pub(crate) struct Answers {
    /// By the number of the host.
    answers: Vec<Option<Answer>>,
    /// Lines are not truncated to the width of the terminal.
    whole: bool,
}

impl Answers {
    pub(crate) fn new(hosts: usize, whole: bool) -> Self {
        Self { answers: vec![None; hosts], whole }
    }

    fn print_table(&self, rows: &[Vec<String>], screen: &mut Screen) -> io::Result<()> {
        let text = table(rows, terminal::output_width().filter(|_| !self.whole));
        screen.buffer(OutputStream::Stdout)?.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl Show for Answers {
    fn event(&mut self, number: usize, _: &Host, event: &Event, _: &mut Screen) -> io::Result<()> {
        if let (Event::Finished(outcome), Some(answer)) = (event, self.answers.get_mut(number)) {
            answer.clone_from(&outcome.answer);
        }
        Ok(())
    }

    fn finish(&mut self, hosts: &[Host], screen: &mut Screen) -> io::Result<()> {
        let (mut pings, mut agents, mut executions) = (String::new(), Vec::new(), Vec::new());
        for (host, answer) in hosts.iter().zip(&self.answers) {
            match answer {
                Some(Answer::Ping(ping)) => pings.push_str(&ping_line(host, ping)),
                Some(Answer::Agent(info)) => agents.push(agent_row(host, info)),
                Some(Answer::Executions(listed)) => executions.extend(listed.iter().map(|info| (host, info))),
                Some(Answer::Execution(_)) | None => {}
            }
        }
        screen.buffer(OutputStream::Stdout)?.extend_from_slice(pings.as_bytes());
        if !agents.is_empty() {
            agents.insert(0, AGENT_HEADING.map(str::to_owned).to_vec());
            self.print_table(&agents, screen)?;
        }
        match executions.is_empty() {
            true => Ok(()),
            false => self.print_table(&execution_rows(&executions), screen),
        }
    }
}

fn ping_line(host: &Host, ping: &Ping) -> String {
    let state = if ping.serving { "serving" } else { "not serving: shutting down, or its keeper does not respond" };
    format!("{}: {state}, {:.1} ms\n", host.name, ping.round_trip.as_secs_f64() * 1000.0)
}

fn agent_row(host: &Host, info: &AgentInfo) -> Vec<String> {
    let expiry = info::certificate_expire_time(info);
    let day = expiry.as_deref().and_then(|time| time.split('T').next()).unwrap_or("-");
    let [version, containment, os] = [&info.version, &info.containment, &info.os].map(|text| printable(text));
    let running = info.running_executions.to_string();
    vec![host.name.clone(), version, containment, running, marked(info, CERTIFICATES, day), policy(info), os]
}

fn policy(info: &AgentInfo) -> String {
    let digits: String = info.policy_sha256.chars().filter(char::is_ascii_hexdigit).take(SHOWN_DIGITS).collect();
    marked(info, POLICY, if digits.is_empty() { "-" } else { &digits })
}

/// Marks what the agent could not reload.
fn marked(info: &AgentInfo, what: &str, text: &str) -> String {
    match info.failed_reloads.iter().any(|failed| failed == what) {
        true => format!("{text} (reload failed)"),
        false => text.to_owned(),
    }
}

/// Those of `telexec ps`, with the host.
fn execution_rows(executions: &[(&Host, &ExecutionInfo)]) -> Vec<Vec<String>> {
    let now = SystemTime::now();
    let heading = ["HOST"].into_iter().chain(ps::HEADING).map(str::to_owned).collect();
    let row = |(host, info): &(&Host, &ExecutionInfo)| [vec![host.name.clone()], ps::row(info, now)].concat();
    let mut rows: Vec<Vec<String>> = std::iter::once(heading).chain(executions.iter().map(row)).collect();
    let first = executions.first().map(|(_, info)| &info.identity);
    if executions.iter().all(|(_, info)| Some(&info.identity) == first) {
        for row in &mut rows {
            row.remove(ps::IDENTITY + 1);
        }
    }
    rows
}

/// Every answer as a JSON line, and the outcome of hosts without one.
pub(crate) struct JsonAnswers;

impl Show for JsonAnswers {
    fn event(&mut self, _: usize, host: &Host, event: &Event, screen: &mut Screen) -> io::Result<()> {
        let Event::Finished(outcome) = event else { return Ok(()) };
        let lines = json_lines(host, outcome).map_err(io::Error::other)?;
        screen.buffer(OutputStream::Stdout)?.extend_from_slice(lines.as_bytes());
        Ok(())
    }
}

pub(crate) fn json_lines(host: &Host, outcome: &Outcome) -> Result<String, serde_json::Error> {
    match &outcome.answer {
        Some(Answer::Execution(info)) => json::execution_on_host(&host.name, info),
        Some(Answer::Executions(listed)) => {
            listed.iter().map(|info| json::execution_on_host(&host.name, info)).collect()
        }
        Some(Answer::Agent(info)) => json::on_host(&host.name, &info::as_json(info)),
        Some(Answer::Ping(ping)) => {
            let answer = serde_json::json!({ "serving": ping.serving, "round_trip": ping.round_trip.as_secs_f64() });
            json::on_host(&host.name, &answer)
        }
        None => outcome.json_line(&host.name),
    }
}
