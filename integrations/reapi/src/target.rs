//! A machine that runs actions, by its agent.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use telexec_client::{Agent, AgentInfo, ConnectError, ConnectOptions, Resume, Resuming, TlsOptions};
use telexec_executor::{Attach, Command, CommandBuilder, Event, ExecutorError, ExitCause, Files, ListQuery, Signal};
use telexec_executor::{ExecutionId, Executor, FileErrorKind, FilePath, FileTarget};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::args::{Args, DigestFunction};
use crate::cache::Cache;
use crate::failure::TargetError;
use crate::owned::{self, OwnedError};
use crate::platform::Platform;
use crate::sessions::{Session, Sessions};
use crate::sftp::{Owner, Sftp, SftpError};

/// Pauses between attempts, while an agent does not answer or a target cannot run actions.
const MIN_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// How long an action outlives a lost connection: its processes end then, also when this program is killed.
pub(crate) const GIVE_UP_AFTER: Duration = Duration::from_secs(5);
/// Of executions, with the bot that started them.
const LABEL: &str = "telexec-reapi";
const OWN_CHARACTERS: usize = 12;
const REMOVE_TIMEOUT: Duration = Duration::from_secs(300);
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A machine that runs actions.
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) agent: Agent,
    pub(crate) executor: Resuming,
    pub(crate) platform: Platform,
    pub(crate) capacity: usize,
    cache: Mutex<Arc<Cache>>,
    /// Held by the one that opens another cache.
    opening: tokio::sync::Mutex<()>,
    place: Place,
    /// As the owner of the cache.
    sessions: Arc<Sessions>,
    /// That actions may run as.
    users: HashMap<String, Owner>,
    /// As other users, whose outputs only they may read.
    of_users: Mutex<HashMap<String, Arc<Sessions>>>,
    actions: String,
    bot_id: String,
    pub(crate) is_fit: watch::Sender<bool>,
}

impl Target {
    /// Waits until the agent answers and all is ready for actions. One that is not trusted may be given another certificate.
    ///
    /// # Errors
    /// The files of this program's own credentials cannot be used, or there are none.
    pub(crate) async fn open(
        address: &telexec_client::Target,
        bot_id: &str,
        args: &Args,
    ) -> Result<Self, ConnectError> {
        let tls = args.cert.as_ref().zip(args.key.as_ref()).zip(args.ca.as_ref());
        let tls = tls.map(|((cert, key), ca)| TlsOptions::new(cert, key, ca));
        let (mut pause, mut known) = (Pause::default(), String::new());
        loop {
            let error: Box<dyn std::error::Error + Send + Sync> =
                match Agent::connect(address, ConnectOptions { tls: tls.clone(), ..ConnectOptions::default() }).await {
                    Ok(agent) => match Self::prepare(agent, bot_id, args).await {
                        Ok(target) => return Ok(target),
                        Err(error) => error.into(),
                    },
                    Err(error @ (ConnectError::Unreachable { .. } | ConnectError::Untrusted { .. })) => error.into(),
                    Err(error) => return Err(error),
                };
            let error = crate::chain(&*error);
            if error != known {
                warn!(target = %address, error, "the target is not ready: waiting for it");
                known = error;
            }
            pause.wait().await;
        }
    }

