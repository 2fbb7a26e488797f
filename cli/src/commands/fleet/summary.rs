//! What there is to say of all hosts: which still run, how each ended, in few words.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::event::{Event, Kind, Outcome};
use super::hosts::Host;
use crate::syntax::fold;

/// Different ends that a summary tells apart.
const LINES: usize = 40;

/// How far each host is.
pub(crate) struct Board {
    hosts: Arc<[Host]>,
    states: Vec<State>,
    /// By kind, as [`Kind::ALL`] has them.
    counts: BTreeMap<Kind, usize>,
    begun: usize,
    done: usize,
}

enum State {
    Waiting,
    Begun,
    Ended(Box<Outcome>),
}

impl Board {
    pub(crate) fn new(hosts: Arc<[Host]>) -> Self {
        let states = hosts.iter().map(|_| State::Waiting).collect();
        Self { hosts, states, counts: BTreeMap::new(), begun: 0, done: 0 }
    }

    pub(crate) fn event(&mut self, host: usize, event: &Event) {
        let Some(state) = self.states.get_mut(host) else { return };
        match event {
            Event::Begun => {
                self.begun += 1;
                *state = State::Begun;
            }
            Event::Ended(outcome) => {
                self.done += 1;
                *self.counts.entry(outcome.kind).or_default() += 1;
                *state = State::Ended(outcome.clone());
            }
            Event::Started(_) | Event::Output(_) | Event::Gap(_) => {}
        }
    }

    /// Those that were never begun with.
    pub(crate) fn waiting(&self) -> Vec<usize> {
        self.states.iter().enumerate().filter(|(_, state)| matches!(state, State::Waiting)).map(|(n, _)| n).collect()
    }

    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// For the progress bar.
    pub(crate) fn progress(&self) -> String {
        let running = self.begun.saturating_sub(self.done);
        let ended: String = self.counts.iter().map(|(kind, count)| format!(", {count} {}", kind.words())).collect();
        format!("{running} running{ended}")
    }

    /// For the first Ctrl-C.
    pub(crate) fn still(&self) -> String {
        let running: Vec<_> = self.named(|state| matches!(state, State::Begun)).collect();
        let waiting = self.waiting().len();
        let waiting = if waiting > 0 { format!(", {waiting} waiting") } else { String::new() };
        format!("{} still running{waiting}: {}", running.len(), fold(running))
    }

    fn named(&self, of: impl Fn(&State) -> bool) -> impl Iterator<Item = &str> {
        self.hosts.iter().zip(&self.states).filter(move |(_, state)| of(state)).map(|(host, _)| host.name.as_str())
    }

    /// Every outcome with its host.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&Host, &Outcome)> {
        self.hosts.iter().zip(&self.states).filter_map(|(host, state)| match state {
            State::Ended(outcome) => Some((host, &**outcome)),
            State::Waiting | State::Begun => None,
        })
    }

    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// 0 if all went well, otherwise 1, or the largest.
    pub(crate) fn exit_code(&self, largest: bool) -> u8 {
        let failed = self.outcomes().filter(|(_, outcome)| !outcome.is_ok());
        match largest {
            true => failed.map(|(_, outcome)| outcome.code).max().unwrap_or(0),
            false => u8::from(failed.count() > 0),
        }
    }

    /// The closing words: how many went well, and what became of the others.
    pub(crate) fn summary(&self, took: Duration) -> Vec<String> {
        let total = self.hosts.len();
        let others = Kind::ALL.iter().filter(|kind| **kind != Kind::Ok && self.count(**kind) > 0);
        let others: String = others.map(|kind| format!(", {} {}", self.count(*kind), kind.words())).collect();
        let took = took.as_secs_f64();
        let mut lines = vec![format!("{} of {total} ok{others}, in {took:.1} s", self.count(Kind::Ok))];
        let by_end = self.by_end(|outcome| !outcome.is_ok());
        let left_out = by_end.len().saturating_sub(LINES);
        lines.extend(by_end.into_iter().take(LINES).map(|(words, hosts)| format!("  {hosts}: {words}")));
        if left_out > 0 {
            lines.push(format!("  and {left_out} more; use --json for all"));
        }
        lines
    }

    /// The hosts of each end, in the order of kinds.
    pub(crate) fn by_end(&self, of: impl Fn(&Outcome) -> bool) -> Vec<(String, String)> {
        let mut by_end: BTreeMap<(Kind, String), Vec<&str>> = BTreeMap::new();
        for (host, outcome) in self.outcomes().filter(|(_, outcome)| of(outcome)) {
            by_end.entry((outcome.kind, outcome.words())).or_default().push(&host.name);
        }
        by_end.into_iter().map(|((_, words), hosts)| (words, fold(hosts))).collect()
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
