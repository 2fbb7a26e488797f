//! A machine that runs actions, by its agent.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use telexec_client::{Agent, AgentInfo, ConnectError, ConnectOptions, Resume, Resuming, TlsOptions};
use telexec_executor::{Attach, Command, Event, ExecutorError, Files, ListQuery, Signal};
use telexec_executor::{ExecutionId, Executor, FileErrorKind, FilePath, FileTarget};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::args::{Args, DigestFunction};
use crate::cache::{Cache, make_directory};
use crate::failure::TargetError;
use crate::platform::Platform;
use crate::sessions::Sessions;
use crate::sftp::Sftp;

/// Pauses between attempts, while an agent does not answer or a target cannot run actions.
const MIN_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// How long an action outlives a lost connection: its processes end then, also when this program is killed.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);
/// Of executions, with the bot that started them.
const LABEL: &str = "telexec-reapi";
const OWN_CHARACTERS: usize = 12;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A machine that runs actions.
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) agent: Agent,
    pub(crate) executor: Resuming,
    pub(crate) platform: Platform,
    pub(crate) capacity: usize,
    pub(crate) cache: Cache,
    /// As the owner of the cache.
    pub(crate) sessions: Arc<Sessions>,
    /// As other users, whose outputs only they may read.
    of_users: Mutex<HashMap<String, Arc<Sessions>>>,
    actions: String,
    bot_id: String,
    pub(crate) is_fit: watch::Sender<bool>,
}

impl Target {
    /// Waits until the agent answers and all is ready for actions.
    ///
    /// # Errors
    /// What does not pass by itself, such as a certificate that is not trusted.
    pub(crate) async fn open(
        address: &telexec_client::Target,
        bot_id: &str,
        args: &Args,
    ) -> Result<Self, ConnectError> {
        let tls = args.cert.as_ref().zip(args.key.as_ref()).zip(args.ca.as_ref());
        let tls = tls.map(|((cert, key), ca)| TlsOptions::new(cert, key, ca));
        let mut pause = Pause::default();
        loop {
            let error: Box<dyn std::error::Error + Send + Sync> =
                match Agent::connect(address, ConnectOptions { tls: tls.clone(), ..ConnectOptions::default() }).await {
                    Ok(agent) => match Self::prepare(agent, bot_id, args).await {
                        Ok(target) => return Ok(target),
                        Err(error) => error.into(),
                    },
                    Err(error @ ConnectError::Unreachable { .. }) => error.into(),
                    Err(error) => return Err(error),
                };
            if pause.is_first() {
                warn!(target = %address, error = %crate::chain(&*error), "the target is not ready: waiting for it");
            }
            pause.wait().await;
        }
    }

    async fn prepare(agent: Agent, bot_id: &str, args: &Args) -> Result<Self, TargetError> {
        let resume = Resume { give_up_after: GIVE_UP_AFTER, ..Resume::default() };
        let executor = agent.executor().resuming(resume);
        let info = agent.info().await?;
        end_leftovers(&executor, bot_id).await?;
        let own = own_directory(&args.work_dir, bot_id);
        let actions = format!("{own}/actions");
        remove_leftovers(&agent, &actions, args).await?;
        let capacity = match args.concurrency {
            Some(number) => number.into(),
            None => processors(&executor).await?,
        };
        let sessions = Arc::new(Sessions::new(agent.files(), None, capacity));
        let session = sessions.take().await?;
        let cache = open_cache(&session, &agent, &own, args).await?;
        session.give_back();
        let (blobs, bytes) = cache.size();
        info!(target = agent.endpoint(), capacity, blobs, bytes, "ready");
        Ok(Self {
            name: agent.endpoint().to_owned(),
            platform: Platform::new(args, &info),
            capacity: capacity.min(most(&info)),
            executor,
            agent,
            cache,
            sessions,
            of_users: Mutex::default(),
            actions,
            bot_id: bot_id.to_owned(),
            is_fit: watch::Sender::new(true),
        })
    }

    /// The directory of one action, which others cannot guess.
    pub(crate) fn action_directory(&self) -> String {
        format!("{}/{}", self.actions, uuid::Uuid::new_v4().simple())
    }

    pub(crate) fn labels(&self) -> [(String, String); 1] {
        [(LABEL.to_owned(), self.bot_id.clone())]
    }

    /// Sessions as the user that an action runs as.
    pub(crate) fn sessions_of(&self, user: Option<&str>) -> Arc<Sessions> {
        let Some(user) = user else { return Arc::clone(&self.sessions) };
        let mut of_users = self.of_users.lock().unwrap_or_else(PoisonError::into_inner);
        match of_users.entry(user.to_owned()) {
            Entry::Occupied(known) => Arc::clone(known.get()),
            Entry::Vacant(new) => {
                let sessions = Sessions::new(self.agent.files(), Some(user.to_owned()), self.capacity);
                Arc::clone(new.insert(Arc::new(sessions)))
            }
        }
    }

