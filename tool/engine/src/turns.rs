//! A queue in which owners take turns, each as often as its share.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::share::Share;

/// How far a turn puts an owner with a share of 0.01 back.
const STRIDE: u64 = 1_000_000;

/// With more owners than this that have nothing queued, those whose turn has passed are forgotten.
const CLEANUP_SIZE: usize = 64;

/// Items in the order in which their owners take turns ("stride scheduling"): a turn puts an owner back, the less the larger its
/// share. One that comes without having waited is put where the others are.
pub(crate) struct Turns<T> {
    /// None is empty.
    by_owner: HashMap<String, Queue<T>>,
    /// Owners that have something queued, the next one first: how far back they are, and since when.
    order: BTreeSet<(u64, u64, String)>,
    /// How far back those are that had a turn and have nothing queued.
    past: HashMap<String, u64>,
    /// How far back the one was that had the last turn.
    now: u64,
    len: usize,
    next: u64,
    /// How many threads work for each owner, where any does.
    at_work: HashMap<String, usize>,
}

struct Queue<T> {
    items: BTreeMap<u64, T>,
    share: Share,
    place: (u64, u64),
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            by_owner: HashMap::new(),
            order: BTreeSet::new(),
            past: HashMap::new(),
            now: 0,
            len: 0,
            next: 0,
            at_work: HashMap::new(),
        }
    }
}

impl<T> Turns<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns its number. The share is that of all that the owner has queued.
    pub(crate) fn push(&mut self, owner: &str, share: Share, item: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.len += 1;
        if let Some(queue) = self.by_owner.get_mut(owner) {
            queue.items.insert(number, item);
            queue.share = share;
            return number;
        }
        let back = self.past.remove(owner).unwrap_or_default().max(self.now);
        let queue = Queue { items: BTreeMap::from([(number, item)]), share, place: (back, number) };
        self.by_owner.insert(owner.to_owned(), queue);
        self.order.insert((back, number, owner.to_owned()));
        number
    }

    /// The next item of an owner for whom fewer than `max_each` threads work; [`Self::done`] ends that.
    pub(crate) fn pop(&mut self, max_each: usize) -> Option<(String, T)> {
        let may_work = |owner: &String| self.at_work.get(owner).is_none_or(|count| *count < max_each);
        let place = self.order.iter().find(|(_, _, owner)| may_work(owner))?.clone();
        self.order.remove(&place);
        let (back, _, owner) = place;
        let queue = self.by_owner.get_mut(&owner)?;
        let (_, item) = queue.items.pop_first()?;
        self.len -= 1;
        self.now = self.now.max(back);
        let back = back.saturating_add(STRIDE / u64::from(queue.share.hundredths()));
        match queue.items.is_empty() {
            true => {
                self.by_owner.remove(&owner);
                self.remember(&owner, back);
            }
            false => {
                queue.place = (back, self.next);
                self.order.insert((back, self.next, owner.clone()));
                self.next += 1;
            }
        }
        *self.at_work.entry(owner.clone()).or_default() += 1;
        Some((owner, item))
    }

    pub(crate) fn done(&mut self, owner: &str) {
        match self.at_work.get_mut(owner) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.at_work.remove(owner)),
        }
    }

    /// Takes an item out, if its turn has not come.
    pub(crate) fn remove(&mut self, owner: &str, number: u64) -> Option<T> {
        let queue = self.by_owner.get_mut(owner)?;
        let item = queue.items.remove(&number)?;
        self.len -= 1;
        if queue.items.is_empty() {
            let (back, since) = queue.place;
            self.by_owner.remove(owner);
            self.order.remove(&(back, since, owner.to_owned()));
            self.remember(owner, back);
        }
        Some(item)
    }

    fn remember(&mut self, owner: &str, back: u64) {
        if self.past.len() > CLEANUP_SIZE {
            self.past.retain(|_, back| *back > self.now);
        }
        self.past.insert(owner.to_owned(), back);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(text: &str) -> Share {
        Share::parse(text).unwrap()
    }

    fn fill(turns: &mut Turns<()>, owner: &str, share: Share) {
        for _ in 0..1000 {
            turns.push(owner, share, ());
        }
    }

    /// How many of so many turns each owner got, if all that is queued is enough for them.
    fn count(turns: &mut Turns<()>, most: usize) -> Vec<usize> {
        let mut counts = [0; 3];
        for _ in 0..most {
            let (owner, ()) = turns.pop(usize::MAX).unwrap();
            turns.done(&owner);
            counts[["a", "b", "c"].iter().position(|other| *other == owner).unwrap()] += 1;
        }
        counts.to_vec()
    }

    #[test]
    fn turns_are_as_frequent_as_shares() {
        let mut turns = Turns::default();
        for (owner, share) in [("a", share("1")), ("b", share("4")), ("c", share("0.5"))] {
            fill(&mut turns, owner, share);
        }
        assert_eq!(count(&mut turns, 1100), [200, 800, 100]);
        assert_eq!(turns.len(), 1900);
    }

    #[test]
    fn one_that_queues_item_by_item_gets_no_more_than_its_share() {
        let mut turns = Turns::default();
        fill(&mut turns, "a", share("1"));
        let mut of_b = 0;
        for _ in 0..1000 {
            if !turns.by_owner.contains_key("b") {
                turns.push("b", share("0.25"), ());
            }
            let (owner, ()) = turns.pop(usize::MAX).unwrap();
            turns.done(&owner);
            of_b += usize::from(owner == "b");
        }
        assert_eq!(of_b, 200);
    }

    #[test]
    fn time_without_work_is_not_saved_up() {
        let mut turns = Turns::default();
        fill(&mut turns, "a", share("1"));
        count(&mut turns, 500);
        fill(&mut turns, "b", share("1"));
        assert_eq!(count(&mut turns, 100), [50, 50, 0]);
    }

    #[test]
    fn what_is_taken_out_leaves_nothing_behind() {
        let mut turns = Turns::default();
        for round in 0..1000 {
            let owner = format!("owner {round}");
            let number = turns.push(&owner, Share::default(), ());
            assert_eq!(turns.remove(&owner, number), Some(()));
        }
        assert!(turns.order.is_empty() && turns.by_owner.is_empty() && turns.len() == 0);
        assert!(turns.past.len() <= CLEANUP_SIZE + 1, "{}", turns.past.len());
        assert!(turns.pop(usize::MAX).is_none());
    }
}
