//! `telexecd`: the agent.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal as Number, getrlimit, set_dumpable_behavior, setrlimit,
};
use telexec_engine::Keeper;
use telexec_executor::text::error_chain;
use telexec_server::args::Args;
use telexec_server::process::agent_user::{self, AgentUserError, Prepared, prepare, user_to_become};
use telexec_server::process::keeper::{self, become_keeper};
use telexec_server::process::orphans::Orphans;
use telexec_server::process::restrictions::{RulesetStatus, restrict};
use telexec_server::process::upgrade::{UpgradeError, check, check_as_next, refuse};
use telexec_server::process::{dynamic_users, machine};
use telexec_server::{
    BindError, Config, ConfigError, Ending, KeeperMode, KeptSockets, Listeners, PolicyError, ServeError, logging,
    serve, serve_if_asked,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// EX_CONFIG of sysexits.h.
const BAD_CONFIG: u8 = 78;

fn main() -> ExitCode {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    telexec_engine::look_up_in_files();
    if let Some(code) = serve_if_asked() {
        return code;
    }
    if let Err(error) = keep_memory_private() {
        return fail(&error, 1);
    }
    let code = act(&Args::parse());
    logging::flush();
    machine::power_off_if_init();
    code
}

fn act(args: &Args) -> ExitCode {
    if let Some(subcommand) = &args.subcommand {
        let done = subcommand.run(args, &mut std::io::stdout().lock());
        return done.map_or_else(|error| fail(error.as_ref(), BAD_CONFIG), ExitCode::from);
    }
    let kept_by = match if args.check_config { Ok(None) } else { Keeper::inherited() } {
        Ok(keeper) => keeper,
        Err(error) => return fail(&error, 1),
    };
    let config = match args.config() {
        Ok(config) => config,
        Err(error) => return fail(&error, BAD_CONFIG),
    };
    // before it cannot read what only root can
    let becomes_another = !args.check_config && kept_by.is_none() && user_to_become(&config).is_some();
    if becomes_another && config.keeper != KeeperMode::Off && !rustix::process::geteuid().is_root() {
        return fail(&AgentUserError::NotRoot, BAD_CONFIG);
    }
    if let Err(error) = config.check() {
        return fail(&error, BAD_CONFIG);
    }
    // before there is another thread
    let landlock = match kept_by.as_ref().filter(|keeper| keeper.is_of_another_user()).map(|_| restrict(&config)) {
        Some(Err(error)) => return fail(&error, 1),
        restricted => restricted.and_then(Result::ok),
    };
    if let Err(error) = logging::start(&config) {
        return fail(&error, BAD_CONFIG);
    }
    // who only checks may be another user than who runs it
    let checks_users = kept_by.is_none() && (!args.check_config || rustix::process::geteuid().is_root());
    if let Err(error) = config.users.filter(|_| checks_users).map_or(Ok(()), |_| dynamic_users::check()) {
        return fail(&error, BAD_CONFIG);
    }
    if args.check_config {
        // who only checks may do so where there is no agent
        if rustix::process::geteuid().is_root()
            && let Err(error) = keeper::decide(&config)
        {
            return fail(&error, BAD_CONFIG);
        }
        if let Err(error) = user_to_become(&config).map_or(Ok(()), |name| agent_user::check(&config, name, args.file()))
        {
            return fail(&error, BAD_CONFIG);
        }
        if let Err(error) = check_as_next(&config) {
            return fail(&error, BAD_CONFIG);
        }
        return match config.check_expiry().and_then(|()| config.warnings()) {
            Ok(warnings) => valid(&warnings),
            Err(error) => fail(&error, BAD_CONFIG),
        };
    }
    if kept_by.is_none() {
        match start_keeper(&config, args.file()) {
            Ok(()) => {}
            Err((error, code)) => return fail(error.as_ref(), code),
        }
    }
    if kept_by.is_none() && config.agent_user.is_some() {
        tracing::warn!(
            "agent_user: telexecd was started as this user: commands run as it too, and can read its files, such as keys"
        );
    }
    if landlock == Some(RulesetStatus::NotEnforced) {
        tracing::warn!("agent_user: this kernel has no Landlock: the agent may write wherever its user may");
    }
    match run(Config { kept_by, ..config }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error.as_ref(), code_of(error.as_ref())),
    }
}

/// Becomes the keeper, if there is to be one. `Err`: this process ends with this error and code.
fn start_keeper(config: &Config, file: Option<&Path>) -> Result<(), (Box<dyn std::error::Error>, u8)> {
    // before anything changes for it
    if !keeper::decide(config).map_err(|error| (error.into(), BAD_CONFIG))? {
        return Ok(());
    }
    let (command_users, agent_user) = match user_to_become(config) {
        Some(name) => {
            let Prepared { agent_user, command_users } =
                prepare(config, name, file).map_err(|error| (error.into(), BAD_CONFIG))?;
            (command_users, Some(agent_user))
        }
        None => {
            let users = config.allowed_users();
            (users.map_err(|error| (AgentUserError::CommandUsers(error).into(), 1))?, None)
        }
    };
    let user = agent_user.as_ref().map(|agent_user| &agent_user.credentials);
    let sockets = KeptSockets::bind(config, user).map_err(|error| {
        let code = code_of(&error);
        (error.into(), code)
    })?;
    logging::flush();
    match become_keeper(command_users.as_ref(), agent_user.as_ref(), config, &sockets) {
        Ok(never) => match never {},
        Err(error) => Err((error.into(), 1)),
    }
}

