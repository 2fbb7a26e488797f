//! What decides an action of a caller, kept for its next call: the rules whose scope may cover it, and the entities.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cedar_policy::{Entities, PolicySet};

/// With more of them the cache begins anew: identities may be many, and CheckCommand may name any.
const MAX_ENTRIES: usize = 1024;
/// The same for the rules that all of them have copies of.
const MAX_RULES: usize = 8192;

/// An action of a caller, whatever it is applied to.
#[derive(Clone, Debug)]
pub(super) struct CallerRules {
    /// The caller, the agent and the action.
    pub(super) entities: Arc<Entities>,
    /// The rules whose principal and action these are: others neither permit nor forbid.
    pub(super) set: Arc<PolicySet>,
    /// How many of them are copies.
    pub(super) copied: usize,
}

/// Those of one policy.
#[derive(Debug, Default)]
pub(super) struct CallerRulesCache(Mutex<Cached>);

#[derive(Debug, Default)]
struct Cached {
    all: HashMap<Key, CallerRules>,
    copied: usize,
}

/// An identity, the roles that its token gives it, and an action.
type Key = (String, Vec<String>, &'static str);

impl CallerRulesCache {
    /// What `make` made for this identity with these roles of a token, and action, now or before.
    ///
    /// # Errors
    /// Those of `make`, which is asked again then.
    pub(super) fn get<E>(
        &self,
        identity: &str,
        roles: &[String],
        action: &'static str,
        make: impl FnOnce() -> Result<CallerRules, E>,
    ) -> Result<CallerRules, E> {
        let key = (identity.to_owned(), roles.to_vec(), action);
        if let Some(known) = self.cached().all.get(&key) {
            return Ok(known.clone());
        }
        let made = make()?;
        if made.copied > MAX_RULES {
            return Ok(made);
        }
        let mut cached = self.cached();
        let is_full = cached.all.len() >= MAX_ENTRIES || cached.copied + made.copied > MAX_RULES;
        let dropped = if is_full { std::mem::take(&mut *cached) } else { Cached::default() };
        if cached.all.insert(key, made.clone()).is_none() {
            cached.copied += made.copied;
        }
        // first, since others wait for it
        drop(cached);
        drop(dropped);
        Ok(made)
    }

    fn cached(&self) -> MutexGuard<'_, Cached> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn it_stays_small_and_knows_what_was_asked_before() {
        let cache = CallerRulesCache::default();
        let rules = |copied| CallerRules { entities: Entities::empty().into(), set: PolicySet::new().into(), copied };
        let get = |identity: &str, action, copied| {
            let mut is_made = false;
            let make = || {
                is_made = true;
                Ok::<_, Infallible>(rules(copied))
            };
            cache.get(identity, &[], action, make).unwrap();
            is_made
        };
        assert_eq!(
            [get("a", "Execute", 0), get("a", "Execute", 0), get("a", "Attach", 0), get("b", "Execute", 0)],
            [true, false, true, true]
        );
        for n in 0..3 * MAX_ENTRIES {
            get(&n.to_string(), "Execute", 0);
            assert!(cache.cached().all.len() <= MAX_ENTRIES);
        }
        for n in 0..100 {
            get(&n.to_string(), "Attach", 1000);
            assert!(cache.cached().copied <= MAX_RULES);
        }
        assert_eq!([(); 2].map(|()| get("large", "Execute", MAX_RULES + 1)), [true, true]);
        assert!(cache.get("c", &[], "Execute", || Err("no")).is_err());
        assert!(get("c", "Execute", 0));
    }
}
