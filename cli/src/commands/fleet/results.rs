//! The progress and outcomes of all hosts, and their summary.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::event::{Event, Kind, Outcome};
use super::hosts::Host;
use super::printer::Stage;
use crate::output::exit;
use crate::syntax::fold;

/// So many running hosts or fewer are named.
const MAX_STRAGGLERS: usize = 5;
/// What is left of a wait is rounded up to seconds.
const ROUND_UP: Duration = Duration::from_millis(999);
/// Maximum number of different outcomes in a summary.
const MAX_SUMMARY_LINES: usize = 40;

/// The progress of every host.
pub(crate) struct Results {
    hosts: Arc<[Host]>,
    states: Vec<State>,
    /// By kind, as [`Kind::ALL`] has them.
    counts: BTreeMap<Kind, usize>,
    started: usize,
    done: usize,
}

enum State {
    Pending,
    Running,
    Finished(Box<Outcome>),
}

impl Results {
    pub(crate) fn new(hosts: Arc<[Host]>) -> Self {
        let states = hosts.iter().map(|_| State::Pending).collect();
        Self { hosts, states, counts: BTreeMap::new(), started: 0, done: 0 }
    }

    pub(crate) fn event(&mut self, host: usize, event: &Event) {
        let Some(state) = self.states.get_mut(host) else { return };
        match event {
            Event::Connecting => {
                self.started += 1;
                *state = State::Running;
            }
            Event::Finished(outcome) => {
                self.done += 1;
                *self.counts.entry(outcome.kind).or_default() += 1;
                *state = State::Finished(outcome.clone());
            }
            Event::Started(_) | Event::Output(_) | Event::Gap(_) => {}
        }
    }

    /// Hosts that were never started.
    pub(crate) fn pending(&self) -> Vec<usize> {
        self.states.iter().enumerate().filter(|(_, state)| matches!(state, State::Pending)).map(|(n, _)| n).collect()
    }

    /// For the live line: what matters most comes first, since its end may not fit.
    pub(crate) fn progress(&self, took: Duration, stage: Option<Stage>) -> String {
        let seconds = |duration: Duration| humantime::format_duration(Duration::from_secs(duration.as_secs()));
        let mut parts = vec![format!("{}/{} done", self.done, self.hosts.len()), seconds(took).to_string()];
        match stage {
            Some(Stage::Running(batch)) if batch.count > 1 => {
                parts.push(format!("batch {} of {}", batch.number, batch.count));
            }
            Some(Stage::Waiting(batch, until)) => {
                let left = seconds(until.saturating_duration_since(Instant::now()) + ROUND_UP);
                parts.push(format!("batch {} of {} in {left}", batch.number, batch.count));
            }
            Some(Stage::Running(_)) | None => {}
        }
        let waiting = self.hosts.len().saturating_sub(self.started);
        if waiting > 0 {
            parts.push(format!("{waiting} waiting"));
        }
        let failed = self.counts.iter().filter(|(kind, _)| **kind != Kind::Ok);
        parts.extend(failed.map(|(kind, count)| format!("{count} {}", kind.label())));
        let running = self.started.saturating_sub(self.done);
        if running > 0 {
            parts.push(format!("{running} running"));
        }
        let text = parts.join(", ");
        match running {
            1..=MAX_STRAGGLERS => format!("{text}: {}", fold(self.hosts_in(|state| matches!(state, State::Running)))),
            _ => text,
        }
    }

    /// The message after the first Ctrl-C.
    pub(crate) fn still_running(&self) -> String {
        let running: Vec<_> = self.hosts_in(|state| matches!(state, State::Running)).collect();
        let waiting = self.pending().len();
        let waiting = if waiting > 0 { format!(", {waiting} waiting") } else { String::new() };
        let names = if running.is_empty() { String::new() } else { format!(": {}", fold(running.iter().copied())) };
        format!("{} still running{waiting}{names}", running.len())
    }

    fn hosts_in(&self, of: impl Fn(&State) -> bool) -> impl Iterator<Item = &str> {
        self.hosts.iter().zip(&self.states).filter(move |(_, state)| of(state)).map(|(host, _)| host.name.as_str())
    }

    /// Every outcome with its host.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&Host, &Outcome)> {
        self.hosts.iter().zip(&self.states).filter_map(|(host, state)| match state {
            State::Finished(outcome) => Some((host, &**outcome)),
            State::Pending | State::Running => None,
        })
    }

    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// 0 if all succeeded, otherwise 1, or the highest code; that of a mistake if the caller's credentials are wrong for all.
    pub(crate) fn exit_code(&self, largest: bool) -> u8 {
        let is_mistake = |outcome: &Outcome| outcome.kind == Kind::Unreachable && outcome.code == exit::USAGE;
        if self.done > 0 && self.outcomes().all(|(_, outcome)| is_mistake(outcome)) {
            return exit::USAGE;
        }
        let failed = self.outcomes().filter(|(_, outcome)| !outcome.is_ok());
        match largest {
            true => failed.map(|(_, outcome)| outcome.code).max().unwrap_or(0),
            false => u8::from(failed.count() > 0),
        }
    }

    /// The number of successes, and the hosts of every other outcome.
    pub(crate) fn summary(&self, took: Duration) -> Vec<String> {
        let total = self.hosts.len();
        let others = Kind::ALL.iter().filter(|kind| **kind != Kind::Ok && self.count(**kind) > 0);
        let others: String = others.map(|kind| format!(", {} {}", self.count(*kind), kind.label())).collect();
        let took = took.as_secs_f64();
        let mut lines = vec![format!("{} of {total} ok{others}, in {took:.1} s", self.count(Kind::Ok))];
        let by_outcome = self.by_outcome(|outcome| !outcome.is_ok());
        let left_out = by_outcome.len().saturating_sub(MAX_SUMMARY_LINES);
        lines
            .extend(by_outcome.into_iter().take(MAX_SUMMARY_LINES).map(|(words, hosts)| format!("  {hosts}: {words}")));
        if left_out > 0 {
            lines.push(format!("  and {left_out} more; use --json for all"));
        }
        lines.extend(self.hints());
        lines
    }

    /// Whether the summary has all of them.
    pub(crate) fn fit_summary(&self) -> bool {
        self.by_outcome(|outcome| !outcome.is_ok()).len() <= MAX_SUMMARY_LINES
    }

    /// What to do about the failures, each once.
    fn hints(&self) -> BTreeSet<String> {
        self.outcomes().filter_map(|(_, outcome)| outcome.hint.clone()).collect()
    }

    /// The hosts of each outcome, in the order of kinds.
    pub(crate) fn by_outcome(&self, of: impl Fn(&Outcome) -> bool) -> Vec<(String, String)> {
        let mut by_outcome: BTreeMap<(Kind, String), Vec<&str>> = BTreeMap::new();
        for (host, outcome) in self.outcomes().filter(|(_, outcome)| of(outcome)) {
            by_outcome.entry((outcome.kind, outcome.description())).or_default().push(&host.name);
        }
        by_outcome.into_iter().map(|((_, words), hosts)| (words, fold(hosts))).collect()
    }

    pub(crate) fn as_json(&self, took: Duration) -> String {
        let mut line = serde_json::Map::new();
        line.insert("event".to_owned(), "summary".into());
        line.insert("hosts".to_owned(), self.hosts.len().into());
        line.insert("seconds".to_owned(), took.as_secs_f64().into());
        for kind in Kind::ALL {
            line.insert(kind.key(), self.count(kind).into());
        }
        format!("{}\n", serde_json::Value::Object(line))
    }
}
