//! The environment variables that a rule lets a caller set; all others are denied.

use glob::Pattern;

/// See [`is_harmless`].
const HARMLESS: [&str; 10] =
    ["LANG", "LC_*", "TERM", "TZ", "COLUMNS", "LINES", "NO_COLOR", "GIT_PROTOCOL", "TRACEPARENT", "TRACESTATE"];

/// The variables of a rule's `@environment`, and the harmless ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variables(Vec<Pattern>);

impl Variables {
    /// Parses names and patterns, separated by blanks or commas.
    ///
    /// # Errors
    /// A malformed pattern.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let names = text.split([' ', ',', '\t', '\n']).filter(|name| !name.is_empty());
        let patterns = names.map(|name| Pattern::new(name).map_err(|error| format!("{name}: {error}")));
        match patterns.collect::<Result<Vec<_>, _>>()? {
            patterns if patterns.is_empty() => {
                Err("expected names, such as \"APP_ENV DEPLOY_*\", or * for any".to_owned())
            }
            patterns => Ok(Self(patterns)),
        }
    }

    /// The annotation.
    pub(super) fn annotation(&self) -> String {
        let names = self.0.iter().map(Pattern::as_str).collect::<Vec<_>>().join(" ");
        if names.is_empty() { "@environment".to_owned() } else { format!("@environment({names:?})") }
    }

    /// Whether it may be set.
    pub(super) fn covers(&self, name: &str) -> bool {
        is_harmless(name) || self.0.iter().any(|pattern| pattern.matches(name))
    }
}

/// Whether no program derives from it what to run, load or write.
pub(super) fn is_harmless(name: &str) -> bool {
    HARMLESS.iter().any(|harmless| match harmless.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == *harmless,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_covered_and_nothing_else() {
        let named = Variables::parse("APP_ENV, DEPLOY_*").unwrap();
        for (name, none, some) in [
            ("LANG", true, true),
            ("LC_ALL", true, true),
            ("TZ", true, true),
            ("GIT_PROTOCOL", true, true),
            ("LANGUAGE", false, false),
            ("APP_ENV", false, true),
            ("app_env", false, false),
            ("DEPLOY_TO", false, true),
            ("MY_DEPLOY_TO", false, false),
            ("LD_PRELOAD", false, false),
            ("", false, false),
        ] {
            assert_eq!((Variables::default().covers(name), named.covers(name)), (none, some), "{name}");
        }
        assert!(Variables::parse("*").unwrap().covers("LD_PRELOAD"));
        assert!(Variables::parse(" ,").is_err() && Variables::parse("A ***").is_err());
    }
}
