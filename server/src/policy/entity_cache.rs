//! The caller, the agent and the action as entities, kept for the next call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cedar_policy::Entities;

/// With more of them the cache begins anew: identities may be many, and CheckCommand may name any.
const MAX_ENTRIES: usize = 1024;

/// The entities of one policy.
#[derive(Debug, Default)]
pub(super) struct EntityCache(Mutex<HashMap<Key, Arc<Entities>>>);

/// An identity, the roles that its token gives it, and an action.
type Key = (String, Vec<String>, &'static str);

impl EntityCache {
    /// What `make` made for this identity with these roles of a token, and action, now or before.
    ///
    /// # Errors
    /// Those of `make`, which is asked again then.
    pub(super) fn get<E>(
        &self,
        identity: &str,
        roles: &[String],
        action: &'static str,
        make: impl FnOnce() -> Result<Entities, E>,
    ) -> Result<Arc<Entities>, E> {
        let key = (identity.to_owned(), roles.to_vec(), action);
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&key) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(make()?);
        let mut known = lock();
        let dropped = if known.len() >= MAX_ENTRIES { std::mem::take(&mut *known) } else { HashMap::new() };
        known.insert(key, Arc::clone(&made));
        // first, since others wait for it
        drop(known);
        drop(dropped);
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn it_stays_small_and_knows_what_was_asked_before() {
        let cache = EntityCache::default();
        let get = |identity: &str, action| {
            let mut is_made = false;
            let make = || {
                is_made = true;
                Ok::<_, Infallible>(Entities::empty())
            };
            cache.get(identity, &[], action, make).unwrap();
            is_made
        };
        assert_eq!(
            [get("a", "Execute"), get("a", "Execute"), get("a", "Attach"), get("b", "Execute")],
            [true, false, true, true]
        );
        for n in 0..3 * MAX_ENTRIES {
            get(&n.to_string(), "Execute");
            assert!(cache.0.lock().unwrap().len() <= MAX_ENTRIES);
        }
        assert!(cache.get("c", &[], "Execute", || Err("no")).is_err());
        assert!(get("c", "Execute"));
    }
}
