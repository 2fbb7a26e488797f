//! The same thing done in several ways that take turns.

use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use telexec_tests::percentile;

use crate::machine::{cpu_of, own_cpu, peak_mebibytes};
use crate::table::{Aim, Baseline, Row, Table, Unit};
use crate::{Plan, Result};

/// Done once; how long what counts of it took.
pub(crate) type Deed<'a> = Box<dyn Fn() -> LocalBoxFuture<'a, Result<Duration>> + 'a>;

/// One way of doing it.
pub(crate) struct Contestant<'a> {
    name: String,
    agent: Option<i32>,
    aim: Option<Aim>,
    deed: Deed<'a>,
    blocks: Vec<Vec<Duration>>,
    cpu: [Duration; 2],
}

impl<'a> Contestant<'a> {
    pub(crate) fn new<F>(name: impl Into<String>, deed: impl Fn() -> F + 'a) -> Self
    where
        F: Future<Output = Result<Duration>> + 'a,
    {
        let deed: Deed<'a> = Box::new(move || Box::pin(deed()));
        Self { name: name.into(), agent: None, aim: None, deed, blocks: Vec::new(), cpu: [Duration::ZERO; 2] }
    }

    /// Done by the agent with this process id.
    pub(crate) fn agent(self, pid: i32) -> Self {
        Self { agent: Some(pid), ..self }
    }

    pub(crate) fn aim(self, aim: Aim) -> Self {
        Self { aim: Some(aim), ..self }
    }

    async fn block(&mut self, rounds: usize) -> Result<()> {
        for _ in 0..WARM_UP.min(rounds) {
            (self.deed)().await?;
        }
        let before = self.cpu_now();
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            times.push((self.deed)().await?);
        }
        let after = self.cpu_now();
        for (sum, (before, after)) in self.cpu.iter_mut().zip(before.into_iter().zip(after)) {
            *sum += after.saturating_sub(before);
        }
        self.blocks.push(times);
        Ok(())
    }

    fn cpu_now(&self) -> [Duration; 2] {
        [self.agent.map(cpu_of).unwrap_or_default(), own_cpu()]
    }

    fn percentile(&self, percent: usize) -> Duration {
        percentile(&mut self.blocks.concat(), percent)
    }

    /// The median of the ratios of the blocks that stood beside each other.
    fn ratio(&self, base: &Self) -> f64 {
        let median = |block: &Vec<Duration>| percentile(&mut block.clone(), 50).as_secs_f64();
        let mut ratios: Vec<f64> = self.blocks.iter().zip(&base.blocks).map(|(a, b)| median(a) / median(b)).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn took(&self) -> Took {
        let count = self.blocks.iter().map(Vec::len).sum::<usize>() as f64;
        Took { median: us(self.percentile(50)), cpu: self.cpu.map(|time| us(time) / count) }
    }

    fn row(&self, base: Option<&Self>) -> Row {
        let took = self.took();
        let mut row = Row::new(self.name.clone(), Unit::Microseconds, took.median);
        row.p99 = Some(us(self.percentile(99)));
        row.aim = self.aim;
        row.baseline = base.map(|base| Baseline {
            name: base.name.clone(),
            value: us(base.percentile(50)),
            ratio: self.ratio(base),
        });
        row.cpu = self.agent.map(|_| took.cpu);
        row.peak = self.agent.map(peak_mebibytes);
        row
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Rounds in a row, so that each is as warm as it would be in use.
const BLOCK: usize = 25;
/// The first rounds of a block are not counted.
const WARM_UP: usize = 3;

/// What one contestant took, in microseconds.
pub(crate) struct Took {
    /// Wall time.
    pub(crate) median: f64,
    /// Mean processor time of the agent and of this process.
    pub(crate) cpu: [f64; 2],
}

/// Lets the first, which is the baseline, and the others do it in turns; each gets its row.
pub(crate) async fn contest(
    plan: &Plan,
    table: &mut Table,
    rounds: usize,
    mut contestants: Vec<Contestant<'_>>,
) -> Result<Vec<Took>> {
    let rounds = plan.some(rounds);
    for _ in 0..rounds.div_ceil(BLOCK) {
        for contestant in &mut contestants {
            contestant.block(rounds.min(BLOCK)).await?;
        }
    }
    if let Some((base, others)) = contestants.split_first() {
        table.add(base.row(None));
        others.iter().for_each(|other| table.add(other.row(Some(base))));
    }
    Ok(contestants.iter().map(Contestant::took).collect())
}

/// How long it took, of something that counts as a whole.
pub(crate) async fn timed<T>(deed: impl Future<Output = Result<T>>) -> Result<Duration> {
    let begin = Instant::now();
    deed.await?;
    Ok(begin.elapsed())
}
