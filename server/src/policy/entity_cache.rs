//! The entities of questions that are asked again and again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cedar_policy::Entities;

/// With more of them the cache begins anew: identities may be many, and are named by who has a certificate.
const MAX_ENTRIES: usize = 1024;

/// Those of one policy, by identity and action.
#[derive(Debug, Default)]
pub(super) struct EntityCache(Mutex<HashMap<(String, &'static str), Arc<Entities>>>);

impl EntityCache {
    /// # Errors
    /// Those of `make`, which is asked again then.
    pub(super) fn get<E>(
        &self,
        identity: &str,
        action: &'static str,
        make: impl FnOnce() -> Result<Entities, E>,
    ) -> Result<Arc<Entities>, E> {
        let key = (identity.to_owned(), action);
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&key) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(make()?);
        let mut known = lock();
        if known.len() >= MAX_ENTRIES {
            known.clear();
        }
        known.insert(key, Arc::clone(&made));
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
            cache.get(identity, action, make).unwrap();
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
        assert!(cache.get("c", "Execute", || Err("no")).is_err() && get("c", "Execute"));
    }
}
