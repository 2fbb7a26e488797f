//! Roles: names for sets of identities, from the agent's configuration.

use std::collections::BTreeMap;

use crate::identity::patterns::NamePatterns;
use crate::invalid::InvalidSetting;

/// Roles with the identities that have them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roles(Vec<(String, NamePatterns)>);

impl Roles {
    /// From the patterns of each role's identities.
    ///
    /// # Errors
    /// A pattern is malformed.
    pub(crate) fn new(configured: &BTreeMap<String, Vec<String>>) -> Result<Self, InvalidSetting> {
        let role = |(role, patterns): (&String, &Vec<String>)| {
            Ok((role.clone(), NamePatterns::new(&format!("roles.{role}"), patterns)?))
        };
        configured.iter().map(role).collect::<Result<_, _>>().map(Self)
    }

    /// With roles of these names, which tokens give to their callers.
    pub(crate) fn with_names<'a>(mut self, names: impl Iterator<Item = &'a String>) -> Self {
        for name in names {
            if !self.contains(name) {
                self.0.push((name.clone(), NamePatterns::default()));
            }
        }
        self
    }

    /// The roles of an identity.
    pub(crate) fn of<'a>(&'a self, identity: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(_, names)| names.contain(identity)).map(|(role, _)| role.as_str())
    }

    /// All of them, by their names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(role, _)| role.as_str())
    }

    pub(crate) fn contains(&self, role: &str) -> bool {
        self.0.iter().any(|(known, _)| known == role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(patterns: &[&str]) -> Result<Roles, InvalidSetting> {
        Roles::new(&[("r".to_owned(), patterns.iter().map(|pattern| (*pattern).to_owned()).collect())].into())
    }

    #[test]
    fn identities_have_the_roles_of_their_names() {
        let has = |pattern: &str, identity: &str| roles(&[pattern]).unwrap().of(identity).next() == Some("r");
        assert!(has("spiffe://example.org/ops/*", "spiffe://example.org/ops/anna"));
        assert!(has("spiffe://example.org/**", "spiffe://example.org/ops/anna"));
        assert!(has("*.ci.example.org", "build-7.ci.example.org"));
        assert!(has("unix:uid=0", "unix:uid=0"));
        assert!(has("[ab]nna", "anna"));
        for (pattern, identity) in [
            ("spiffe://example.org/ops/*", "spiffe://example.org/ops/anna/x"),
            ("spiffe://example.org/ops/*", "spiffe://example.org/opsanna"),
            ("spiffe://*/ops/anna", "spiffe://a/b/ops/anna"),
            ("unix:uid=0", "unix:uid=00"),
            ("anna", "Anna"),
            ("anna", "anna.example.org"),
            ("", "anna"),
        ] {
            assert!(!has(pattern, identity), "{pattern} {identity}");
        }
        assert!(roles(&["a", "b"]).unwrap().of("b").eq(["r"]));
        assert!(roles(&[]).unwrap().of("b").next().is_none());
    }

    #[test]
    fn malformed_patterns_are_named() {
        for nobody in ["unix:uid=root", "unix:uid=", "unix:uid=00", "unix:uid=0 ", "unix:uid=4294967296", "unix:gid=0"]
        {
            assert!(roles(&[nobody]).unwrap_err().to_string().contains("local users are unix:uid=N"), "{nobody}");
        }
        for valid in ["unix:uid=4294967294", "unix:uid=*", "unix:*", "unix:uid=100[0-9]", "unixes"] {
            roles(&[valid]).unwrap();
        }
        let error = roles(&["a", "spiffe://x/**y"]).unwrap_err().to_string();
        assert!(error.starts_with("roles.r: \"spiffe://x/**y\": "), "{error}");
    }
}
