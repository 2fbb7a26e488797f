//! Hosts as Ansible's inventories write them: `web[01:10].example.org`, `db-[a:f]`, `web1:22`.

use crate::syntax::nodeset::MAX_HOSTS;

/// More than any name of a host with some ranges: a range multiplies the length.
const MAX_PATTERN_BYTES: usize = 512;

/// The hosts of a pattern, without the port of ssh that may follow it.
///
/// # Errors
/// A range is invalid, or there are too many hosts.
pub(super) fn expand(pattern: &str) -> Result<Vec<String>, String> {
    let host = without_port(pattern);
    if host.len() > MAX_PATTERN_BYTES {
        return Err(format!("a host has a name of {} bytes: at most {MAX_PATTERN_BYTES} are possible", host.len()));
    }
    // hosts with this many ranges expanded, and what follows them
    let mut hosts = vec![String::new()];
    let mut rest = host;
    while let Some((before, after)) = rest.split_once('[') {
        let (range, after) = after.split_once(']').ok_or_else(|| format!("{pattern:?}: unclosed bracket"))?;
        let names = values(range).map_err(|reason| format!("{pattern:?}: {reason}"))?;
        if names.len().saturating_mul(hosts.len()) > MAX_HOSTS {
            return Err(format!("{pattern:?} is more than {MAX_HOSTS} hosts"));
        }
        hosts = hosts.iter().flat_map(|host| names.iter().map(move |name| format!("{host}{before}{name}"))).collect();
        rest = after;
    }
    match rest.ends_with(':') && !rest.ends_with("::") {
        true => Err(format!("{pattern:?}: a host does not end with a colon")),
        false => Ok(hosts.into_iter().map(|host| host + rest).collect()),
    }
}

/// `[HOST]:PORT`, or `HOST:PORT` with no other colon but those in ranges.
fn without_port(pattern: &str) -> &str {
    let Some((host, port)) = pattern.rsplit_once(':') else { return pattern };
    if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return pattern;
    }
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return inner;
    }
    let mut inside = false;
    let outside = host.chars().filter(|c| {
        inside = (inside || *c == '[') && *c != ']';
        !inside
    });
    if { outside }.any(|c| c == ':') { pattern } else { host }
}

/// `FIRST:LAST` or `FIRST:LAST:STEP`, of numbers or letters.
fn values(range: &str) -> Result<Vec<String>, String> {
    let mut parts = range.split(':');
    let (first, last, step) = match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(first), Some(last), step, None) if !last.is_empty() => {
            (if first.is_empty() { "0" } else { first }, last, step.unwrap_or("1"))
        }
        _ => return Err(format!("[{range}] is not a range: expected [FIRST:LAST] or [FIRST:LAST:STEP]")),
    };
    let step = number(step)?;
    if step == 0 {
        return Err(format!("the step in [{range}] is 0"));
    }
    if let (Some(first), Some(last)) = (letter(first), letter(last)) {
        let letters = (first..=last).step_by(step).filter_map(|index| LETTERS.get(index));
        return Ok(letters.map(|letter| char::from(*letter).to_string()).collect());
    }
    let width = if first.len() > 1 && first.starts_with('0') { first.len() } else { 0 };
    if width > 0 && width != last.len() {
        return Err(format!("the numbers in [{range}] must have the same length"));
    }
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(format!("[{range}] is reversed"));
    }
    if (last - first) / step >= MAX_HOSTS {
        return Err(format!("[{range}] is more than {MAX_HOSTS} hosts"));
    }
    Ok((first..=last).step_by(step).map(|number| format!("{number:0width$}")).collect())
}

const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

fn letter(text: &str) -> Option<usize> {
    let [byte] = text.as_bytes() else { return None };
    LETTERS.iter().position(|letter| letter == byte)
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_hosts() {
        for (pattern, hosts) in [
            ("web1", "web1"),
            ("web1:2222", "web1"),
            ("web[1:3]", "web1 web2 web3"),
            ("web[01:03].example.org:22", "web01.example.org web02.example.org web03.example.org"),
            ("web[08:10]", "web08 web09 web10"),
            ("web[:2]", "web0 web1 web2"),
            ("web[1:9:4]-x", "web1-x web5-x web9-x"),
            ("db-[a:c]", "db-a db-b db-c"),
            ("db-[y:B]", "db-y db-z db-A db-B"),
            ("db-[a:e:2]", "db-a db-c db-e"),
            ("r[1:2]n[a:b]", "r1na r1nb r2na r2nb"),
            ("10.0.0.[1:2]", "10.0.0.1 10.0.0.2"),
            ("fe80::1", "fe80::1"),
            ("[fe80::1]:22", "fe80::1"),
            ("::1", "::1"),
        ] {
            assert_eq!(expand(pattern).unwrap().join(" "), hosts, "{pattern}");
        }
    }

    #[test]
    fn what_is_no_pattern_says_why() {
        for (pattern, why) in [
            ("web[1:", "unclosed"),
            ("web[1-3]", "is not a range"),
            ("web[1:]", "is not a range"),
            ("web[1:2:3:4]", "is not a range"),
            ("web[3:1]", "is reversed"),
            ("web[01:100]", "same length"),
            ("web[a:3]", "is not a number"),
            ("web[1:3:0]", "step"),
            ("web[1:999999999]", "more than 100000"),
            ("web[1:1000][1:1000]", "more than 100000"),
            ("web:", "colon"),
        ] {
            let error = expand(pattern).unwrap_err();
            assert!(error.contains(why), "{pattern}: {error}");
        }
    }
}
