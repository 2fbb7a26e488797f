//! One way of carrying bytes, of several that take turns.

use std::time::Instant;

use telexec_tests::Agent;

use crate::Result;
use crate::machine::{cpu_of, own_cpu, peak_mebibytes};
use crate::rate::median;
use crate::table::{Aim, Baseline, Row, Table, Unit};

pub(crate) const MEBIBYTE: u64 = 1024 * 1024;

/// One way of carrying bytes.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// The way that it is compared with.
    pub(crate) base: Option<&'static str>,
    aim: Option<f64>,
    agent: Option<i32>,
    speeds: Vec<f64>,
    cpu: [f64; 2],
}

impl Way {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, base: None, aim: None, agent: None, speeds: Vec::new(), cpu: [0.0; 2] }
    }

    pub(crate) fn of(self, agent: &Agent) -> Self {
        Self { agent: Some(agent.pid()), ..self }
    }

    pub(crate) fn beside(self, base: &'static str, aim: impl Into<Option<f64>>) -> Self {
        Self { base: Some(base), aim: aim.into(), ..self }
    }

    fn cpu_now(&self) -> [f64; 2] {
        [self.agent.map(cpu_of).unwrap_or_default(), own_cpu()].map(|time| time.as_secs_f64())
    }

    pub(crate) async fn go(&mut self, bytes: u64, carry: impl Future<Output = Result<u64>>) -> Result<()> {
        let (before, begin) = (self.cpu_now(), Instant::now());
        let carried = carry.await.map_err(|error| format!("{}: {error}", self.name))?;
        let time = begin.elapsed().as_secs_f64();
        if carried != bytes {
            return Err(format!("{}: {carried} bytes of {bytes}", self.name).into());
        }
        let mebibytes = bytes as f64 / MEBIBYTE as f64;
        self.speeds.push(mebibytes / time);
        let after = self.cpu_now();
        for (sum, (before, after)) in self.cpu.iter_mut().zip(before.into_iter().zip(after)) {
            *sum += (after - before) * 1e6 / mebibytes;
        }
        Ok(())
    }

    /// A row for each, beside what they are compared with.
    pub(crate) fn add_all(ways: &[Self], table: &mut Table) {
        ways.iter().for_each(|way| table.add(way.row(ways)));
    }

    fn row(&self, ways: &[Self]) -> Row {
        let speed = median(&mut self.speeds.clone());
        let mut row = Row::new(self.name, Unit::MebibytesPerSecond, speed);
        if let Some(base) = ways.iter().find(|way| Some(way.name) == self.base) {
            let mut ratios: Vec<f64> = self.speeds.iter().zip(&base.speeds).map(|(a, b)| a / b).collect();
            let value = median(&mut base.speeds.clone());
            row.baseline = Some(Baseline { name: base.name.to_owned(), value, ratio: median(&mut ratios) });
        }
        row.aim = self.aim.map(Aim::RatioAtLeast);
        // of each MiB
        row.cpu = self.agent.map(|_| self.cpu.map(|sum| sum / self.speeds.len() as f64));
        row.peak = self.agent.map(peak_mebibytes);
        row
    }
}
