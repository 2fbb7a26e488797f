//! Folds hosts into ranges: `web[01-32,40]`. The inverse of [`nodeset::expand`](super::nodeset::expand).

use std::collections::{BTreeMap, BTreeSet};

/// The parts of a name between its numbers.
type Template = Vec<String>;
/// For each number position in the template: the numbers at it with their width (0 if unpadded).
type Axes = Vec<BTreeSet<(usize, u64)>>;

/// The folded hosts, sorted by name and number.
pub(crate) fn fold<'a>(hosts: impl IntoIterator<Item = &'a str>) -> String {
    let mut by_template: BTreeMap<Template, BTreeSet<Vec<String>>> = BTreeMap::new();
    for host in hosts {
        let (template, numbers) = split(host).unwrap_or_else(|| (vec![host.to_owned()], Vec::new()));
        by_template.entry(template).or_default().insert(numbers);
    }
    let folded = by_template.iter().flat_map(|(template, numbers)| fold_numbers(template, numbers));
    folded.collect::<Vec<_>>().join(",")
}

/// Splits a name into template and numbers; `None` if it has no numbers, or could not be expanded again.
fn split(host: &str) -> Option<(Template, Vec<String>)> {
    if host.contains(['[', ']', ',', '@']) || host.contains(char::is_whitespace) {
        return None;
    }
    let (mut template, mut numbers) = (vec![String::new()], Vec::new());
    let mut rest = host;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (text, from) = rest.split_at(start);
        let (number, after) = from.split_at(from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len()));
        template.last_mut()?.push_str(text);
        // numbers that overflow are treated as text
        if number.parse::<u64>().is_ok() {
            numbers.push(number.to_owned());
            template.push(String::new());
        } else {
            template.last_mut()?.push_str(number);
        }
        rest = after;
    }
    template.last_mut()?.push_str(rest);
    (!numbers.is_empty()).then_some((template, numbers))
}

fn fold_numbers(template: &[String], hosts: &BTreeSet<Vec<String>>) -> Vec<String> {
    let padded = padded_widths(hosts);
    let mut boxes: BTreeSet<Axes> = hosts.iter().map(|numbers| axes(numbers, &padded)).collect();
    let positions = template.len() - 1;
    // the last number varies most often
    for position in (0..positions).rev() {
        boxes = merge(boxes, position);
    }
    boxes.iter().map(|axes| show(template, axes)).collect()
}

/// For each position: the widths of numbers with leading zeros; all numbers of such a width count as padded.
fn padded_widths(hosts: &BTreeSet<Vec<String>>) -> BTreeSet<(usize, usize)> {
    let numbers = hosts.iter().flat_map(|numbers| numbers.iter().enumerate());
    let padded = numbers.filter(|(_, number)| number.len() > 1 && number.starts_with('0'));
    padded.map(|(position, number)| (position, number.len())).collect()
}

fn axes(numbers: &[String], padded: &BTreeSet<(usize, usize)>) -> Axes {
    let axis = |(position, number): (usize, &String)| {
        let width = if padded.contains(&(position, number.len())) { number.len() } else { 0 };
        BTreeSet::from([(width, number.parse().unwrap_or(0))])
    };
    numbers.iter().enumerate().map(axis).collect()
}

/// Merges entries that differ only at this position.
fn merge(boxes: BTreeSet<Axes>, position: usize) -> BTreeSet<Axes> {
    let mut joined: BTreeMap<Axes, BTreeSet<(usize, u64)>> = BTreeMap::new();
    for mut axes in boxes {
        let axis = axes.get_mut(position).map(std::mem::take).unwrap_or_default();
        joined.entry(axes).or_default().extend(axis);
    }
    let whole = |(mut axes, axis): (Axes, BTreeSet<_>)| {
        if let Some(position) = axes.get_mut(position) {
            *position = axis;
        }
        axes
    };
    joined.into_iter().map(whole).collect()
}

fn show(template: &[String], axes: &Axes) -> String {
    let mut text = String::new();
    for (position, piece) in template.iter().enumerate() {
        text.push_str(piece);
        match axes.get(position) {
            Some(axis) if axis.len() == 1 => axis.iter().for_each(|&number| text.push_str(&digits(number))),
            Some(axis) => text.push_str(&format!("[{}]", ranges(axis))),
            None => {}
        }
    }
    text
}

/// `01-32,40`
fn ranges(axis: &BTreeSet<(usize, u64)>) -> String {
    let mut runs: Vec<((usize, u64), (usize, u64))> = Vec::new();
    for &(width, number) in axis {
        match runs.last_mut() {
            Some((_, last)) if last.0 == width && last.1.checked_add(1) == Some(number) => last.1 = number,
            _ => runs.push(((width, number), (width, number))),
        }
    }
    let run = |&(first, last)| match first == last {
        true => digits(first),
        false => format!("{}-{}", digits(first), digits(last)),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

fn digits((width, number): (usize, u64)) -> String {
    format!("{number:0width$}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::syntax::nodeset::{Groups, expand};

    struct None_;

    impl Groups for None_ {
        fn group(&self, _: &str) -> Option<Vec<String>> {
            None
        }
    }

    #[test]
    fn hosts_fold_as_people_would_write_them() {
        for (hosts, folded) in [
            ("", ""),
            ("a", "a"),
            ("web1", "web1"),
            ("web2 web1 web3", "web[1-3]"),
            ("web01 web02 web10 web40", "web[01-02,10,40]"),
            ("web1 web01", "web[1,01]"),
            ("web08 web09 web10 web11", "web[08-11]"),
            ("web99 web098 web100 web101", "web[99,098,100-101]"),
            ("web9 web10 db1 x", "db1,web[9-10],x"),
            ("r1n1 r1n2 r2n1 r2n2", "r[1-2]n[1-2]"),
            ("r1n1 r1n2 r2n1", "r1n[1-2],r2n1"),
            ("127.0.0.1:40001 127.0.0.1:40002", "127.0.0.1:[40001-40002]"),
            ("[::1]:1 [::1]:2", "[::1]:1,[::1]:2"),
            ("a99999999999999999999 a1", "a1,a99999999999999999999"),
        ] {
            assert_eq!(fold(hosts.split_whitespace()), folded);
        }
    }

    proptest! {
        #[test]
        fn what_is_folded_reads_back(hosts in prop::collection::btree_set("[ab]?[0-9]{1,3}(-[01]{0,2}|x)?", 0..60)) {
            let folded = fold(hosts.iter().map(String::as_str));
            let read: BTreeSet<String> = expand(&folded, &None_).unwrap().into_iter().collect();
            prop_assert_eq!(read, hosts, "{}", folded);
        }

        #[test]
        fn any_names_read_back(hosts in prop::collection::btree_set("[a-z0-9.:/_-]{1,20}", 0..20)) {
            let folded = fold(hosts.iter().map(String::as_str));
            let read: BTreeSet<String> = expand(&folded, &None_).unwrap().into_iter().collect();
            prop_assert_eq!(read, hosts, "{}", folded);
        }
    }
}