    async fn prepare(agent: Agent, bot_id: &str, args: &Args) -> Result<Self, TargetError> {
        let resume = Resume { give_up_after: GIVE_UP_AFTER, ..Resume::default() };
        let executor = agent.executor().resuming(resume);
        let info = agent.info().await?;
        let place = Place::new(bot_id, args);
        let actions = place.actions();
        let capacity = match args.concurrency {
            Some(number) => number.into(),
            None => processors(&executor).await?,
        };
        let users = users(&executor, args).await?;
        let sessions = Arc::new(Sessions::new(agent.files(), None, capacity));
        let session = sessions.take().await?;
        // before anything is removed: they may be somebody else's
        place.make(&session).await?;
        end_leftovers(&executor, bot_id).await?;
        remove_leftovers(&agent, &session, &executor, &actions).await?;
        let cache = place.open_cache(&session, &agent).await?;
        session.give_back();
        let (blobs, bytes) = cache.size();
        info!(target = agent.endpoint(), capacity, blobs, bytes, "ready");
        Ok(Self {
            name: agent.endpoint().to_owned(),
            platform: Platform::new(args, &info),
            capacity: capacity.min(most(&info)),
            executor,
            agent,
            cache: Mutex::new(Arc::new(cache)),
            opening: tokio::sync::Mutex::default(),
            place,
            sessions,
            users,
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

    /// A session as the owner of the cache, and the cache: another one if the machine was booted since.
    ///
    /// # Errors
    /// The target cannot be used.
    pub(crate) async fn session(&self) -> Result<(Session, Arc<Cache>), TargetError> {
        let session = self.sessions.take().await?;
        // no session survives a boot
        if session.is_new && boot_id(&session).await? != self.cache().boot {
            let _opening = self.opening.lock().await;
            // another session may have opened it meanwhile
            if boot_id(&session).await? != self.cache().boot {
                info!(target = self.name, "the machine was booted: beginning with an empty cache");
                let cache = self.place.open_cache(&session, &self.agent).await?;
                *self.cache.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(cache);
            }
        }
        let cache = self.cache();
        Ok((session, cache))
    }

    fn cache(&self) -> Arc<Cache> {
        Arc::clone(&self.cache.lock().unwrap_or_else(PoisonError::into_inner))
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

    /// Who owns the directories of such an action; `None`: the agent's user.
    pub(crate) fn owner(&self, user: Option<&str>) -> Option<Owner> {
        self.users.get(user?).copied()
    }

    /// Removes what is left of an action.
    pub(crate) async fn remove(&self, directory: &str) {
        if let Err(error) = remove(&self.agent, &self.executor, directory).await {
            warn!(target = self.name, directory, %error, "cannot remove an action's directory");
        }
    }

    /// Removes the half of the blobs that was used longest ago: its disk is full, with whatever.
    async fn make_room(&self) {
        let Ok((session, cache)) = self.session().await else { return };
        match cache.halve(&session).await {
            Ok(blobs) => {
                session.give_back();
                if blobs == 0 {
                    return;
                }
                info!(target = self.name, blobs, "removed blobs, since the disk is full");
            }
            Err(error) => warn!(target = self.name, %error, "cannot remove blobs, and the disk is full"),
        }
    }

    /// Gets no more actions until it is fit for them again. If its disk `is_full`, there is to be room first.
    pub(crate) async fn rest(self: Arc<Self>, mut is_full: bool) {
        if !self.is_fit.send_replace(false) {
            return;
        }
        warn!(target = self.name, "the target gets no more actions for now");
        let (mut pause, mut known) = (Pause::default(), String::new());
        loop {
            if is_full {
                self.make_room().await;
            }
            pause.wait().await;
            let Err(error) = self.try_out().await else { break };
            is_full = error.is_full();
            let text = crate::chain(&error);
            if text != known {
                warn!(target = self.name, error = text, "the target is not fit yet");
                known = text;
            }
        }
        info!(target = self.name, "the target gets actions again");
        self.is_fit.send_replace(true);
    }

    /// Whether it takes files. Directories that somebody has removed are made again.
    async fn try_out(&self) -> Result<(), TargetError> {
        let (session, cache) = self.session().await?;
        let user = self.place.make(&session).await?;
        cache.make_directories(&session, user).await?;
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

/// Removes the directories of actions. One that cannot be removed is in nobody's way.
async fn remove_leftovers(
    agent: &Agent,
    session: &Sftp,
    executor: &Resuming,
    actions: &str,
) -> Result<(), TargetError> {
    for (name, _) in session.list(actions).await? {
        let directory = format!("{actions}/{}", String::from_utf8_lossy(&name));
        if let Err(error) = remove(agent, executor, &directory).await {
            warn!(target = agent.endpoint(), directory, %error, "cannot remove what is left of an action");
        }
    }
    Ok(())
}

/// Removes a directory of an action, whatever that has made in it.
async fn remove(agent: &Agent, executor: &Resuming, directory: &str) -> Result<(), String> {
    let file = FileTarget { path: FilePath::new(directory), user: None };
    match agent.files().remove(file, true).await {
        Ok(()) => Ok(()),
        Err(ExecutorError::File(error)) if error.kind() == FileErrorKind::NotFound => Ok(()),
        Err(error @ ExecutorError::File(_)) => remove_by_command(executor, directory, &error).await,
        Err(error) => Err(crate::chain(&error)),
    }
}

/// Where directories are read-only, and their owner is not root, or are deeper in each other than one process can open.
async fn remove_by_command(executor: &Resuming, directory: &str, error: &ExecutorError) -> Result<(), String> {
    const TEXT: &str = r#"chmod -R u+rwX -- "$0" 2>/dev/null; exec rm -rf -- "$0" >/dev/null 2>&1"#;
    let command = Command::argv(["sh", "-c", TEXT, directory]).timeout(REMOVE_TIMEOUT);
    match run(executor, command).await {
        Ok((ExitCause::Exited(0), _)) => Ok(()),
        Ok(_) => Err(crate::chain(error)),
        Err(error) => Err(crate::chain(&error)),
    }
}

/// The directories of one bot on a target, so that several can work on one machine.
struct Place {
    work_dir: String,
    /// Its name is short, since sockets have short paths.
    own: String,
    function: DigestFunction,
    cache_size: u64,
}

impl Place {
    fn new(bot_id: &str, args: &Args) -> Self {
        let hash = DigestFunction::Sha256.digest(bot_id.as_bytes()).hash();
        let own = format!("{}/{}", args.work_dir, hash.get(..OWN_CHARACTERS).unwrap_or_default());
        Self { work_dir: args.work_dir.clone(), own, function: args.digest_function, cache_size: args.cache_size }
    }

    fn actions(&self) -> String {
        format!("{}/actions", self.own)
    }

    /// Makes the directories, or checks them, and returns their user. Others may pass through that of the actions, and see no
    /// names.
    async fn make(&self, sftp: &Sftp) -> Result<u32, OwnedError> {
        let user = owned::user(sftp, &self.work_dir).await?;
        owned::make(sftp, user, &self.work_dir, 0o755).await?;
        owned::make(sftp, user, &self.own, 0o755).await?;
        owned::make(sftp, user, &self.actions(), 0o711).await?;
        Ok(user)
    }

    async fn open_cache(&self, sftp: &Sftp, agent: &Agent) -> Result<Cache, TargetError> {
        let user = self.make(sftp).await?;
        let boot = boot_id(sftp).await?;
        let name = format!("cas.{boot}");
        for (other, _) in sftp.list(&self.own).await? {
            if other.starts_with(b"cas.") && other != name.as_bytes() {
                let path = FilePath::new([self.own.as_bytes(), b"/", &other].concat());
                agent.files().remove(FileTarget { path, user: None }, true).await?;
            }
        }
        let directory = format!("{}/{name}", self.own);
        Cache::open(sftp, user, agent.files(), directory, boot, self.function, self.cache_size).await
    }
}

async fn boot_id(sftp: &Sftp) -> Result<String, SftpError> {
    let boot = sftp.content(BOOT_ID, 64).await?;
    Ok(String::from_utf8_lossy(&boot).trim().to_owned())
}

/// The users that actions may run as, who must be there.
async fn users(executor: &Resuming, args: &Args) -> Result<HashMap<String, Owner>, ExecutorError> {
    let mut users = HashMap::new();
    for user in args.user.iter().chain(&args.allowed_users) {
        let (_, text) = run(executor, Command::argv(["sh", "-c", "id -u; id -g"]).user(user)).await?;
        let text = String::from_utf8_lossy(&text);
        let mut numbers = text.lines().map(str::parse);
        let (Some(Ok(uid)), Some(Ok(gid))) = (numbers.next(), numbers.next()) else {
            return Err(ExecutorError::Internal(format!("id printed no numbers for the user {user}")));
        };
        users.insert(user.clone(), Owner { user: uid, group: gid });
    }
    Ok(users)
}

/// How many processors a command there may use.
async fn processors(executor: &Resuming) -> Result<usize, ExecutorError> {
    let (_, output) = run(executor, Command::argv(["nproc"])).await?;
    let number = String::from_utf8_lossy(&output).trim().parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| ExecutorError::Internal("nproc printed no number: say --concurrency".to_owned()))
}

/// How a command of this worker ended, and what it printed.
async fn run(executor: &Resuming, command: CommandBuilder) -> Result<(ExitCause, Vec<u8>), ExecutorError> {
    let mut execution = executor.execute(command.build()?).await?;
    let mut text = Vec::new();
    while let Some(event) = execution.next().await {
        match event? {
            Event::Output(output) => text.extend_from_slice(&output.data),
            Event::Exited(exited) => return Ok((exited.cause, text)),
            _ => {}
        }
    }
    Err(ExecutorError::Internal("the agent did not say how the command ended".to_owned()))
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
