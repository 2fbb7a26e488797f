//! What decides an action of a caller, kept for its next call: the rules that are about both, and the entities.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cedar_policy::{Entities, Entity, PolicySet};

use super::question::{Action, Subject};
use super::rule::may_contain;
use super::schema::uid;
use super::{Policy, Rule};
use crate::call::Rpc;
use crate::call::caller::Caller;

/// With more of them the cache begins anew: identities may be many, and CheckCommand may name any.
const MAX_ENTRIES: usize = 1024;
/// The same for the rules that the entries have copies of, together.
const MAX_COPIES: usize = 16 * 1024;

/// What decides one action of one caller.
#[derive(Debug)]
pub(super) struct CallerRules {
    /// The caller, the agent and the action.
    pub(super) entities: Arc<Entities>,
    /// With all rules whose principal and action these are: others neither permit nor forbid.
    pub(super) set: Arc<PolicySet>,
    /// The attributes of the context that these rules may look at; `None`: all.
    attributes: Option<BTreeSet<String>>,
    /// How many rules the set has copies of; 0: it is the policy's own.
    copies: usize,
}

/// The rules of many callers, of one policy.
#[derive(Debug, Default)]
pub(super) struct CallerRulesCache(Mutex<Cached>);

#[derive(Debug, Default)]
struct Cached {
    all: HashMap<Key, Arc<CallerRules>>,
    copies: usize,
}

/// An identity, the roles that its token gives it, and an action.
type Key = (String, Vec<String>, Action);

impl CallerRules {
    /// Whether they may look at this attribute of the context, or at a part of it.
    pub(super) fn may_look_at(&self, attribute: &str) -> bool {
        may_contain(self.attributes.as_ref(), attribute)
    }
}

impl Policy {
    /// What decides this action of a caller, whatever it is applied to.
    ///
    /// # Errors
    /// Such as two entities with one name.
    pub(super) fn caller_rules(
        &self,
        caller: &Caller,
        rpc: Rpc,
        subject: &Subject<'_>,
    ) -> Result<Arc<CallerRules>, Box<dyn Error>> {
        let action = Action::of(rpc, subject);
        let key = (caller.identity.as_str().to_owned(), caller.roles().to_vec(), action);
        self.caller_rules.get(key, || self.make_caller_rules(caller, action))
    }

    fn make_caller_rules(
        &self,
        caller: &Caller,
        Action { name, group }: Action,
    ) -> Result<CallerRules, Box<dyn Error>> {
        let agent = uid(&self.names.agent, &self.agent.hostname);
        let agent = Entity::new(agent, self.agent_attributes().collect(), HashSet::new())?;
        let principal = self.identity(caller.identity.as_str(), caller.roles())?;
        let groups = group.map(|group| uid(&self.names.action, group)).into_iter().collect();
        let action = Entity::new_no_attrs(uid(&self.names.action, name), groups);
        let entities = Arc::new(Entities::from_entities([principal, agent, action], None)?);
        let actions: Vec<_> = [name].into_iter().chain(group).collect();
        let rules: Vec<_> = self.rules_about(caller).filter(|(_, rule)| rule.is_about_action(&actions)).collect();
        let attributes = attributes(rules.iter().map(|(_, rule)| *rule));
        // a copy is worth it if there are many others
        if rules.len() * 2 > self.rules.len() || rules.len() > MAX_COPIES {
            return Ok(CallerRules { entities, set: Arc::clone(&self.set), attributes, copies: 0 });
        }
        let copies = rules.len();
        let rule = |id| self.set.policy(id).cloned().ok_or("a rule is missing");
        let rules = rules.into_iter().map(|(id, _)| rule(id)).collect::<Result<Vec<_>, _>>()?;
        Ok(CallerRules { entities, set: Arc::new(PolicySet::from_policies(rules)?), attributes, copies })
    }
}

/// The attributes of the context that any of these rules may look at; `None`: all.
pub(super) fn attributes<'a>(rules: impl Iterator<Item = &'a Rule>) -> Option<BTreeSet<String>> {
    let each: Option<Vec<_>> = rules.map(|rule| rule.attributes.as_ref()).collect();
    each.map(|each| each.into_iter().flatten().cloned().collect())
}

impl CallerRulesCache {
    /// What `make` made for this key, now or before.
    ///
    /// # Errors
    /// Those of `make`, which is asked again then.
    fn get<E>(&self, key: Key, make: impl FnOnce() -> Result<CallerRules, E>) -> Result<Arc<CallerRules>, E> {
        if let Some(known) = self.cached().all.get(&key) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(make()?);
        let mut cached = self.cached();
        let is_full = cached.all.len() >= MAX_ENTRIES || cached.copies + made.copies > MAX_COPIES;
        let dropped = if is_full { std::mem::take(&mut *cached) } else { Cached::default() };
        cached.copies += made.copies;
        // made by two calls at once
        if let Some(other) = cached.all.insert(key, Arc::clone(&made)) {
            cached.copies -= other.copies;
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
        let (set, entities) = (Arc::new(PolicySet::new()), Arc::new(Entities::empty()));
        let rules =
            |copies| CallerRules { entities: Arc::clone(&entities), set: Arc::clone(&set), attributes: None, copies };
        let key = |identity: &str, name| (identity.to_owned(), Vec::new(), Action { name, group: None });
        let get = |identity: &str, name, copies| {
            let mut is_made = false;
            let make = || {
                is_made = true;
                Ok::<_, Infallible>(rules(copies))
            };
            cache.get(key(identity, name), make).unwrap();
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
            let cached = cache.cached();
            assert_eq!(cached.copies, cached.all.values().map(|rules| rules.copies).sum::<usize>());
            assert!(cached.copies <= MAX_COPIES);
        }
        assert!(cache.get(key("c", "Execute"), || Err("no")).is_err());
        assert!(get("c", "Execute", 0));
    }
}