    /// Removes what is left of an action.
    pub(crate) async fn remove(&self, directory: &str, user: Option<&str>) {
        let file = |user| FileTarget { path: FilePath::new(directory), user };
        if let Some(user) = user {
            // what the user's processes made, which the owner of the directory may not be able to remove
            let _ = self.agent.files().remove(file(Some(user.to_owned())), true).await;
        }
        if let Err(error) = remove_if_there(&self.agent, file(None)).await {
            warn!(target = self.name, directory, error = %crate::chain(&error), "cannot remove an action's directory");
        }
    }

    /// Gets no more actions until it is fit for them again.
    pub(crate) async fn rest(self: Arc<Self>) {
        if !self.is_fit.send_replace(false) {
            return;
        }
        warn!(target = self.name, "the target gets no more actions for now");
        let mut pause = Pause::default();
        loop {
            pause.wait().await;
            if self.try_out().await.is_ok() {
                break;
            }
        }
        info!(target = self.name, "the target gets actions again");
        self.is_fit.send_replace(true);
    }

    /// Whether it takes files.
    async fn try_out(&self) -> Result<(), TargetError> {
        let session = self.sessions.take().await?;
        let path = self.action_directory();
        let handle = session.open(&path, crate::sftp::Open::Create(0o600)).await.handle().await?;
        let written = session.write(&handle, 0, &[1; 64 * 1024]).await.done().await;
        session.close(&handle).await.done().await?;
        session.remove(&path).await.done().await?;
        session.give_back();
        Ok(written?)
    }
}

fn most(info: &AgentInfo) -> usize {
    usize::try_from(info.max_executions).unwrap_or(usize::MAX).max(1)
}

/// Ends what an earlier process of this worker has started.
async fn end_leftovers(executor: &Resuming, bot_id: &str) -> Result<(), ExecutorError> {
    let labels = [(LABEL.to_owned(), bot_id.to_owned())].into();
    let page = executor.list(ListQuery { labels, page_size: 1000, ..ListQuery::default() }).await?;
    for execution in page.executions {
        info!(id = %execution.id, "ending what an earlier process of this worker has started");
        match end(executor, &execution.id).await {
            Ok(()) | Err(ExecutorError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn end(executor: &Resuming, id: &ExecutionId) -> Result<(), ExecutorError> {
    let mut execution = executor.attach(id, Attach::position(0)).await?;
    executor.signal(id, Signal::KILL).await?;
    while let Some(event) = execution.next().await {
        event?;
    }
    Ok(())
}

async fn remove_leftovers(agent: &Agent, actions: &str, args: &Args) -> Result<(), ExecutorError> {
    for user in args.user.iter().chain(&args.allowed_users) {
        // it may remove what it made, not the directory itself
        let file = FileTarget { path: FilePath::new(actions), user: Some(user.clone()) };
        let _ = agent.files().remove(file, true).await;
    }
    remove_if_there(agent, FileTarget { path: FilePath::new(actions), user: None }).await
}

async fn remove_if_there(agent: &Agent, file: FileTarget) -> Result<(), ExecutorError> {
    match agent.files().remove(file, true).await {
        Err(ExecutorError::File(error)) if error.kind() == FileErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The directory of one bot, so that several can work on one machine. It is short, since sockets have short paths.
fn own_directory(work_dir: &str, bot_id: &str) -> String {
    let hash = DigestFunction::Sha256.digest(bot_id.as_bytes()).hash();
    format!("{work_dir}/{}", hash.get(..OWN_CHARACTERS).unwrap_or_default())
}

/// Makes the directories of a bot. Others may pass through that of the actions, and see no names.
async fn open_cache(sftp: &Sftp, agent: &Agent, own: &str, args: &Args) -> Result<Cache, TargetError> {
    make_directory(sftp, &args.work_dir, 0o755).await?;
    make_directory(sftp, own, 0o755).await?;
    make_directory(sftp, &format!("{own}/actions"), 0o711).await?;
    let boot = sftp.content(BOOT_ID, 64).await?;
    let name = format!("cas.{}", String::from_utf8_lossy(&boot).trim());
    for (other, _) in sftp.list(own).await? {
        if other.starts_with(b"cas.") && other != name.as_bytes() {
            let path = FilePath::new([own.as_bytes(), b"/", &other].concat());
            agent.files().remove(FileTarget { path, user: None }, true).await?;
        }
    }
    let directory = format!("{own}/{name}");
    make_directory(sftp, &directory, 0o700).await?;
    Ok(Cache::open(sftp, directory, args.digest_function, args.cache_size).await?)
}

/// How many processors a command there may use.
async fn processors(executor: &Resuming) -> Result<usize, TargetError> {
    let mut execution = executor.execute(Command::argv(["nproc"]).build().map_err(ExecutorError::from)?).await?;
    let mut text = Vec::new();
    while let Some(event) = execution.next().await {
        if let Event::Output(output) = event? {
            text.extend_from_slice(&output.data);
        }
    }
    let number = String::from_utf8_lossy(&text).trim().parse().ok().filter(|number| *number > 0);
    let unknown = || ExecutorError::Internal("nproc printed no number: say --concurrency".to_owned());
    Ok(number.ok_or_else(unknown)?)
}

/// Grows while nothing gets better.
pub(crate) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(MIN_PAUSE)
    }
}

impl Pause {
    pub(crate) fn is_first(&self) -> bool {
        self.0 == MIN_PAUSE
    }

    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(MAX_PAUSE);
    }
}
