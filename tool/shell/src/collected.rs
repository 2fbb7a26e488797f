//! What the items of a text come to together.

use std::collections::BTreeSet;

use super::item::{Item, Mark, Reader};
use super::plain::Values;
use super::scan::{self, Depths, Scanned};
use super::variables::ASSIGNED;
use super::walk;
use super::{Analysis, plain};
use super::{MAX_COMMANDS, MAX_TEXT_BYTES, MAX_TEXT_DEPTH};

/// How much is read of a text and those that stand in it, in bytes times what [`rereads`] says.
const MAX_READ: usize = 6 * MAX_TEXT_BYTES;
/// No text with so many pattern groups, such as `@(a|b)`, is read at all.
const MAX_PATTERN_GROUPS: usize = 20;
/// How many words all commands may have together: each wrapper has those of what it runs too.
const MAX_WORDS: usize = 64 * 1024;

const TOO_LONG: &str = "it is too long";

/// What was found so far.
struct Collected {
    analysis: Analysis,
    is_ascii: bool,
    /// How much was read, and how many words all commands have.
    read: usize,
    words: usize,
    values: Values,
    arrays: BTreeSet<String>,
    declared: BTreeSet<String>,
    restored: BTreeSet<String>,
    relied: BTreeSet<String>,
    operands: BTreeSet<String>,
    marks: Marks,
}

#[derive(Default)]
struct Marks {
    home: bool,
    locale: bool,
    shell: bool,
    split: bool,
    trap: bool,
}

/// Goes through the items and what their texts come to. A text is parsed when nothing of another is on the stack.
pub(super) fn collect(items: Vec<Item>) -> Analysis {
    let mut collected = Collected::new();
    let mut waiting: Vec<(usize, Item)> = items.into_iter().rev().map(|item| (0, item)).collect();
    while let Some((depth, item)) = waiting.pop() {
        let ended = match item {
            Item::Text(..) if depth >= MAX_TEXT_DEPTH => Err("it is nested too deeply"),
            Item::Text(reader, text) => collected.text(reader, &text).map(|items| {
                waiting.extend(items.into_iter().rev().map(|item| (depth + 1, item)));
            }),
            item => collected.item(item),
        };
        if let Err(reason) = ended {
            collected.analysis.not_understood(reason);
            break;
        }
    }
    collected.judged()
}

impl Collected {
    fn new() -> Self {
        Self {
            analysis: Analysis { understood: true, ..Analysis::default() },
            is_ascii: true,
            read: 0,
            words: 0,
            values: Values::default(),
            arrays: BTreeSet::new(),
            declared: BTreeSet::new(),
            restored: BTreeSet::new(),
            relied: BTreeSet::new(),
            operands: BTreeSet::new(),
            marks: Marks::default(),
        }
    }

