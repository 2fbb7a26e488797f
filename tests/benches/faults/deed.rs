//! What a client does.

use super::*;
use fastrand::Rng;

/// One deed of a client.
pub(super) struct Deed<'a> {
    pub(super) machine: &'a RemoteExecutor,
    /// The agent may be another one meanwhile, which does not know what was bound to a call.
    pub(super) kept: bool,
    pub(super) chance: &'a mut Rng,
    pub(super) mark: String,
}

impl Deed<'_> {
    pub(super) async fn be_done(self, name: &str) -> Result<(), ExecutorError> {
        match name {
            "exit code" => self.exit_code().await,
            "output" => self.output().await,
            "cancel" => self.cancel().await,
            "timeout" => self.timeout().await,
            "background" => self.background().await,
            "memory" => self.memory().await,
            _ => self.signal().await,
        }
    }

    fn marked(&self, command: CommandBuilder) -> CommandBuilder {
        command.env(MARK, &self.mark)
    }

    async fn start(&self, command: CommandBuilder) -> Result<Execution, ExecutorError> {
        within(self.machine.execute(command.build().unwrap())).await
    }

    async fn has_exited(&self, id: &ExecutionId) -> Result<(), ExecutorError> {
        until("it has exited", async || match self.machine.get(id).await {
            Ok(info) => info.state == ExecutionState::Exited,
            Err(error) => self.kept && matches!(error, ExecutorError::NotFound(_)),
        })
        .await;
        Ok(())
    }

    async fn run(&self, command: CommandBuilder) -> Result<Outcome, ExecutorError> {
        let outcome = run(self.machine, command).await?;
        self.is_own_end(&outcome.exited).map(|()| outcome)
    }

    /// Unless the agent has handed over, and it had to end for that.
    fn is_own_end(&self, exited: &Exited) -> Result<(), ExecutorError> {
        match self.kept && exited.cause == ExitCause::Shutdown {
            true => Err(ExecutorError::ShuttingDown),
            false => Ok(()),
        }
    }

    async fn exit_code(self) -> Result<(), ExecutorError> {
        let code = i32::from(self.chance.u8(..));
        let command = self.marked(Command::shell(format!("echo {}; exit {code}", self.mark)).shell("sh"));
        let outcome = self.run(command).await?;
        assert_eq!(outcome.text(), format!("{}\n", self.mark));
        assert_eq!(outcome.exited.exit_code(), code);
        Ok(())
    }

    async fn output(self) -> Result<(), ExecutorError> {
        let count = self.chance.u32(..300_000);
        let command = self.marked(Command::argv(["seq".to_owned(), count.to_string()]));
        let outcome = self.run(command).await?;
        assert!(outcome.text() == (1..=count).map(|i| format!("{i}\n")).collect::<String>(), "{count} lines");
        Ok(())
    }

    /// Without processes to be had the tree has fewer branches.
    async fn cancel(self) -> Result<(), ExecutorError> {
        let grace = Duration::from_millis(self.chance.u64(..50));
        let execution = self.start(self.marked(Command::shell(TREE)).kill_grace(grace)).await?;
        tokio::time::sleep(Duration::from_millis(self.chance.u64(..100))).await;
        let id = execution.id().clone();
        drop(execution);
        self.has_exited(&id).await
    }

    async fn timeout(self) -> Result<(), ExecutorError> {
        let command = self.marked(Command::argv(["sleep", "300"])).kill_grace(Duration::ZERO);
        let limit = Duration::from_millis(self.chance.u64(1..300));
        let outcome = self.run(command.timeout(limit)).await?;
        assert_eq!((outcome.exited.cause, outcome.exited.surviving_processes), (ExitCause::TimedOut, 0));
        Ok(())
    }

    /// What was kept is exact, and what was not is counted or a gap.
    async fn background(self) -> Result<(), ExecutorError> {
        let count = self.chance.u32(..200_000);
        let command =
            self.marked(Command::argv(["seq".to_owned(), count.to_string()])).on_disconnect(OnDisconnect::Detach);
        let execution = self.start(command).await?;
        let id = execution.id().clone();
        drop(execution);
        self.has_exited(&id).await?;
        let all: String = (1..=count).map(|i| format!("{i}\n")).collect();
        let mut followed = within(self.machine.attach(&id, Attach::start())).await?;
        loop {
            match within(followed.next()).await.unwrap()? {
                Event::Output(output) => {
                    let at = usize::try_from(output.position).unwrap();
                    assert!(all.as_bytes()[at..].starts_with(&output.data), "at {at}");
                }
                Event::Exited(exited) => {
                    assert_eq!((exited.exit_code(), exited.stdout.bytes), (0, all.len() as u64));
                    return Ok(());
                }
                Event::Started(_) | Event::Gap(_) | Event::Promoted => {}
            }
        }
    }

    async fn memory(self) -> Result<(), ExecutorError> {
        let limits = ResourceLimits { memory_bytes: Some(16 * 1024 * 1024), ..ResourceLimits::default() };
        let outcome = self.run(self.marked(Command::argv(["tail", "/dev/zero"])).limits(limits)).await?;
        assert_eq!((outcome.exited.cause, outcome.exited.surviving_processes), (ExitCause::OutOfMemory, 0));
        Ok(())
    }

    async fn signal(self) -> Result<(), ExecutorError> {
        let mut execution = self.start(self.marked(Command::argv(["sleep", "300"]))).await?;
        self.machine.signal(execution.id(), Signal::KILL).await?;
        while let Some(event) = within(execution.next()).await {
            if let Event::Exited(exited) = event? {
                self.is_own_end(&exited)?;
                assert_eq!((exited.cause, exited.signal), (ExitCause::Signaled, Some(Signal::KILL)));
                return Ok(());
            }
        }
        panic!("the execution has no end");
    }
}
