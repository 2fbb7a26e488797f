//! What copies files: `telexec cp` beside scp and rsync, and a file system mounted over telexec beside one over ssh.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Stdio};
use std::time::{Duration, Instant};

use telexec_tests::{Agent, Certs, Sshd, bench_agent, program};
use tempfile::TempDir;

use crate::contest::{Contestant, contest};
use crate::relay::{Digested, over_tls, relay};
use crate::table::{Aim, Table};
use crate::way::{MEBIBYTE, Way};
use crate::{Plan, Result};

const SMALL_BYTES: usize = 4096;
const HOST: &str = "127.0.1.1";

/// A directory in memory, so that no disk is measured; an agent behind mTLS, and an sshd, that both write to it.
struct Site {
    certs: Certs,
    agent: Agent,
    sshd: Sshd,
    directory: TempDir,
}

impl Site {
    fn start() -> Result<Self> {
        let certs = Certs::new();
        let agent = bench_agent().mtls(&certs).start();
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }?;
        // sshd's user is another one
        fs::set_permissions(directory.path(), Permissions::from_mode(0o777))?;
        let config = format!(
            "[targets.'{HOST}']\naddress = {:?}\nserver_name = 'localhost'\ncert = {:?}\nkey = {:?}\nca = {:?}\n",
            agent.address(),
            certs.client.cert,
            certs.client.key,
            certs.ca.cert()
        );
        fs::write(directory.path().join("telexec.toml"), config)?;
        Ok(Self { sshd: Sshd::start(1)?, certs, agent, directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The same at the other machine, which is this one.
    fn remote(&self, name: &str) -> String {
        format!("{HOST}:{}", self.path(name).display())
    }

    fn telexec(&self, words: &[&str]) -> Program {
        let mut command = Program::new(program("telexec"));
        command.args(words).env("TELEXEC_CONFIG", self.path("telexec.toml"));
        command
    }

    /// With connections made anew, as telexec's are.
    fn scp(&self, words: &[&str]) -> Program {
        let mut command = Program::new("scp");
        command.arg("-F").arg(self.sshd.config(false)).arg("-q").args(words);
        command
    }

    fn rsync(&self, words: &[&str]) -> Program {
        let mut command = Program::new("rsync");
        let shell = format!("ssh -F {}", self.sshd.config(false).display());
        command.args(["--whole-file", "--rsh", &shell]).args(words);
        command
    }

    /// Whatever was copied last is gone.
    fn removed(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        match fs::symlink_metadata(&path) {
            Ok(file) if file.is_dir() => Ok(fs::remove_dir_all(path)?),
            Ok(_) => Ok(fs::remove_file(path)?),
            Err(_) => Ok(()),
        }
    }
}

/// How long it takes, and all is well.
fn run(mut command: Program) -> Result<Duration> {
    let begin = Instant::now();
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output()?;
    let time = begin.elapsed();
    if output.status.success() {
        return Ok(time);
    }
    let (name, said) = (command.get_program().display().to_string(), String::from_utf8_lossy(&output.stderr));
    Err(format!("{name}: {}: {said}", output.status).into())
}

/// Says so, and returns true, if there is nothing to compare with.
fn is_missing(programs: &[&str]) -> bool {
    Sshd::missing(programs).inspect(|why| println!("  not compared with ssh: {why}")).is_some()
}

/// A file of 1 GiB; the limit is a relay that reads it, sends it through TLS and writes it. One that also has both ends
/// digest it, as a copy does, is printed beside it.
pub(crate) async fn large(plan: &Plan, table: &mut Table) -> Result<()> {
    if is_missing(&["scp", "rsync"]) {
        return Ok(());
    }
    let site = Site::start()?;
    let bytes = plan.some(1024) as u64 * MEBIBYTE;
    // nothing that could be compressed, or left out
    relay(std::io::Read::take(File::open("/dev/urandom")?, bytes), File::create(site.path("source"))?)?;
    let (here, copy) = (site.path("source").display().to_string(), site.path("copy").display().to_string());
    let (source, target) = (site.remote("source"), site.remote("copy"));
    let cp = |from: &str, to: &str| site.telexec(&["cp", "-q", from, to]);
    let mut ways = vec![
        Way::new("relay, TLS"),
        Way::new("relay, TLS, SHA-256").beside("relay, TLS", None),
        Way::new("scp"),
        Way::new("rsync"),
        Way::new("telexec cp").of(&site.agent).beside("relay, TLS", 0.8),
        Way::new("telexec cp, and scp").of(&site.agent).beside("scp", 1.5),
        Way::new("telexec cp, and rsync").of(&site.agent).beside("rsync", None),
        Way::new("scp, from the machine"),
        Way::new("telexec cp, from the machine").of(&site.agent).beside("relay, TLS", 0.8),
        Way::new("telexec cp, and scp, from the machine").of(&site.agent).beside("scp, from the machine", 1.5),
    ];
    for _ in 0..if plan.short { 1 } else { 5 } {
        for way in &mut ways {
            site.removed("copy")?;
            let command = match way.name {
                "relay, TLS" => {
                    let (from, to) = (File::open(&here)?, File::create(&copy)?);
                    way.go(bytes, async { over_tls(&site.certs, from, |taken| Ok(relay(taken, to)?)) }).await?;
                    continue;
                }
                "relay, TLS, SHA-256" => {
                    let (from, to) = (Digested::new(File::open(&here)?), Digested::new(File::create(&copy)?));
                    way.go(bytes, async { over_tls(&site.certs, from, |taken| Ok(relay(taken, to)?)) }).await?;
                    continue;
                }
                "scp" => site.scp(&[&here, &target]),
                "rsync" => site.rsync(&[&here, &target]),
                "scp, from the machine" => site.scp(&[&source, &copy]),
                name if name.ends_with("from the machine") => cp(&source, &copy),
                _ => cp(&here, &target),
            };
            let copied = async {
                run(command)?;
                Ok(fs::metadata(&copy)?.len())
            };
            way.go(bytes, copied).await?;
        }
    }
    Way::add_all(&ways, table);
    Ok(())
}

/// 10,000 files of 4 KiB in 100 directories.
pub(crate) async fn small(plan: &Plan, table: &mut Table) -> Result<()> {
    if is_missing(&["scp", "rsync"]) {
        return Ok(());
    }
    let site = Site::start()?;
    for number in 0..plan.some(10_000) {
        let directory = site.path("tree").join((number / 100).to_string());
        fs::create_dir_all(&directory)?;
        let content: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(SMALL_BYTES).collect();
        fs::write(directory.join(number.to_string()), content)?;
    }
    let (here, source) = (site.path("tree").display().to_string(), site.remote("tree"));
    let (copy, target) = (site.path("copy").display().to_string(), site.remote("copy"));
    let anew = |command: Program| async {
        site.removed("copy")?;
        run(command)
    };
    let contestants = vec![
        Contestant::new("scp -r", || anew(site.scp(&["-r", &here, &target]))),
        Contestant::new("rsync -r", || anew(site.rsync(&["-r", &format!("{here}/"), &target]))),
        Contestant::new("telexec cp -r", || anew(site.telexec(&["cp", "-q", "-r", &here, &target])))
            .agent(site.agent.pid())
            .aim(Aim::RatioAtMost(0.2)),
    ];
    contest(plan, table, 5, contestants).await?;
    let contestants = vec![
        Contestant::new("scp -r, from the machine", || anew(site.scp(&["-r", &source, &copy]))),
        Contestant::new("telexec cp -r, from the machine", || anew(site.telexec(&["cp", "-q", "-r", &source, &copy])))
            .agent(site.agent.pid())
            .aim(Aim::RatioAtMost(0.2)),
    ];
    contest(plan, table, 5, contestants).await?;
    Ok(())
}

/// `git status` of 1,000 files in a new mount.
pub(crate) async fn mounted(plan: &Plan, table: &mut Table) -> Result<()> {
    if is_missing(&["sshfs", "fusermount3", "git"]) {
        return Ok(());
    }
    let site = Site::start()?;
    let repository = site.path("repository");
    for number in 0..plan.some(1000) {
        let directory = repository.join((number / 50).to_string());
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(number.to_string()), number.to_string())?;
    }
    for words in [&["init", "-q"][..], &["add", "."]] {
        run(git(&repository, words))?;
    }
    // git looks closer at what is newer than its index, and who owns it is no matter here
    run(git(&repository, &["config", "core.checkStat", "minimal"]))?;
    let mount = site.path("mount");
    fs::create_dir(&mount)?;
    let telexec = site.path("telexec-ssh");
    std::os::unix::fs::symlink(program("telexec"), &telexec)?;
    let status = |options: [String; 2]| {
        let (site, mount) = (&site, &mount);
        async move {
            let mut sshfs = Program::new("sshfs");
            sshfs.arg(site.remote("repository")).arg(mount).args(options.iter().flat_map(|option| ["-o", option]));
            run({
                sshfs.env("TELEXEC_CONFIG", site.path("telexec.toml"));
                sshfs
            })?;
            let time = run(git(mount, &["status", "--short"]));
            let mut unmount = Program::new("fusermount3");
            unmount.arg("-u").arg(mount);
            run(unmount)?;
            time
        }
    };
    let ssh = [format!("ssh_command=ssh -F {}", site.sshd.config(false).display()), "reconnect".to_owned()];
    let own = [format!("ssh_command={}", telexec.display()), "reconnect".to_owned()];
    let contestants = vec![
        Contestant::new("git status, sshfs over ssh", || status(ssh.clone())),
        Contestant::new("git status, sshfs over telexec ssh", || status(own.clone()))
            .agent(site.agent.pid())
            .aim(Aim::RatioAtMost(1.0)),
    ];
    contest(plan, table, 20, contestants).await?;
    Ok(())
}

fn git(directory: &Path, words: &[&str]) -> Program {
    let mut command = Program::new("git");
    command.args(["-c", "safe.directory=*", "-C"]).arg(directory).args(words);
    command
}
