//! A queue whose owners are served in proportion to their shares.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::share::Share;

/// How far a turn with a cost of 1 puts an owner with a share of 0.01 back.
const STRIDE: u64 = 1_000_000;

/// Owners with nothing queued are cleaned up when there are more than this, and more than twice as many as the last clean-up left.
const CLEANUP_SIZE: usize = 64;

/// Items in the order in which their owners take turns ("stride scheduling"): a turn moves an owner back by the cost of its item,
/// divided by its share. One that comes without having waited is put where the others are.
pub struct Turns<T> {
    /// None is empty.
    by_owner: HashMap<String, Queue<T>>,
    /// Owners that have something queued, the next one first: how far back they are, and since when.
    order: BTreeSet<(u64, u64, String)>,
    /// How far back those are that had a turn and have nothing queued.
    past: HashMap<String, u64>,
    cleanup_size: usize,
    /// How far back the one was that had the last turn.
    now: u64,
    len: usize,
    next: u64,
    /// Since when threads work for each owner, where any does.
    at_work: HashMap<String, Vec<Instant>>,
}

/// For how many items of one owner threads may be at work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Each {
    /// Without those that take long: [`HELD_UP`].
    pub(crate) at_once: usize,
    pub(crate) in_all: usize,
}

/// What takes longer than this is held up by something else than the processors: more of its owner's can be done meanwhile.
pub(crate) const HELD_UP: Duration = Duration::from_millis(50);

/// An item that a thread is at work for.
pub(crate) struct Turn<T> {
    item: T,
    owner: String,
    began: Instant,
}

impl<T> Turn<T> {
    /// What [`Turns::done`] gets when the work is done.
    pub(crate) fn split(self) -> (T, (String, Instant)) {
        (self.item, (self.owner, self.began))
    }
}

struct Queue<T> {
    /// With their costs.
    items: BTreeMap<u64, (u64, T)>,
    share: Share,
    place: (u64, u64),
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            by_owner: HashMap::new(),
            order: BTreeSet::new(),
            past: HashMap::new(),
            cleanup_size: CLEANUP_SIZE,
            now: 0,
            len: 0,
            next: 0,
            at_work: HashMap::new(),
        }
    }
}

impl<T> Turns<T> {
    /// How many items are queued.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Queues an item of this cost, in any unit; returns its number. The share is that of all that the owner has queued.
    pub fn push(&mut self, owner: &str, share: Share, cost: u64, item: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.len += 1;
        if let Some(queue) = self.by_owner.get_mut(owner) {
            queue.items.insert(number, (cost, item));
            queue.share = share;
            return number;
        }
        let back = self.past.remove(owner).unwrap_or_default().max(self.now);
        let queue = Queue { items: BTreeMap::from([(number, (cost, item))]), share, place: (back, number) };
        self.by_owner.insert(owner.to_owned(), queue);
        self.order.insert((back, number, owner.to_owned()));
        number
    }

    /// For how many more items of an owner threads may be at work now.
    fn room(&self, owner: &str, each: Each, now: Instant) -> usize {
        let Some(at_work) = self.at_work.get(owner) else { return each.at_once };
        let recent = at_work.iter().filter(|began| now.saturating_duration_since(**began) < HELD_UP).count();
        each.at_once.saturating_sub(recent).min(each.in_all.saturating_sub(at_work.len()))
    }

    /// More than this many items could be taken now.
    pub(crate) fn has_more_than(&self, count: usize, each: Each, now: Instant) -> bool {
        let mut ready = 0_usize;
        self.order.iter().any(|(_, _, owner)| {
            let queued = self.by_owner.get(owner).map_or(0, |queue| queue.items.len());
            ready = ready.saturating_add(queued.min(self.room(owner, each, now)));
            ready > count
        })
    }

    /// The next item.
    pub fn pop(&mut self) -> Option<T> {
        let place = self.order.first()?.clone();
        Some(self.take(place)?.0)
    }

    /// The next item of an owner for whom another thread may be at work; [`Self::done`] ends that.
    pub(crate) fn start(&mut self, each: Each, now: Instant) -> Option<Turn<T>> {
        let place = self.order.iter().find(|(_, _, owner)| self.room(owner, each, now) > 0)?.clone();
        let (item, owner) = self.take(place)?;
        // with nobody waiting, there is nobody to make up for
        self.forget();
        self.at_work.entry(owner.clone()).or_default().push(now);
        Some(Turn { item, owner, began: now })
    }

    /// The first item of the owner who has this place.
    fn take(&mut self, place: (u64, u64, String)) -> Option<(T, String)> {
        self.order.remove(&place);
        let (back, _, owner) = place;
        let queue = self.by_owner.get_mut(&owner)?;
        let (_, (cost, item)) = queue.items.pop_first()?;
        self.len -= 1;
        self.now = self.now.max(back);
        let back = back.saturating_add(stride(queue.share, cost));
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
        Some((item, owner))
    }

    /// Charges an owner for work that did not queue.
    pub fn charge(&mut self, owner: &str, share: Share, cost: u64) {
        let more = stride(share, cost);
        match self.by_owner.get_mut(owner) {
            Some(queue) => {
                let (back, since) = queue.place;
                queue.place.0 = back.saturating_add(more);
                let place = (queue.place.0, since, owner.to_owned());
                self.order.remove(&(back, since, owner.to_owned()));
                self.order.insert(place);
            }
            None => {
                let back = self.past.get(owner).copied().unwrap_or_default().max(self.now);
                self.remember(owner, back.saturating_add(more));
            }
        }
    }

