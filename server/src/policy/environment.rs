//! The environment variables that a rule lets a caller set; all others are denied.

use glob::Pattern;

/// A test of a value.
type Accepts = fn(&str) -> bool;

/// No program derives from these, with such values, what to run, load or write.
const HARMLESS: [(&str, Accepts); 10] = [
    ("LANG", is_locale),
    ("LC_*", is_locale),
    ("TERM", |value| is_of(value, "+._-")),
    ("TZ", |value| is_of(value, "_+,.:<>/-") && !value.starts_with(['/', ':']) && !value.contains("..")),
    // scripts calculate with these: bash evaluates what they hold
    ("COLUMNS", is_size),
    ("LINES", is_size),
    ("NO_COLOR", |value| is_of(value, "")),
    ("GIT_PROTOCOL", |value| is_of(value, "=:_.-")),
    ("TRACEPARENT", |value| is_of(value, "-")),
    ("TRACESTATE", |value| is_of(value, "=,_*/@.:+-")),
];
/// A longer value is not harmless.
const MAX_VALUE_BYTES: usize = 512;

fn is_of(value: &str, more: &str) -> bool {
    value.len() <= MAX_VALUE_BYTES && value.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
}

fn is_locale(value: &str) -> bool {
    is_of(value, "_.@-")
}

fn is_size(value: &str) -> bool {
    value.len() <= 5 && value.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a variable is harmless with this value, or with one that is not known.
pub(crate) fn is_harmless(name: &str, value: Option<&str>) -> bool {
    let is = |(pattern, accepts): &(&str, Accepts)| {
        let matches = pattern.strip_suffix('*').map_or(name == *pattern, |prefix| name.starts_with(prefix));
        matches && value.map_or(!matches!(name, "COLUMNS" | "LINES"), accepts)
    };
    HARMLESS.iter().any(is)
}

/// The variables of a rule's `@environment`.
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

    /// Whether it may be set to anything.
    pub(super) fn covers(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_covered_and_nothing_else() {
        let named = Variables::parse("APP_ENV, DEPLOY_*").unwrap();
        for (name, covered) in [
            ("APP_ENV", true),
            ("app_env", false),
            ("DEPLOY_TO", true),
            ("MY_DEPLOY_TO", false),
            ("LD_PRELOAD", false),
            ("LANG", false),
            ("", false),
        ] {
            assert_eq!(named.covers(name), covered, "{name}");
        }
        assert!(Variables::parse("*").unwrap().covers("LD_PRELOAD"));
        assert!(Variables::parse(" ,").is_err() && Variables::parse("A ***").is_err());
    }

    #[test]
    fn harmless_variables_have_harmless_values() {
        for (name, value) in [
            ("LANG", "C.UTF-8"),
            ("LC_ALL", "de_DE@euro"),
            ("TERM", "xterm-256color"),
            ("TZ", "America/New_York"),
            ("TZ", "EST5EDT,M3.2.0,M11.1.0"),
            ("COLUMNS", "80"),
            ("LINES", ""),
            ("NO_COLOR", "1"),
            ("GIT_PROTOCOL", "version=2"),
            ("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("TRACESTATE", "vendor=a1,b@c=d"),
        ] {
            assert!(is_harmless(name, Some(value)), "{name}={value}");
        }
        for (name, value) in [
            ("COLUMNS", "a[$(id)]"),
            ("COLUMNS", "100000"),
            ("LINES", "-1"),
            ("TERM", "../../tmp/x"),
            ("LANG", "../x"),
            ("TZ", "/etc/shadow"),
            ("TZ", ":x"),
            ("TZ", "a/../../b"),
            ("NO_COLOR", "$(id)"),
            ("TRACESTATE", "a[$(id)]"),
            ("LC_ALL", "a b"),
            ("LANGUAGE", "de"),
            ("LD_PRELOAD", ""),
            ("", ""),
        ] {
            assert!(!is_harmless(name, Some(value)), "{name}={value}");
        }
        assert!(is_harmless("LANG", None) && !is_harmless("COLUMNS", None) && !is_harmless("HOME", None));
    }
}
