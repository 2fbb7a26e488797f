//! A number of hosts: `10`, or `10%` of them.

use std::str::FromStr;

/// An absolute or relative number of hosts: `10` or `10%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostCount {
    Count(usize),
    Percent(u8),
}

impl HostCount {
    /// The absolute number, rounded down.
    pub(crate) fn of(self, hosts: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => hosts * usize::from(percent) / 100,
        }
    }
}

impl FromStr for HostCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let count = match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().filter(|percent| *percent <= 100).map(Self::Percent),
            None => text.parse().ok().map(Self::Count),
        };
        count.ok_or_else(|| "expected a number of hosts, or a percentage such as 10%".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_counts_are_parsed() {
        for (text, of_30) in [("0", 0), ("7", 7), ("10%", 3), ("5%", 1), ("100%", 30)] {
            assert_eq!(text.parse::<HostCount>().unwrap().of(30), of_30, "{text}");
        }
        for text in ["", "%", "-1", "101%", "1.5%", "x"] {
            assert!(text.parse::<HostCount>().is_err(), "{text}");
        }
    }
}
