//! Sets of hosts: `web[01-32,40],@db`. Ranges are zero-padded like their first number.

use std::collections::HashSet;

/// Limits mistakes such as `web[1-999999999]`.
pub const MAX_HOSTS: usize = 100_000;

/// Groups are expanded recursively.
const MAX_NESTED: usize = 200;

/// Groups of hosts by name.
pub trait Groups {
    /// The members of a group, each a set of hosts; `None` if there is no such group.
    fn group(&self, name: &str) -> Option<Vec<String>>;
}

/// The text is not a valid set of hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidHostSet(String);

/// Expands a set to its hosts, without duplicates, in the order of the text.
///
/// # Errors
/// Invalid syntax, an unknown group, or too many hosts.
pub fn expand(text: &str, groups: &dyn Groups) -> Result<Vec<String>, InvalidHostSet> {
    let mut hosts = Hosts::default();
    expand_into(text, groups, &mut Vec::new(), &mut hosts)?;
    Ok(hosts.list)
}

#[derive(Default)]
struct Hosts {
    list: Vec<String>,
    seen: HashSet<String>,
    /// Groups whose hosts are all in the list.
    groups: HashSet<String>,
}

fn expand_into(
    text: &str,
    groups: &dyn Groups,
    enclosing: &mut Vec<String>,
    hosts: &mut Hosts,
) -> Result<(), InvalidHostSet> {
    for element in elements(text)? {
        let Some(name) = element.strip_prefix('@') else {
            for host in Pattern::parse(element)?.hosts()? {
                if hosts.seen.insert(host.clone()) {
                    hosts.list.push(host);
                }
            }
            if hosts.list.len() > MAX_HOSTS {
                return Err(too_many(text));
            }
            continue;
        };
        if hosts.groups.contains(name) {
            continue;
        }
        if enclosing.iter().any(|outer| outer == name) {
            return Err(InvalidHostSet(format!("group {name} contains itself")));
        }
        if enclosing.len() == MAX_NESTED {
            return Err(InvalidHostSet(format!("group {name} is in more than {MAX_NESTED} others, one in another")));
        }
        let nodes = groups.group(name).ok_or_else(|| InvalidHostSet(format!("no group {name:?}")))?;
        enclosing.push(name.to_owned());
        for nodes in nodes {
            expand_into(&nodes, groups, enclosing, hosts)?;
        }
        enclosing.pop();
        hosts.groups.insert(name.to_owned());
    }
    Ok(())
}

/// Splits at commas and whitespace outside brackets.
///
/// # Errors
/// A bracket is not closed.
pub fn elements(text: &str) -> Result<Vec<&str>, InvalidHostSet> {
    let mut depth = 0_u32;
    for c in text.chars() {
        depth = match (c, depth) {
            ('[', 0) => 1,
            (']', 1) => 0,
            ('[' | ']', _) => return Err(InvalidHostSet(format!("{text:?}: mismatched brackets"))),
            (_, depth) => depth,
        };
    }
    if depth > 0 {
        return Err(InvalidHostSet(format!("{text:?}: unclosed bracket")));
    }
    let mut inside = false;
    let parts = text.split(|c: char| {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        !inside && (c == ',' || c.is_whitespace())
    });
    Ok(parts.filter(|part| !part.is_empty()).collect())
}

/// A name with any number of ranges.
struct Pattern<'a> {
    text: &'a str,
    pieces: Vec<Piece<'a>>,
}

enum Piece<'a> {
    Text(&'a str),
    Ranges(Vec<Range>),
}

/// Numbers from `first` to `last`, zero-padded to `width`.
struct Range {
    first: u64,
    last: u64,
    step: u64,
    width: usize,
}

impl<'a> Pattern<'a> {
    fn parse(text: &'a str) -> Result<Self, InvalidHostSet> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('[') {
            let Some((ranges, after)) = after.split_once(']') else { break };
            if ranges.contains(':') {
                // an IPv6 address
                let (piece, after) = rest.split_at(before.len() + ranges.len() + 2);
                pieces.push(Piece::Text(piece));
                rest = after;
                continue;
            }
            pieces.push(Piece::Text(before));
            let ranges = ranges.split(',').map(|range| {
                Range::parse(range.trim()).map_err(|reason| InvalidHostSet(format!("{text:?}: {reason}")))
            });
            pieces.push(Piece::Ranges(ranges.collect::<Result<_, _>>()?));
            rest = after;
        }
        pieces.push(Piece::Text(rest));
        Ok(Self { text, pieces })
    }

    fn hosts(&self) -> Result<Vec<String>, InvalidHostSet> {
        let numbers = self.pieces.iter().map(|piece| match piece {
            Piece::Text(_) => 1,
            Piece::Ranges(ranges) => ranges.iter().map(Range::len).fold(0, u64::saturating_add),
        });
        if numbers.fold(1, u64::saturating_mul) > MAX_HOSTS as u64 {
            return Err(too_many(self.text));
        }
        let mut hosts = vec![String::new()];
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => hosts.iter_mut().for_each(|host| host.push_str(text)),
                Piece::Ranges(ranges) => {
                    let numbers: Vec<String> = ranges.iter().flat_map(Range::numbers).collect();
                    let with_each = |host: &String| numbers.iter().map(|n| format!("{host}{n}")).collect::<Vec<_>>();
                    hosts = hosts.iter().flat_map(with_each).collect();
                }
            }
        }
        Ok(hosts)
    }
}

