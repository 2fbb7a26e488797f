//! Manual pages, generated from the definitions of the command lines and from the commented example configurations.

use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;
use roff::{Roff, roman};

use crate::args::help;
use crate::output::{self, Failure, exit};

const MANUAL: &str = "telexec";
const SOURCE: &str = concat!("telexec ", env!("CARGO_PKG_VERSION"));

/// A page and its file name.
struct Page {
    file: String,
    section: &'static str,
    text: Vec<u8>,
}

/// Prints `telexec(1)`, or writes all pages below `directory`.
pub(crate) fn run(directory: Option<&Path>) -> Result<(), Failure> {
    let Some(directory) = directory else {
        let text = command_page(&built(help::complete()), "1").map_err(|error| Failure::new(exit::LOST, &error))?;
        return output::print(&text);
    };
    let pages = pages().map_err(|error| Failure::new(exit::LOST, &error))?;
    for page in pages {
        let directory = directory.join(format!("man{}", page.section));
        let path = directory.join(page.file);
        let written = std::fs::create_dir_all(&directory).and_then(|()| std::fs::write(&path, page.text));
        written.map_err(|error| {
            Failure::new(exit::LOST, &error).context(format_args!("cannot write {}", path.display()))
        })?;
    }
    Ok(())
}

fn pages() -> io::Result<Vec<Page>> {
    let mut pages = Vec::new();
    command_pages(&built(help::complete()), "1", &mut pages)?;
    #[cfg(target_os = "linux")]
    command_pages(&built(telexec_server::args::Args::command().name("telexecd")), "8", &mut pages)?;
    for (name, about, example) in [
        ("telexec.toml", "configuration of telexec(1)", include_str!("../../../deploy/telexec.toml")),
        ("telexecd.toml", "configuration of telexecd(8)", include_str!("../../../deploy/telexecd.toml")),
    ] {
        pages.push(Page { file: format!("{name}.5"), section: "5", text: file_page(name, about, example)? });
    }
    Ok(pages)
}

/// Sets the full names of subcommands.
fn built(command: clap::Command) -> clap::Command {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    command
}

/// The page of a command and those of its subcommands.
fn command_pages(command: &clap::Command, section: &'static str, pages: &mut Vec<Page>) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    pages.push(Page { file: format!("{name}.{section}"), section, text: command_page(command, section)? });
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        command_pages(subcommand, section, pages)?;
    }
    Ok(())
}

fn command_page(command: &clap::Command, section: &str) -> io::Result<Vec<u8>> {
    let after = command.get_after_help().map(ToString::to_string);
    let without = command.clone().after_help("");
    let man = Man::new(without).section(section).source(SOURCE).manual(MANUAL).date("");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(after) = after {
        verbatim_section("NOTES", &after).to_writer(&mut page)?;
    }
    Ok(in_ascii(page))
}

/// Paragraphs as they are; indented lines verbatim, because their line breaks and columns matter.
fn verbatim_section(heading: &str, text: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    let lines: Vec<&str> = text.lines().collect();
    for part in lines.chunk_by(|one, other| one.starts_with(' ') == other.starts_with(' ')) {
        let indented = part.first().is_some_and(|line| line.starts_with(' '));
        if indented {
            roff.control("nf", []);
        }
        for line in part {
            match (indented, line.is_empty()) {
                (_, true) => roff.control("PP", []),
                (true, false) => roff.text([roman(*line)]),
                (false, false) => roff.control("br", []).text([roman(*line)]),
            };
        }
        if indented {
            roff.control("fi", []);
        }
    }
    roff
}

/// Escapes non-ASCII characters, which not every roff reads.
fn in_ascii(page: Vec<u8>) -> Vec<u8> {
    let escaped = |c: char| if c.is_ascii() { c.to_string() } else { format!("\\[u{:04X}]", u32::from(c)) };
    String::from_utf8_lossy(&page).chars().map(escaped).collect::<String>().into_bytes()
}

/// A page from a commented example file: comments become text, keys and values are verbatim, with the sign of those that are
/// commented out.
fn file_page(name: &str, about: &str, example: &str) -> io::Result<Vec<u8>> {
    let mut roff = Roff::new();
    roff.control("TH", [name, "5", "", SOURCE, MANUAL]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {about}"))]);
    roff.control("SH", ["DESCRIPTION"]);
    for paragraph in example.split("\n\n") {
        let lines: Vec<&str> = paragraph.lines().collect();
        for part in lines.chunk_by(|one, other| is_key(one) == is_key(other)) {
            if part.first().is_some_and(|line| is_key(line)) {
                roff.control("PP", []);
                roff.control("RS", ["4"]);
                roff.control("nf", []);
                part.iter().for_each(|line| _ = roff.text([roman(*line)]));
                roff.control("fi", []);
                roff.control("RE", []);
            } else {
                roff.control("PP", []);
                let text: Vec<&str> = part.iter().map(|line| line.trim_start_matches('#').trim()).collect();
                roff.text([roman(text.join(" "))]);
            }
        }
    }
    let mut page = Vec::new();
    roff.to_writer(&mut page)?;
    Ok(in_ascii(page))
}

/// A line with a key or table header, even if commented out.
fn is_key(line: &str) -> bool {
    let line = line.trim_start_matches("# ");
    line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains([' ', '#']))
}
