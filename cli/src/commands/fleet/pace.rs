//! Which hosts are worked on when: so many at once, in batches, until too many have failed. Knows nothing of networks.

use std::cell::Cell;

use futures_util::{StreamExt, stream};

use crate::syntax::Share;

/// How fast, and how far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) fanout: usize,
    /// `None`: all hosts are one.
    pub(crate) batch: Option<Share>,
    /// `None`: any number.
    pub(crate) max_failures: Option<Share>,
}

impl Pace {
    /// Works on each of `hosts` hosts, by its number; `work` tells whether it went well. `go_on` is asked before each.
    /// Returns whether all were begun with.
    pub(crate) async fn run<F: Future<Output = bool>>(
        &self,
        hosts: usize,
        work: impl Fn(usize) -> F,
        go_on: impl Fn() -> bool,
    ) -> bool {
        let batch = self.batch.map_or(hosts, |batch| batch.of(hosts)).max(1);
        // who goes on batch by batch wants to see each of them succeed
        let tolerated = self.max_failures.or(self.batch.map(|_| Share::Count(0))).map(|share| share.of(hosts));
        let failures = Cell::new(0);
        let begun = Cell::new(0);
        let may_begin = || tolerated.is_none_or(|tolerated| failures.get() <= tolerated) && go_on();
        for first in (0..hosts).step_by(batch) {
            let numbers = first..hosts.min(first.saturating_add(batch));
            let begin = numbers.take_while(|_| may_begin()).map(|host| {
                begun.set(begun.get() + 1);
                work(host)
            });
            let mut running = stream::iter(begin).buffer_unordered(self.fanout);
            while let Some(went_well) = running.next().await {
                failures.set(failures.get() + usize::from(!went_well));
            }
        }
        begun.get() == hosts
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Which hosts were worked on in which order, the most at once, and whether all were.
    async fn paced(pace: Pace, hosts: usize, bad: &[usize]) -> (Vec<usize>, usize, bool) {
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
        let all = pace.run(hosts, work, || true).await;
        (seen.take(), most.get(), all)
    }

    #[tokio::test]
    async fn so_many_at_once_and_all_of_them() {
        let pace = Pace { fanout: 3, batch: None, max_failures: None };
        assert_eq!(paced(pace, 10, &[1, 2, 3]).await, ((0..10).collect(), 3, true));
        assert_eq!(paced(Pace { fanout: 100, ..pace }, 10, &[]).await, ((0..10).collect(), 10, true));
        assert_eq!(paced(pace, 0, &[]).await, (Vec::new(), 0, true));
    }

    #[tokio::test]
    async fn a_batch_is_done_before_the_next_begins() {
        let pace = Pace { fanout: 64, batch: Some(Share::Percent(20)), max_failures: None };
        assert_eq!(paced(pace, 10, &[]).await, ((0..10).collect(), 2, true));
        let tiny = Pace { batch: Some(Share::Percent(1)), ..pace };
        assert_eq!(paced(tiny, 3, &[]).await, ((0..3).collect(), 1, true));
    }

    #[tokio::test]
    async fn too_many_failures_begin_no_more() {
        let pace = Pace { fanout: 64, batch: Some(Share::Count(2)), max_failures: None };
        assert_eq!(paced(pace, 10, &[3]).await, ((0..4).collect(), 2, false));
        let tolerant = Pace { max_failures: Some(Share::Percent(20)), ..pace };
        assert_eq!(paced(tolerant, 10, &[0, 1, 5]).await, ((0..6).collect(), 2, false));
        let unbatched = Pace { fanout: 1, batch: None, max_failures: Some(Share::Count(1)) };
        assert_eq!(paced(unbatched, 10, &[0, 2]).await, ((0..3).collect(), 1, false));
    }
}
