//! What a command would run: analysed once for each start, for the policy and for the audit log.

use std::sync::{Arc, OnceLock};

use telexec_executor::{Command, Program};
use telexec_shell::{
    ASSIGNED, Analysis, analyze, analyze_argv, analyze_posix, decides, decides_reading, is_plain, is_plain_argv,
};

/// The analysis of one command, made when it is first asked for.
#[derive(Debug)]
pub(crate) struct CommandAnalysis {
    shell: Option<String>,
    made: OnceLock<Analysis>,
}

impl CommandAnalysis {
    /// For a command that `shell` would run; `None`: it is a program without a shell. Nothing is analysed yet.
    pub(crate) fn new(shell: Option<&str>) -> Arc<Self> {
        Arc::new(Self { shell: shell.map(str::to_owned), made: OnceLock::new() })
    }

    /// The same, not made yet.
    pub(crate) fn anew(&self) -> Arc<Self> {
        Self::new(self.shell.as_deref())
    }

    /// The analysis of `command`, the one that this is for. The first time it is slow for long texts.
    pub(crate) fn of(&self, command: &Command) -> &Analysis {
        self.made.get_or_init(|| analyze_command(command, self.shell.as_deref()))
    }
}

/// Whether the analysis of a command takes no longer than to hand it over to another thread.
pub(crate) fn is_quick(command: &Command) -> bool {
    match command.program() {
        Program::Shell { text, .. } => is_plain(text),
        Program::Argv(argv) => is_plain_argv(argv),
    }
}

/// The programs that it runs, as far as its text determines them: not if the request's variables do.
fn analyze_command(command: &Command, shell: Option<&str>) -> Analysis {
    let mut analysis = match command.program() {
        Program::Shell { text, .. } => analyze_for(shell.unwrap_or("bash"), text),
        Program::Argv(argv) => analyze_argv(argv),
    };
    let text = command.text();
    let decides = |name: &String| decides(name) || decides_reading(name, &text) || analysis.evaluated.contains(name);
    if command.environment().keys().any(decides) {
        analysis.not_understood(ASSIGNED);
    }
    analysis
}

/// Analyses a text in the language of its shell. Of shells given by path only those of the system are known.
fn analyze_for(shell: &str, text: &str) -> Analysis {
    let name = ["/bin/", "/usr/bin/"].iter().find_map(|directory| shell.strip_prefix(directory)).unwrap_or(shell);
    match name {
        "bash" => analyze(text),
        "sh" | "dash" => analyze_posix(text),
        _ => {
            let mut analysis = analyze(text);
            analysis.not_understood("only texts for bash and sh can be understood");
            analysis
        }
    }
}