    /// The items of a text; an error: too much is read.
    fn text(&mut self, reader: Reader, text: &str) -> Result<Vec<Item>, &'static str> {
        self.is_ascii &= text.is_ascii();
        let scanned = scan::scan(text);
        self.read += text.len().saturating_mul(rereads(text, scanned.as_ref())).min(2 * MAX_READ);
        if self.read > MAX_READ { Err(walk::COMPLICATED) } else { Ok(walk::items(reader, text, scanned)) }
    }

    /// Adds an item; an error: there are too many.
    fn item(&mut self, item: Item) -> Result<(), &'static str> {
        match item {
            Item::Command(command) => {
                self.words += 1 + command.arguments.len();
                if self.words > MAX_WORDS {
                    return Err(walk::COMPLICATED);
                }
                if self.analysis.commands.len() >= MAX_COMMANDS {
                    return Err(TOO_LONG);
                }
                self.analysis.add(command);
            }
            Item::Redirection(redirection) => {
                if self.analysis.redirections.len() >= MAX_COMMANDS {
                    return Err(TOO_LONG);
                }
                self.analysis.redirections.push(redirection);
            }
            // the caller reads it
            Item::Text(..) => {}
            Item::Unknown(reason) => self.analysis.not_understood(reason),
            Item::Assigned(variable) => {
                self.analysis.assigned.insert(variable.clone());
                self.values.any(variable);
            }
            Item::Number(variable) => self.values.number(variable),
            Item::Plain(variable, of) => self.values.plain(variable, of),
            Item::Separators(variable) => self.values.separators(variable),
            Item::Restored(variable) => drop(self.restored.insert(variable)),
            Item::Relied(variable) => drop(self.relied.insert(variable)),
            Item::Operand(variable) => drop(self.operands.insert(variable)),
            Item::Exported(variable) => drop(self.analysis.exported.insert(variable)),
            Item::Associative(variable) => drop(self.values.associative.insert(variable)),
            Item::Key(variable, array) => self.values.key(variable, array),
            Item::Array(variable) => drop(self.arrays.insert(variable)),
            Item::Declared(variable) => drop(self.declared.insert(variable)),
            Item::Mark(Mark::Home) => self.marks.home = true,
            Item::Mark(Mark::Locale) => self.marks.locale = true,
            Item::Mark(Mark::Positional) => self.values.has_positional = true,
            Item::Mark(Mark::Shell) => self.marks.shell = true,
            Item::Mark(Mark::Split) => self.marks.split = true,
            Item::Mark(Mark::Trap) => self.marks.trap = true,
        }
        Ok(())
    }

    /// What is only known when all was found.
    fn judged(self) -> Analysis {
        let Self { mut analysis, values, marks, .. } = self;
        if marks.locale && !self.is_ascii {
            analysis.not_understood("it sets the locale by which it is read");
        }
        let is_separators = |variable: &String| values.is_separators(variable) && !analysis.exported.contains(variable);
        let are_separators = self.restored.iter().all(is_separators);
        if marks.split && marks.trap || marks.home && marks.shell || !are_separators {
            analysis.not_understood(ASSIGNED);
        }
        let is_number = |variable: &String| values.is_number(variable) && !analysis.exported.contains(variable);
        if !self.arrays.is_disjoint(&self.declared) || !self.operands.iter().all(is_number) {
            analysis.not_understood(walk::EVALUATED);
        }
        match values.plain_with(&self.relied).filter(|all| all.is_disjoint(&analysis.exported)) {
            Some(all) => analysis.evaluated.extend(all),
            None => analysis.not_understood(plain::NOT_PLAIN),
        }
        analysis.evaluated.extend(self.operands);
        analysis.evaluated.extend(self.restored);
        analysis
    }
}

/// How often the parser reads all of a text: again for each substitution around it, of which it takes no more than so
/// many, for those that stand in words of redirections more than once, for expansions that stand in each other, and for
/// each choice among pattern groups, since any of them may not end.
fn rereads(text: &str, scanned: Option<&Scanned>) -> usize {
    if let Some(scanned) = scanned {
        let Depths { substitutions, expansions, groups } = scanned.deepest;
        return cost(substitutions, expansions, groups);
    }
    let count = |openings: &[&str]| openings.iter().map(|opening| text.matches(opening).count()).sum::<usize>();
    cost(count(&["$(", "<(", ">("]), around_others(text), count(&["?(", "*(", "+(", "@(", "!("]))
}

/// The same by how many stand in each other.
fn cost(substitutions: usize, expansions: usize, groups: usize) -> usize {
    let deepest = substitutions.min(walk::MAX_TREE_DEPTH);
    let choices = 1 << groups.min(MAX_PATTERN_GROUPS);
    (1 + deepest + deepest * deepest / 8).saturating_mul(1 + expansions.saturating_pow(3) / 8).saturating_mul(choices)
}

/// The most `${` that can stand around others: those that do not end at the next brace, in any shell.
fn around_others(text: &str) -> usize {
    let ends = |rest: &str| {
        rest.split_once('}').is_some_and(|(inside, _)| {
            let plain = |text: &str| !text.contains(['$', '{', '(', '[', '`', '\\', '\'', '"', '\n']);
            match inside.split_once('[') {
                None => plain(inside),
                Some((before, after)) => plain(before) && plain(after) && after.contains(']'),
            }
        })
    };
    text.split("${").skip(1).filter(|rest| !ends(rest)).count()
}