/// As many as the largest number has.
const MAX_DIGITS: usize = 20;

impl Range {
    fn parse(text: &str) -> Result<Self, String> {
        let (bounds, step) = match text.split_once('/') {
            Some((bounds, step)) => (bounds, number(step)?),
            None => (text, 1),
        };
        let (first, last) = bounds.split_once('-').unwrap_or((bounds, bounds));
        let width = if first.len() > 1 && first.starts_with('0') { first.len() } else { 0 };
        if width > MAX_DIGITS {
            return Err(format!("a number in a range has more than {MAX_DIGITS} digits"));
        }
        let range = Self { first: number(first)?, last: number(last)?, step, width };
        if step == 0 {
            return Err(format!("the step in [{text}] is 0"));
        }
        if range.first > range.last {
            return Err(format!("[{text}] is reversed: use [{last}-{first}]"));
        }
        Ok(range)
    }

    fn len(&self) -> u64 {
        ((self.last - self.first) / self.step).saturating_add(1)
    }

    fn numbers(&self) -> impl Iterator<Item = String> {
        let each = |n: u64| format!("{:0width$}", self.first + n * self.step, width = self.width);
        (0..self.len()).map(each)
    }
}

fn number(text: &str) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.ok_or_else(|| format!("{text:?} is not a number: expected ranges such as [1-9,20]"))
}

fn too_many(text: &str) -> InvalidHostSet {
    InvalidHostSet(format!("{text:?} is more than {MAX_HOSTS} hosts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Some3;

    impl Groups for Some3 {
        fn group(&self, name: &str) -> Option<Vec<String>> {
            match name {
                "db" => Some(vec!["db[1-2]".to_owned(), "@more".to_owned()]),
                "more" => Some(vec!["x".to_owned(), "db1".to_owned()]),
                "self" => Some(vec!["@self".to_owned()]),
                "none" => Some(Vec::new()),
                _ => None,
            }
        }
    }

    #[test]
    fn sets_read_as_clustershell_reads_them() {
        for (text, hosts) in [
            ("", ""),
            (" , ,", ""),
            ("web1", "web1"),
            ("web1,web1 web1", "web1"),
            ("web[1-3]", "web1 web2 web3"),
            ("web[08-11]", "web08 web09 web10 web11"),
            ("web[099-101,7]", "web099 web100 web101 web7"),
            ("web[0-1]", "web0 web1"),
            ("web[00-01]", "web00 web01"),
            ("web[1-9/4]", "web1 web5 web9"),
            ("r[1-2]n[01,3]-x", "r1n01-x r1n3-x r2n01-x r2n3-x"),
            ("10.0.0.[1-2]:7443", "10.0.0.1:7443 10.0.0.2:7443"),
            ("[::1]:7443,[fe80::1]:[1-2]", "[::1]:7443 [fe80::1]:1 [fe80::1]:2"),
            ("unix:///run/a[1-2].sock", "unix:///run/a1.sock unix:///run/a2.sock"),
            ("@db,y", "db1 db2 x y"),
            ("@none", ""),
        ] {
            let hosts: Vec<&str> = hosts.split_whitespace().collect();
            assert_eq!(expand(text, &Some3).unwrap(), hosts, "{text}");
        }
    }

    /// Each `gN` contains two groups, which both contain the next one.
    struct Diamonds(usize);

    impl Groups for Diamonds {
        fn group(&self, name: &str) -> Option<Vec<String>> {
            let number: usize = name.get(1..)?.parse().ok()?;
            match name.starts_with('g') {
                true if number == self.0 => Some(vec!["host".to_owned()]),
                true => Some(vec![format!("@a{number}"), format!("@b{number}")]),
                false => Some(vec![format!("@g{}", number + 1)]),
            }
        }
    }

    #[test]
    fn a_group_is_expanded_once() {
        assert_eq!(expand("@g0", &Diamonds(90)).unwrap(), ["host"]);
        assert!(expand("@g0", &Diamonds(100_000)).unwrap_err().0.contains("more than 200"));
    }

    #[test]
    fn what_is_no_set_says_why() {
        for (text, why) in [
            ("web[9-1]", "is reversed: use [1-9]"),
            ("web[1-999999999]", "more than 100000 hosts"),
            ("a[1-1000]b[1-1000]", "more than 100000 hosts"),
            ("a[0-18446744073709551615]", "more than 100000 hosts"),
            ("a[0-18446744073709551615,1-18446744073709551615]", "more than 100000 hosts"),
            ("a[1-60000],b[1-60000]", "more than 100000 hosts"),
            ("web[1-", "unclosed"),
            ("web[[1]]", "mismatched"),
            ("web]1[", "mismatched"),
            ("web[]", "is not a number"),
            ("web[a-b]", "is not a number"),
            ("web[1-2-3]", "is not a number"),
            ("web[+1]", "is not a number"),
            ("web[1-5/0]", "step"),
            ("web[18446744073709551616]", "is not a number"),
            ("@nope", "no group \"nope\""),
            ("@self", "group self contains itself"),
        ] {
            let error = expand(text, &Some3).unwrap_err();
            assert!(error.0.contains(why), "{text}: {error}");
        }
    }
}