fn valid(warnings: &[String]) -> ExitCode {
    for warning in warnings {
        logging::line(&format!("telexecd: warning: {warning}"));
    }
    logging::line("telexecd: the configuration is valid");
    ExitCode::SUCCESS
}

/// Some mistakes show only at the start, such as a host name that is not this machine's.
fn code_of(error: &(dyn std::error::Error + 'static)) -> u8 {
    let binding = matches!(error.downcast_ref(), Some(BindError::Config(_)));
    let serving = matches!(error.downcast_ref(), Some(ServeError::Config(_)));
    if binding || serving { BAD_CONFIG } else { 1 }
}

fn run(config: Config) -> Result<(), Box<dyn std::error::Error>> {
    let config = Config { serves_files: true, ..config };
    raise_file_limit();
    keep_heap();
    let threads = config.worker_threads;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let result = runtime.block_on(serve_until_signalled(config));
    // does not wait for threads that are stuck in the kernel, say on a dead network file system
    runtime.shutdown_background();
    result
}

async fn serve_until_signalled(config: Config) -> Result<(), Box<dyn std::error::Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    // beyond RLIMIT_FSIZE writes then fail, instead of killing the agent
    let _too_large = signal(SignalKind::from_raw(Number::XFSZ.as_raw()))?;
    // a keeper has them, and all other children
    let orphans = match &config.kept_by {
        Some(_) => None,
        None => Some(Orphans::adopt()?),
    };
    let keeper = config.kept_by.clone();
    let mut upgrade = signal(SignalKind::user_defined2())?;
    let (may_exit, exits) = oneshot::channel();
    let keeper_of_next = config.kept_by.clone();
    let own = config.kept_by.is_some().then(|| config.clone());
    let kill_grace = config.kill_grace.min(config.max_kill_grace);
    let listeners = Listeners::bind(&config).await?;
    let (addresses, metrics) = (listeners.addresses(), listeners.metrics_address());
    let reload = listeners.reload();
    tokio::spawn(logging::limit::follow());
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reload.ask();
        }
    });
    let shutdown = async move {
        // first polled when the agent serves
        if let Some(address) = metrics {
            logging::line(&format!("metrics on {address}"));
        }
        for address in addresses {
            logging::line(&format!("listening on {address}"));
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        keeper.iter().for_each(Keeper::ready);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = asked_to_hand_over(&mut upgrade, own) => return Ending::HandOver(may_exit),
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        keeper.iter().for_each(Keeper::stopping);
        Ending::Shutdown
    };
    // not dropped when this process hands over: what is dropped would be ended, or forgotten
    let serving = serve(config, listeners, shutdown);
    tokio::pin!(serving);
    let result = tokio::select! {
        result = &mut serving => result,
        Ok(()) = exits => {
            keeper_of_next.iter().for_each(Keeper::hands_over);
            logging::flush();
            std::process::exit(0);
        }
    };
    if let Some(orphans) = orphans {
        orphans.end_if_init(kill_grace).await;
    }
    logging::limit::report_suppressed();
    Ok(result?)
}

/// How long the program on disk may take to check the configuration.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns when the program on disk is to take the place of this one, and can. `config`: this agent's; `None`: it has no keeper.
async fn asked_to_hand_over(asked: &mut Signal, config: Option<Config>) {
    while asked.recv().await.is_some() {
        let Some(config) = &config else {
            tracing::error!("cannot hand over to the programs on disk: there is no keeper (see --keeper)");
            continue;
        };
        match can_hand_over(config.clone()).await {
            Ok(()) => return,
            Err(error) => tracing::error!(error = error_chain(&error), "cannot hand over to the programs on disk"),
        }
    }
    std::future::pending().await
}

async fn can_hand_over(config: Config) -> Result<(), UpgradeError> {
    let (answer, checked) = oneshot::channel();
    let check = move || answer.send(check(&config).inspect_err(|error| refuse(&config, error)));
    std::thread::Builder::new().name("upgrade".into()).spawn(check).map_err(UpgradeError::Check)?;
    match tokio::time::timeout(CHECK_TIMEOUT, checked).await {
        Ok(Ok(checked)) => checked,
        Ok(Err(_)) | Err(_) => Err(UpgradeError::NoAnswer),
    }
}

/// The agent holds its private key and the secrets of all callers: no other process of its user, commands above all, may
/// trace it or read its memory, and it leaves no core dump. execve resets this for commands. See PR_SET_DUMPABLE(2const).
fn keep_memory_private() -> std::io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Each execution takes some descriptors. Commands have limits of their own.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Free memory kept at the top of each of the allocator's heaps.
const KEPT_HEAP_BYTES: usize = 4 * 1024 * 1024;

/// glibc returns the top of a heap to the kernel when 128 KiB of it are free, and takes it again for the next chunks of
/// output, which costs a tenth of the time of a fast stream. Freeing a large block raises that threshold: see
/// M_MMAP_THRESHOLD in mallopt(3). The block is never touched, so it takes no memory.
fn keep_heap() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(KEPT_HEAP_BYTES / 2)));
}

fn fail(error: &(dyn std::error::Error + 'static), code: u8) -> ExitCode {
    for line in lines(error) {
        logging::line(&format!("telexecd: {line}"));
    }
    ExitCode::from(code)
}

/// An error with its causes; each fault of a policy on a line of its own.
fn lines(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    match error.downcast_ref() {
        Some(ConfigError::Policy(PolicyError::Invalid { faults })) => faults.clone(),
        _ => vec![error_chain(error)],
    }
}
