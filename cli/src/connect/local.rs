//! The target `local`: an agent inside this process, on a private Unix socket, so that commands take the same path as
//! on any other agent.

#[cfg(target_os = "linux")]
pub(crate) use linux::LocalAgent;
#[cfg(not(target_os = "linux"))]
pub(crate) use unsupported::LocalAgent;

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::Duration;

    use telexec_client::{Agent, ConnectOptions, Target};
    use telexec_server::{Config, ListenAddress, Listeners, ServeError, serve};
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use crate::output::{Failure, exit};

    /// Variables that commands inherit from the caller, so that they find the caller's programs.
    const INHERITED: [&str; 2] = ["PATH", "LANG"];

    /// A running agent.
    pub(crate) struct LocalAgent {
        stop: oneshot::Sender<()>,
        served: JoinHandle<Result<(), ServeError>>,
    }

    impl LocalAgent {
        pub(crate) async fn start() -> Result<(Agent, Self), Failure> {
            // deleted once the connection is established
            let directory = private_directory().map_err(|error| failed(&error).context("cannot make a directory"))?;
            let socket = directory.path().join("agent.sock");
            let config = config(ListenAddress::Unix(socket.clone()))?;
            let listeners = Listeners::bind(&config).await.map_err(|error| failed(&error))?;
            let (stop, stopped) = oneshot::channel();
            let served = tokio::spawn(serve(config, listeners, async {
                let _ = stopped.await;
            }));
            let this = Self { stop, served };
            match Agent::connect(&Target::Unix(socket), ConnectOptions::default()).await {
                Ok(agent) => Ok((agent, this)),
                // an agent that cannot work here has said why, and closed its socket
                Err(error) => Err(this.stop().await.err().unwrap_or_else(|| failed(&error))),
            }
        }

        /// Stops the agent, which ends all its executions, and waits for it.
        pub(crate) async fn stop(self) -> Result<(), Failure> {
            let _ = self.stop.send(());
            match self.served.await {
                Ok(served) => served.map_err(|error| failed(&error)),
                Err(error) => Err(failed(&error)),
            }
        }
    }

    /// A directory that only this user can enter.
    fn private_directory() -> std::io::Result<tempfile::TempDir> {
        let usual = std::env::temp_dir();
        // the path of a Unix socket is limited to 107 bytes
        let base = if usual.as_os_str().len() > 80 { Path::new("/tmp") } else { &usual };
        let private = std::fs::Permissions::from_mode(0o700);
        tempfile::Builder::new().prefix("telexec-").permissions(private).tempdir_in(base)
    }

    fn config(listen: ListenAddress) -> Result<Config, Failure> {
        let here = std::env::current_dir()
            .map_err(|error| failed(&error).context("cannot determine the current directory"))?;
        let variable = |name: &str| Some((name.to_owned(), std::env::var(name).ok()?));
        Ok(Config {
            listen: vec![listen],
            working_directory: Some(here.into_os_string().into_string().map_err(|here| {
                Failure::message(exit::REFUSED, format!("the current directory is not UTF-8: {}", here.display()))
            })?),
            environment: INHERITED.into_iter().filter_map(variable).collect::<BTreeMap<_, _>>(),
            // the caller has already seen the end of its command, or abandoned it
            shutdown_grace: Duration::ZERO,
            serves_files: true,
            ..Config::default()
        })
    }

    fn failed(error: &(dyn std::error::Error + 'static)) -> Failure {
        Failure::new(exit::LOST, error)
    }
}

#[cfg(not(target_os = "linux"))]
mod unsupported {
    use telexec_client::Agent;

    /// Never constructed.
    pub(crate) enum LocalAgent {}

    impl LocalAgent {
        pub(crate) async fn start() -> Result<(Agent, Self), Failure> {
            Err(Failure::message(exit::LOST, "the target local is available on Linux only")
                .hint(Some("use the target of an agent on a Linux machine")))
        }

        pub(crate) async fn stop(self) -> Result<(), Failure> {
            match self {}
        }
    }
}
