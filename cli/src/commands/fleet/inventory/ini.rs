//! Ansible's inventories in INI: `[group]` with hosts and their variables, `[group:vars]` and `[group:children]`.

use std::collections::{BTreeMap, BTreeSet};

use super::ranges;
use super::tree::{Tree, Variables};

/// What the lines of a section are.
#[derive(Clone, Copy)]
enum Section {
    Hosts,
    Variables,
    Children,
}

/// Adds the groups and hosts of the text.
///
/// # Errors
/// What is wrong, and in which line.
pub(super) fn read(text: &str, tree: &mut Tree) -> Result<(), String> {
    let (mut group, mut section) = ("ungrouped", Section::Hosts);
    // groups with a section of their own, and those that must have one, with the line that says so
    let (mut defined, mut required) = (BTreeSet::new(), BTreeMap::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let failed = |error: String| format!("line {number}: {error}");
        if let Some(header) = header(line).map_err(failed)? {
            (group, section) = header;
            match section {
                Section::Hosts | Section::Children => {
                    tree.add_group(group);
                    defined.insert(group);
                }
                Section::Variables if tree.has_group(group) => {}
                Section::Variables => _ = required.entry(group).or_insert(number),
            }
            continue;
        }
        match section {
            Section::Hosts => add_hosts(line, group, tree).map_err(failed)?,
            Section::Variables => tree.set_group_variables(group, &[variable(line).map_err(failed)?].into()),
            Section::Children => {
                let child = line.split('#').next().unwrap_or_default().trim();
                if !tree.has_group(child) {
                    required.entry(child).or_insert(number);
                }
                tree.add_child(group, child);
            }
        }
    }
    match required.iter().find(|(name, _)| !defined.contains(*name)) {
        Some((name, number)) => Err(format!("line {number}: there is no group [{name}]")),
        None => Ok(()),
    }
}

/// The group and the kind of a section that begins here; `None` if the line is no header.
fn header(line: &str) -> Result<Option<(&str, Section)>, String> {
    let inside = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let Some((inside, after)) = inside else { return Ok(None) };
    // a host may begin with a bracket
    if !after.trim_start().is_empty() && !after.trim_start().starts_with('#') {
        return Ok(None);
    }
    let (group, kind) = inside.split_once(':').unwrap_or((inside, "hosts"));
    let section = match kind {
        "hosts" => Section::Hosts,
        "vars" => Section::Variables,
        "children" => Section::Children,
        _ => return Err(format!("[{inside}] is not a section: expected [GROUP], [GROUP:vars] or [GROUP:children]")),
    };
    match group.is_empty() || group.contains(char::is_whitespace) {
        true => Err(format!("{group:?} is not the name of a group")),
        false => Ok(Some((group, section))),
    }
}

/// A host, or a pattern of several, and variables.
fn add_hosts(line: &str, group: &str, tree: &mut Tree) -> Result<(), String> {
    let words = words(line)?;
    let Some((pattern, variables)) = words.split_first() else { return Ok(()) };
    let variables = variables.iter().map(|word| variable(word)).collect::<Result<Variables, _>>()?;
    ranges::expand(pattern)?.iter().try_for_each(|host| tree.add_host(group, host, &variables))
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("expected NAME=VALUE, not {text:?}"))?;
    Ok((name.trim().to_owned(), unquoted(value.trim()).to_owned()))
}

/// The content of a string literal of Python, as which Ansible reads values; other texts as they are.
fn unquoted(text: &str) -> &str {
    for quote in ['\'', '"'] {
        let inner = text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
        if let Some(inner) = inner.filter(|inner| !inner.contains([quote, '\\'])) {
            return inner;
        }
    }
    text
}

/// Splits a line as Python's shlex does: quotes, backslashes, and comments, which may begin within a word.
fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '#' => break,
            c if c.is_whitespace() => words.extend(word.take()),
            quote @ ('\'' | '"') => quoted(quote, &mut chars, word.get_or_insert_default())?,
            '\\' => word.get_or_insert_default().push(chars.next().ok_or("nothing follows the backslash")?),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

fn quoted(quote: char, chars: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), String> {
    while let Some(c) = chars.next() {
        match c {
            c if c == quote => return Ok(()),
            '\\' if quote == '"' => match chars.next() {
                Some(escaped @ ('"' | '\\')) => word.push(escaped),
                Some(other) => word.extend(['\\', other]),
                None => break,
            },
            c => word.push(c),
        }
    }
    Err(format!("the quote {quote} is not closed"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::commands::fleet::inventory::Inventory;

    fn inventory(text: &str) -> Result<Inventory, String> {
        let mut tree = Tree::default();
        read(text, &mut tree)?;
        tree.into_inventory()
    }

    #[test]
    fn sections_are_groups() {
        let inventory = inventory(
            "; first\nalone\n\n[web] # the front\nweb[1:2]:22 ansible_host='10.0.0.1' x=\"a b\" # both\n\
             [prod:children]\nweb # later too\ndb\n[db]\n  db1 telexec_port=17443\n[prod:vars]\ntelexec_server_name = \"prod\"\n",
        )
        .unwrap();
        let group = |name: &str| inventory.groups[name].join(" ");
        assert_eq!(group("all"), "alone web1 web2 db1");
        assert_eq!(
            (group("ungrouped"), group("web"), group("prod")),
            ("alone".into(), "web1 web2".into(), "@web @db".into())
        );
        let web1 = &inventory.hosts["web1"];
        assert_eq!((web1.address.as_deref(), web1.server_name.as_deref()), (Some("10.0.0.1"), Some("prod")));
        assert_eq!((inventory.hosts["db1"].port, inventory.hosts["alone"].server_name.as_deref()), (Some(17443), None));
    }

    #[test]
    fn words_are_split_as_shlex_splits_them() {
        for (line, expected) in [
            ("a b=c", &["a", "b=c"][..]),
            ("a\tb=' c  d'e", &["a", "b= c  de"]),
            (r#"a b="x\"y\z" c=\ d"#, &["a", r#"b=x"y\z"#, "c= d"]),
            ("a b='' # c", &["a", "b="]),
            ("a b=c#d", &["a", "b=c"]),
        ] {
            assert_eq!(words(line).unwrap(), expected, "{line}");
        }
        assert!(words("a 'b").is_err() && words("a \\").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in r#"(\[[ab]{0,2}(:vars|:children)?\]?\n)?([-ab\[\]:=#;'"\\ 01é\n]){0,30}"#) {
            let _ = inventory(&text);
        }
    }

    #[test]
    fn what_is_wrong_is_reported_with_its_line() {
        for (text, why) in [
            ("a\n[web:hosts2]\n", "line 2: [web:hosts2] is not a section"),
            ("[web app]\n", "line 1: \"web app\" is not the name"),
            ("[a:children]\nb\n", "line 2: there is no group [b]"),
            ("[a:vars]\nx=1\n", "line 1: there is no group [a]"),
            ("[a]\nhost x\n", "line 2: expected NAME=VALUE, not \"x\""),
            ("[a]\nhost[1:\n", "line 2: \"host[1:\": unclosed"),
            ("[a]\nh\n[a:vars]\nx\n", "line 4: expected NAME=VALUE"),
            ("a x='\n", "line 1: the quote ' is not closed"),
        ] {
            let error = inventory(text).unwrap_err();
            assert!(error.starts_with(why), "{text}: {error}");
        }
        assert!(inventory("[all:vars]\nx=1\n[a]\n[a:vars]\ny=2\n").is_ok());
    }
}
