//! Platform properties: what a bot announces, and what an action may ask for.

use bazel_remote_apis::build::bazel::remote::execution::v2 as reapi;
use telexec_client::AgentInfo;
use telexec_executor::{ResourceLimits, parse_size};

use crate::args::Args;
use crate::failure::Failure;

/// What actions may ask for on a target.
pub(crate) struct Platform {
    /// Those that the server matches with the action's: a key may have several values.
    announced: Vec<(String, String)>,
    user: Option<String>,
    allowed_users: Vec<String>,
}

/// How an action runs.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Terms {
    pub(crate) user: Option<String>,
    pub(crate) limits: ResourceLimits,
}

impl Platform {
    pub(crate) fn new(args: &Args, info: &AgentInfo) -> Self {
        let mut announced = vec![("OSFamily".to_owned(), info.os.to_lowercase())];
        let isa = match info.architecture.as_str() {
            "x86_64" => "x86-64",
            "aarch64" => "arm-a64",
            other => other,
        };
        announced.push(("ISA".to_owned(), isa.to_owned()));
        announced.extend(args.properties.iter().cloned());
        Self { announced, user: args.user.clone(), allowed_users: args.allowed_users.clone() }
    }

    pub(crate) fn announced(&self) -> &[(String, String)] {
        &self.announced
    }

    /// Those of the action, or of its command where they are still there.
    ///
    /// # Errors
    /// A property is not known here, or has a value that this target does not have.
    pub(crate) fn terms(&self, action: &reapi::Action, command: &reapi::Command) -> Result<Terms, Failure> {
        #[allow(deprecated, reason = "where clients of version 2.1 and before have it")]
        let older = command.platform.as_ref();
        let mut terms = Terms { user: self.user.clone(), limits: ResourceLimits::default() };
        for property in action.platform.as_ref().or(older).map(|p| p.properties.as_slice()).unwrap_or_default() {
            self.apply(&property.name, &property.value, &mut terms)?;
        }
        Ok(terms)
    }

    fn apply(&self, name: &str, value: &str, terms: &mut Terms) -> Result<(), Failure> {
        let wrong = |reason: &str| Failure::Unsatisfied(format!("the platform property {name}={value:?} {reason}"));
        match name {
            "user" if self.allowed_users.iter().any(|user| user == value) => terms.user = Some(value.to_owned()),
            "user" => return Err(wrong("names a user that this worker does not allow (--allow-user)")),
            "memory" => {
                terms.limits.memory_bytes =
                    Some(parse_size(value).map_err(|error| wrong(&format!("is wrong: {error}")))?)
            }
            "cpus" => {
                let cpus = value.parse().ok().filter(|cpus| (0.01..=10_000.0).contains(cpus));
                terms.limits.cpus = Some(cpus.ok_or_else(|| wrong("is no number from 0.01 to 10000"))?);
            }
            "pids" => {
                let most = value.parse().ok().filter(|most| *most > 0);
                terms.limits.max_processes = Some(most.ok_or_else(|| wrong("is no number above 0"))?);
            }
            _ if self.announced.iter().any(|(key, of)| key == name && of == value) => {}
            _ if self.announced.iter().any(|(key, _)| key == name) => {
                return Err(wrong("is not what this target has"));
            }
            _ => return Err(wrong("is not known to this worker (--property)")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform() -> Platform {
        let announced = [("OSFamily", "linux"), ("pool", "a"), ("pool", "b")];
        let announced = announced.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        Platform { announced, user: Some("build".to_owned()), allowed_users: vec!["test".to_owned()] }
    }

    fn terms(properties: &[(&str, &str)]) -> Result<Terms, Failure> {
        let property =
            |&(name, value): &(&str, &str)| reapi::platform::Property { name: name.into(), value: value.into() };
        let platform_of = reapi::Platform { properties: properties.iter().map(property).collect() };
        let action = reapi::Action { platform: Some(platform_of), ..Default::default() };
        platform().terms(&action, &reapi::Command::default())
    }

    #[test]
    fn properties_say_how_an_action_runs() {
        let terms = terms(&[
            ("OSFamily", "linux"),
            ("pool", "b"),
            ("user", "test"),
            ("memory", "1GiB"),
            ("cpus", "0.5"),
            ("pids", "9"),
        ]);
        let limits = ResourceLimits { memory_bytes: Some(1 << 30), max_processes: Some(9), cpus: Some(0.5) };
        assert_eq!(terms.unwrap(), Terms { user: Some("test".to_owned()), limits });
        assert_eq!(super::tests::terms(&[]).unwrap().user.as_deref(), Some("build"));
    }

    #[test]
    fn what_is_not_known_is_named() {
        for (name, value) in [
            ("container-image", "docker://x"),
            ("pool", "c"),
            ("user", "root"),
            ("memory", "much"),
            ("cpus", "0"),
            ("cpus", "nan"),
            ("pids", "-1"),
        ] {
            let failure = terms(&[(name, value)]).unwrap_err();
            assert!(matches!(&failure, Failure::Unsatisfied(text) if text.contains(name)), "{failure}");
        }
    }
}
