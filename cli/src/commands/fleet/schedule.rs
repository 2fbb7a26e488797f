//! When each host is started: limited parallelism, batches, and a maximum of failures. Independent of the network.

use std::cell::Cell;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use crate::syntax::HostCount;

/// Parallelism and limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) fanout: usize,
    /// `None`: one batch of all hosts.
    pub(crate) batch: Option<HostCount>,
    /// How long to wait before each batch but the first.
    pub(crate) batch_wait: Duration,
    /// `None`: unlimited.
    pub(crate) max_failures: Option<HostCount>,
    /// Whether the first failure also ends what runs.
    pub(crate) fail_fast: bool,
}

/// Which batch of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// From 1.
    pub(crate) number: usize,
    pub(crate) count: usize,
}

impl Schedule {
    /// Calls `work` with the index of each host; it returns whether it succeeded. `begin` is called before each batch and
    /// may wait, `may_continue` before each host. Returns whether all hosts were started.
    pub(crate) async fn run<F: Future<Output = bool>>(
        &self,
        hosts: usize,
        begin: impl AsyncFn(Batch),
        work: impl Fn(usize) -> F,
        may_continue: impl Fn() -> bool,
    ) -> bool {
        let batch = self.batch.map_or(hosts, |batch| batch.of(hosts)).max(1);
        // batches imply that each one must succeed before the next
        let tolerated = self.max_failures.or(self.batch.map(|_| HostCount::Count(0))).map(|share| share.of(hosts));
        let failures = Cell::new(0);
        let started = Cell::new(0);
        let may_start = || tolerated.is_none_or(|tolerated| failures.get() <= tolerated) && may_continue();
        for (number, first) in (1..).zip((0..hosts).step_by(batch)) {
            if !may_start() {
                break;
            }
            begin(Batch { number, count: hosts.div_ceil(batch) }).await;
            let numbers = first..hosts.min(first.saturating_add(batch));
            let tasks = numbers.take_while(|_| may_start()).map(|host| {
                started.set(started.get() + 1);
                work(host)
            });
            let mut running = stream::iter(tasks).buffer_unordered(self.fanout);
            while let Some(succeeded) = running.next().await {
                failures.set(failures.get() + usize::from(!succeeded));
            }
        }
        started.get() == hosts
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const ALL: Schedule =
        Schedule { fanout: 64, batch: None, batch_wait: Duration::ZERO, max_failures: None, fail_fast: false };

    /// The order of the hosts, the maximum in parallel, and whether all were started.
    async fn run_with(schedule: Schedule, hosts: usize, bad: &[usize]) -> (Vec<usize>, usize, bool) {
        let (seen, running, most) = (RefCell::new(Vec::new()), Cell::new(0), Cell::new(0));
        let work = |host| {
            let (seen, running, most) = (&seen, &running, &most);
            async move {
                seen.borrow_mut().push(host);
                running.set(running.get() + 1);
                most.set(most.get().max(running.get()));
                tokio::task::yield_now().await;
                running.set(running.get() - 1);
                !bad.contains(&host)
            }
        };
        let all = schedule.run(hosts, async |_| {}, work, || true).await;
        (seen.take(), most.get(), all)
    }

    #[tokio::test]
    async fn so_many_at_once_and_all_of_them() {
        let schedule = Schedule { fanout: 3, ..ALL };
        assert_eq!(run_with(schedule, 10, &[1, 2, 3]).await, ((0..10).collect(), 3, true));
        assert_eq!(run_with(Schedule { fanout: 100, ..schedule }, 10, &[]).await, ((0..10).collect(), 10, true));
        assert_eq!(run_with(schedule, 0, &[]).await, (Vec::new(), 0, true));
    }

    #[tokio::test]
    async fn a_batch_is_done_before_the_next_begins() {
        let schedule = Schedule { batch: Some(HostCount::Percent(20)), ..ALL };
        assert_eq!(run_with(schedule, 10, &[]).await, ((0..10).collect(), 2, true));
        let tiny = Schedule { batch: Some(HostCount::Percent(1)), ..schedule };
        assert_eq!(run_with(tiny, 3, &[]).await, ((0..3).collect(), 1, true));
    }

    #[tokio::test]
    async fn each_batch_is_announced_unless_none_follows() {
        let schedule = Schedule { batch: Some(HostCount::Count(2)), ..ALL };
        let batches = RefCell::new(Vec::new());
        let begin = async |batch: Batch| batches.borrow_mut().push((batch.number, batch.count));
        assert!(!schedule.run(7, begin, async |host| host != 3, || true).await);
        assert_eq!(batches.take(), [(1, 4), (2, 4)]);
    }

    #[tokio::test]
    async fn too_many_failures_begin_no_more() {
        let schedule = Schedule { batch: Some(HostCount::Count(2)), ..ALL };
        assert_eq!(run_with(schedule, 10, &[3]).await, ((0..4).collect(), 2, false));
        let tolerant = Schedule { max_failures: Some(HostCount::Percent(20)), ..schedule };
        assert_eq!(run_with(tolerant, 10, &[0, 1, 5]).await, ((0..6).collect(), 2, false));
        let unbatched = Schedule { fanout: 1, max_failures: Some(HostCount::Count(1)), ..ALL };
        assert_eq!(run_with(unbatched, 10, &[0, 2]).await, ((0..3).collect(), 1, false));
    }
}
