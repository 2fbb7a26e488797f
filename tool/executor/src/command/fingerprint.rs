//! Distinguishes a repeated request from another one, also for another version of this program: the digest is kept on disk.

use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};

use super::{Descendants, DuplicatePolicy, OnDisconnect, Options, Program};

/// A SHA-256 digest of what an identity asks for. The command's deadline and trace are left out: a repeat of the request has
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for Fingerprint {
    fn from(digest: [u8; 32]) -> Self {
        Self(digest)
    }
}

/// The digest of names and values, each with its length before it. What is not asked for has no entry, so that options
/// which are added later change no digest of requests without them.
pub(super) fn of(identity: &str, program: &Program, options: &Options) -> Fingerprint {
    let Options {
        user,
        limits,
        working_directory,
        environment,
        clear_environment,
        timeout,
        deadline: _,
        kill_grace,
        stdin,
        accepts_input,
        terminal,
        yield_after,
        on_disconnect,
        disconnect_grace,
        duplicate_policy,
        execution_id,
        max_output_bytes,
        merge_output,
        no_new_privileges,
        receipt,
        labels,
        report_working_directory,
        descendants,
        reason,
        trace: _,
        named_command,
    } = options;
    let mut digest = Digest(Context::new(&SHA256));
    match program {
        Program::Shell { text, shell, login } => {
            digest.field("command", text);
            digest.optional("shell", shell.as_ref());
            digest.flag("login", *login);
        }
        Program::Argv(argv) => argv.iter().for_each(|argument| digest.field("argv", argument)),
    }
    digest.optional("user", user.as_ref());
    digest.optional("working_directory", working_directory.as_ref());
    digest.pairs("environment", environment);
    digest.flag("clear_environment", *clear_environment);
    digest.time("timeout", *timeout);
    digest.time("kill_grace", *kill_grace);
    digest.time("yield_after", *yield_after);
    digest.optional("stdin", (!stdin.is_empty()).then_some(stdin));
    digest.flag("accepts_input", *accepts_input);
    digest.optional("terminal.columns", terminal.map(|size| size.columns().to_le_bytes()));
    digest.optional("terminal.rows", terminal.map(|size| size.rows().to_le_bytes()));
    digest.optional("limits.memory_bytes", limits.memory_bytes.map(u64::to_le_bytes));
    digest.optional("limits.max_processes", limits.max_processes.map(u32::to_le_bytes));
    digest.optional("limits.cpus", limits.cpus.map(|cpus| cpus.to_bits().to_le_bytes()));
    digest.flag("detach", *on_disconnect == OnDisconnect::Detach);
    digest.time("disconnect_grace", Some(*disconnect_grace).filter(|grace| !grace.is_zero()));
    digest.flag("merge_output", *merge_output);
    digest.flag("no_new_privileges", *no_new_privileges);
    digest.flag("receipt", *receipt);
    digest.flag("reuse_running", *duplicate_policy == DuplicatePolicy::ReuseRunning);
    digest.flag("kill_descendants", *descendants == Descendants::Kill);
    digest.flag("report_working_directory", *report_working_directory);
    digest.optional("max_output_bytes", (*max_output_bytes != 0).then(|| max_output_bytes.to_le_bytes()));
    digest.optional("execution_id", execution_id.as_ref().map(crate::ExecutionId::as_str));
    digest.pairs("labels", labels);
    digest.optional("reason", (!reason.is_empty()).then_some(reason));
    digest.optional("named_command", named_command.as_ref());
    digest.optional("identity", (!identity.is_empty()).then_some(identity));
    digest.finish()
}

struct Digest(Context);

impl Digest {
    fn field(&mut self, name: &str, value: impl AsRef<[u8]>) {
        for part in [name.as_bytes(), value.as_ref()] {
            self.0.update(&(part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
    }

    fn optional(&mut self, name: &str, value: Option<impl AsRef<[u8]>>) {
        value.into_iter().for_each(|value| self.field(name, value));
    }

    fn flag(&mut self, name: &str, is_set: bool) {
        self.optional(name, is_set.then_some(""));
    }

    fn time(&mut self, name: &str, time: Option<Duration>) {
        self.optional(name, time.map(|time| time.as_nanos().to_le_bytes()));
    }

    fn pairs<'a>(&mut self, name: &str, pairs: impl IntoIterator<Item = (&'a String, &'a String)>) {
        for (key, value) in pairs {
            self.field(name, key);
            self.field("", value);
        }
    }

    fn finish(self) -> Fingerprint {
        let mut bytes = [0; 32];
        bytes.iter_mut().zip(self.0.finish().as_ref()).for_each(|(to, from)| *to = *from);
        Fingerprint(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use crate::{Command, CommandBuilder, ResourceLimits, TerminalSize};

    use super::*;

    fn hex(command: CommandBuilder) -> String {
        hex_of(&command.build().unwrap())
    }

    fn hex_of(command: &Command) -> String {
        command.fingerprint("identity").as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn full() -> CommandBuilder {
        let pairs = |text: &str| [(text.to_owned(), "value".to_owned())];
        Command::shell("echo")
            .shell("dash")
            .login(true)
            .user("user")
            .working_directory("/tmp")
            .envs(pairs("NAME"))
            .clear_environment(true)
            .timeout(Duration::from_secs(1))
            .kill_grace(Duration::from_millis(1))
            .yield_after(Duration::from_nanos(1))
            .stdin("input")
            .accepts_input(true)
            .terminal(TerminalSize::new(80, 24).unwrap())
            .limits(ResourceLimits { memory_bytes: Some(1 << 20), max_processes: Some(5), cpus: Some(0.5) })
            .on_disconnect(OnDisconnect::Detach)
            .duplicate_policy(DuplicatePolicy::ReuseRunning)
            .descendants(Descendants::Kill)
            .report_working_directory(true)
            .max_output_bytes(7)
            .execution_id("id".parse().unwrap())
            .labels(pairs("label"))
            .reason("reason")
    }

    /// They are in the files of agents that are upgraded: never change what is here.
    #[test]
    fn the_digests_of_other_versions_are_these() {
        assert_eq!(
            hex(Command::argv(["echo", "a b"])),
            "77cb66b6bf5fbb0b27022e1d2e973d4f9a53cc8a017eee4325663d75189d2b1f"
        );
        assert_eq!(hex(full()), "427b9e19a5523103f6cce5e2e90a29aec2bb60b48803a314fd7691e467f32018");
    }

    #[test]
    fn what_differs_in_a_repeat_is_left_out_and_all_else_is_not() {
        let repeat = full().deadline(Instant::now()).build().unwrap();
        assert_eq!(hex_of(&repeat), hex(full()));
        assert_ne!(repeat.fingerprint("other"), repeat.fingerprint("identity"));
        let others = [
            full().reason("other"),
            full().stdin("other"),
            full().max_output_bytes(8),
            full().timeout(Duration::from_secs(2)),
            full().env("OTHER", ""),
            full().disconnect_grace(Duration::from_secs(1)),
            full().merge_output(true),
            full().no_new_privileges(true),
            full().receipt(true),
        ];
        for other in others {
            assert_ne!(hex(other), hex(full()));
        }
        assert_ne!(hex(Command::argv(["a", "b"])), hex(Command::argv(["ab"])));
        assert_ne!(hex(Command::argv(["a"])), hex(Command::shell("a")));
    }
}
