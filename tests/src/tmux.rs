//! A terminal with a shell in it, as a person has: a window of a tmux server of its own.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::agent::program;
use crate::until;

/// The kind of terminal that a window is.
pub const TMUX_TERM: &str = "screen-256color";

/// A window of 80 columns and 24 rows; ended when dropped, with what runs in it.
pub struct Tmux {
    directory: TempDir,
}

impl Tmux {
    /// Opens it, with these variables in its shell's environment.
    ///
    /// # Panics
    /// There is no tmux.
    pub async fn open(variables: &[(&str, &str)]) -> Self {
        let this = Self { directory: tempfile::tempdir().unwrap() };
        let settings = format!("set -g default-terminal {TMUX_TERM}\nset -sg escape-time 0\n");
        std::fs::write(this.directory.path().join("tmux.conf"), settings).unwrap();
        let programs = program("telexec");
        let path = format!("{}:{}", programs.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let variables = variables.iter().map(|(name, value)| format!("{name}='{value}'")).collect::<Vec<_>>().join(" ");
        // the plainest shell: one that edits lines would set the terminal to rights by itself
        let text = format!("exec env -i TERM=$TERM LANG=C.UTF-8 PATH='{path}' PS1='$ ' {variables} sh");
        this.tmux(&["new-session", "-d", "-x", "80", "-y", "24", &text]);
        this.shows("$").await;
        this
    }

    fn tmux(&self, args: &[&str]) -> String {
        let output = self.ask(args);
        assert!(output.status.success(), "tmux {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn ask(&self, args: &[&str]) -> Output {
        let file = |name: &str| self.directory.path().join(name);
        let mut command = Command::new("tmux");
        command.arg("-u").arg("-f").arg(file("tmux.conf")).arg("-S").arg(file("socket"));
        command.env_remove("TMUX").env("LANG", "C.UTF-8").stdin(Stdio::null());
        command.args(args).output().expect("tmux runs: tests/run installs it")
    }

    /// A directory that is removed after it.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Types this text.
    pub fn write(&self, text: &str) {
        self.tmux(&["send-keys", "-l", "--", text]);
    }

    /// Presses this key, by tmux's name of it, such as `Enter` or `C-c`.
    pub fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Types a line.
    pub fn line(&self, text: &str) {
        self.write(text);
        self.press("Enter");
    }

    /// What is seen, with lines that are too long put together again.
    pub fn screen(&self) -> String {
        // put together, lines have the spaces at their ends that a program wrote
        self.tmux(&["capture-pane", "-p", "-J"]).lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    /// Waits until it shows this text.
    ///
    /// # Panics
    /// It does not.
    pub async fn shows(&self, text: &str) {
        let shown = async || self.screen().contains(text);
        until(&format!("the terminal shows {text:?}"), shown).await;
    }

    /// Gives the window another size.
    pub fn resize(&self, columns: u16, rows: u16) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
    }

    /// All settings of the terminal, as stty(1) writes them. The shell must wait for a line.
    pub async fn settings(&self) -> String {
        let file = self.directory.path().join("settings");
        let _ = std::fs::remove_file(&file);
        self.line(&format!("stty -g >{0}.new && mv {0}.new {0}", file.display()));
        until("stty has printed the settings", async || file.exists()).await;
        std::fs::read_to_string(file).unwrap()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let screen = self.ask(&["capture-pane", "-p", "-J"]).stdout;
            eprintln!("the terminal shows:\n{}", String::from_utf8_lossy(&screen));
        }
        self.ask(&["kill-server"]);
    }
}