    /// Forgets all turns so far, if nothing is queued.
    pub fn forget(&mut self) {
        if self.is_empty() {
            self.past.clear();
            self.now = 0;
        }
    }

    /// A thread has done its work for an item.
    pub(crate) fn done(&mut self, (owner, began): &(String, Instant)) {
        let Some(at_work) = self.at_work.get_mut(owner) else { return };
        if let Some(at) = at_work.iter().position(|other| other == began) {
            at_work.swap_remove(at);
        }
        if at_work.is_empty() {
            self.at_work.remove(owner);
        }
    }

    /// Takes an item out, if its turn has not come.
    pub fn remove(&mut self, owner: &str, number: u64) -> Option<T> {
        let queue = self.by_owner.get_mut(owner)?;
        let (_, item) = queue.items.remove(&number)?;
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
        if self.past.len() > self.cleanup_size {
            self.past.retain(|_, back| *back > self.now);
            self.cleanup_size = CLEANUP_SIZE.max(2 * self.past.len());
        }
        self.past.insert(owner.to_owned(), back);
    }
}

/// How far a turn puts back.
fn stride(share: Share, cost: u64) -> u64 {
    (STRIDE / u64::from(share.hundredths())).saturating_mul(cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(text: &str) -> Share {
        Share::parse(text).unwrap()
    }

    fn fill(turns: &mut Turns<()>, owner: &str, share: Share) {
        for _ in 0..1000 {
            turns.push(owner, share, 1, ());
        }
    }

    /// Whose turn it is.
    fn next(turns: &mut Turns<()>) -> Option<String> {
        let (_, _, owner) = turns.order.first()?.clone();
        turns.pop().map(|()| owner)
    }

    /// How many of so many turns each owner got, if all that is queued is enough for them.
    fn count(turns: &mut Turns<()>, most: usize) -> Vec<usize> {
        let mut counts = [0; 3];
        for _ in 0..most {
            let owner = next(turns).unwrap();
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
    fn turns_are_as_rare_as_they_are_costly() {
        let mut turns = Turns::default();
        for _ in 0..1000 {
            turns.push("a", Share::default(), 1, ());
            turns.push("b", share("2"), 10, ());
        }
        assert_eq!(count(&mut turns, 600), [500, 100, 0]);
    }

    #[test]
    fn a_charge_counts_like_an_item_with_or_without_others_queued() {
        let mut turns = Turns::default();
        for owner in ["a", "b"] {
            fill(&mut turns, owner, share("1"));
        }
        turns.push("c", share("2"), 1, ());
        assert_eq!(count(&mut turns, 3), [1, 1, 1]);
        for owner in ["a", "c"] {
            turns.charge(owner, share("2"), 10);
        }
        turns.push("c", share("2"), 1, ());
        // b has had 1 so far, a 6 and c 5.5
        assert_eq!(count(&mut turns, 6), [0, 5, 1]);
    }

    #[test]
    fn one_that_queues_item_by_item_gets_no_more_than_its_share() {
        let mut turns = Turns::default();
        fill(&mut turns, "a", share("1"));
        let mut of_b = 0;
        for _ in 0..1000 {
            if !turns.by_owner.contains_key("b") {
                turns.push("b", share("0.25"), 1, ());
            }
            of_b += usize::from(next(&mut turns).unwrap() == "b");
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
            let number = turns.push(&owner, Share::default(), 1, ());
            assert_eq!(turns.remove(&owner, number), Some(()));
            turns.push(&owner, Share::default(), 1, ());
            assert_eq!(next(&mut turns), Some(owner));
        }
        assert!(turns.order.is_empty() && turns.by_owner.is_empty() && turns.is_empty());
        assert!(turns.pop().is_none());
        turns.forget();
        assert!(turns.past.is_empty());
    }

    #[test]
    fn owners_whose_turn_has_passed_are_forgotten() {
        let mut turns = Turns::default();
        fill(&mut turns, "a", share("1"));
        for round in 0..500 {
            turns.push(&format!("owner {round}"), Share::default(), 1, ());
            next(&mut turns);
            next(&mut turns);
        }
        assert!(turns.past.len() <= CLEANUP_SIZE + 1, "{}", turns.past.len());
    }

    #[test]
    fn what_is_held_up_makes_room_for_more_of_its_owner() {
        let each = Each { at_once: 2, in_all: 3 };
        let mut turns = Turns::default();
        fill(&mut turns, "a", share("1"));
        turns.push("b", share("1"), 1, ());
        let mut at_work = Vec::new();
        let mut owners = Vec::new();
        let now = Instant::now();
        while let Some(turn) = turns.start(each, now) {
            let ((), turn) = turn.split();
            owners.push(turn.0.clone());
            at_work.push(turn);
        }
        assert_eq!(owners, ["a", "b", "a"]);
        assert!(!turns.has_more_than(0, each, now));
        let later = now + HELD_UP;
        assert!(turns.has_more_than(0, each, later) && !turns.has_more_than(1, each, later));
        let (_, third) = turns.start(each, later).unwrap().split();
        assert!(turns.start(each, later).is_none(), "as many as there may be in all");
        at_work.iter().chain([&third]).for_each(|turn| turns.done(turn));
        assert!(turns.at_work.is_empty() && turns.has_more_than(1, each, later));
    }
}
