//! Programs that call ssh, unmodified, at their usual work.

use std::fmt::Write as _;

use telexec_tests::{Agent, Proxy, children, until, within};

use super::{Site, same};

impl Site {
    /// A directory of 40 files, one of them of a few megabytes.
    fn files(&self) {
        for number in 0..40 {
            self.write(&format!("files/d{}/f{number}", number % 4), format!("{number}\n").repeat(number * 50));
        }
        let big: Vec<u8> = (0..1_500_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        self.write("files/big", big);
    }

    /// Another name for a target, whose connections break again and again.
    async fn broken(&self, agent: &Agent) -> Proxy {
        let proxy = Proxy::before(agent).await;
        self.named("broken", &proxy);
        proxy.cut_each_after(100_000..900_000, 1);
        proxy
    }

    /// A name for what is behind a proxy.
    fn named(&self, name: &str, proxy: &Proxy) {
        let path = self.path("home/.config/telexec/config.toml");
        let mut config = std::fs::read_to_string(&path).unwrap();
        write!(config, "[targets.{name}]\naddress = '{}'\n", proxy.uri()).unwrap();
        std::fs::write(path, config).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn git_clones_pushes_and_fetches() {
    let site = Site::new();
    site.files();
    site.write("home/.gitconfig", "[user]\nname = a\nemail = a@b\n[init]\ndefaultBranch = main\n");
    let url = site.text("repository.git");
    let text = format!(
        "set -e; git init -q --bare {url}
        export GIT_SSH_COMMAND='telexec ssh'
        git clone -q web1:{url} one 2>/dev/null
        cp -r files one; cd one; git add .; git commit -qm first; git push -q origin main
        GIT_SSH=telexec-ssh git clone -q ssh://web2:22{url} ../two
        date >new; git add .; git commit -qm second; git push -q
        cd ../two; git config core.sshCommand telexec-ssh; unset GIT_SSH_COMMAND
        git fetch -q; git merge -q --ff-only origin/main; git log --format=%s"
    );
    assert_eq!(site.done(&text).await, "second\nfirst\n");
    assert!(same(&site.path("one/files"), &site.path("two/files")));
    let missing = site.run("GIT_SSH_COMMAND='telexec ssh' git ls-remote web1:/no/such/repository").await;
    assert!(missing.code == 128 && missing.stderr.contains("/no/such/repository"), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rsync_copies_both_ways_and_removes() {
    let site = Site::new();
    site.files();
    let (up, down) = (site.text("up"), site.path("down"));
    site.write("up/old", "to be removed");
    site.done(&format!("rsync -a --delete --partial -e telexec-ssh files/ web1:{up}/")).await;
    assert!(same(&site.path("files"), &site.path("up")));
    // a part is gone on with
    site.done("rm -r files/d1; truncate -s 1000000 up/big; echo more >>files/d2/f2").await;
    site.done(&format!("rsync -a --delete --partial --inplace -e 'telexec ssh -o BatchMode=yes' files/ web1:{up}/"))
        .await;
    assert!(same(&site.path("files"), &site.path("up")));
    site.done(&format!("RSYNC_RSH='telexec ssh' rsync -a web2:{up}/ down")).await;
    assert!(same(&site.path("files"), &down));
}

#[tokio::test(flavor = "multi_thread")]
async fn rsync_and_git_notice_nothing_of_connections_that_break() {
    let site = Site::new();
    site.files();
    let agent = Agent::start();
    let proxy = site.broken(&agent).await;
    let (files, url) = (site.text("files"), site.text("repository"));
    site.write("home/.gitconfig", "[user]\nname = a\nemail = a@b\n");
    site.done(&format!("cp -r {files} {url}; cd {url}; git init -q; git add .; git commit -qm all")).await;
    site.done(&format!("GIT_SSH_COMMAND=telexec-ssh git clone -q broken:{url} cloned && rm -rf cloned/.git")).await;
    assert!(same(&site.path("files"), &site.path("cloned")));
    site.done(&format!("rsync -a -e telexec-ssh broken:{files}/ copy")).await;
    assert!(same(&site.path("files"), &site.path("copy")));
    assert!(proxy.accepted() > 5, "there were cuts: {}", proxy.accepted());
}

#[tokio::test(flavor = "multi_thread")]
async fn rsync_continues_what_was_cut_ten_times() {
    let site = Site::new();
    let agent = Agent::start();
    let proxy = Proxy::before(&agent).await;
    site.named("cut", &proxy);
    let content: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(30_000_000).collect();
    let (source, there) = (site.write("big", &content), site.path("there"));
    std::fs::create_dir(&there).unwrap();
    let copy = there.join("big");
    let written = || std::fs::metadata(&copy).map_or(0, |file| file.len());
    let rsync = |limit: &str| {
        let mut rsync = site.command("rsync");
        rsync.args(["--partial", "--inplace", "--no-whole-file", limit, "-e", "telexec-ssh"]);
        rsync.arg(&source).arg(format!("cut:{}/", there.display())).env("TELEXEC_RECONNECT", "0");
        rsync
    };
    for round in 1..=10 {
        // seconds are left to cut it
        let child = rsync("--bwlimit=4m").spawn().unwrap();
        until("some of it has arrived", async || written() >= round * 1_000_000).await;
        proxy.cut();
        let output = within(child.wait_with_output()).await.unwrap();
        assert!(!output.status.success() && written() < content.len() as u64, "it was cut: {output:?}");
        until("nothing of it is left there", async || children(agent.pid()).is_empty()).await;
    }
    let output = within(rsync("--bwlimit=0").output()).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(std::fs::read(&copy).unwrap() == content);
    assert_eq!(std::fs::read_dir(&there).unwrap().count(), 1, "no temporary file is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn scp_copies_with_the_remote_program() {
    let site = Site::new();
    site.files();
    std::fs::create_dir(site.path("up")).unwrap();
    site.done(&format!("scp -q -O -S telexec-ssh -rp files web1:{}", site.text("up"))).await;
    assert!(same(&site.path("files"), &site.path("up/files")));
    site.done(&format!("scp -q -O -S telexec-ssh -P 22 web2:{} down", site.text("up/files/big"))).await;
    assert!(same(&site.path("files/big"), &site.path("down")));
}

#[tokio::test(flavor = "multi_thread")]
async fn scp_and_sftp_copy_by_the_subsystem() {
    let site = Site::new();
    site.files();
    std::fs::create_dir(site.path("up")).unwrap();
    site.done(&format!("scp -q -S telexec-ssh -rp files web1:{}", site.text("up"))).await;
    assert!(same(&site.path("files"), &site.path("up/files")));
    site.done(&format!("scp -q -S telexec-ssh web2:{} down", site.text("up/files/big"))).await;
    assert!(same(&site.path("files/big"), &site.path("down")));
    site.write(
        "batch",
        format!(
            "cd {}\nput files/big part\nreget part again\nrename part whole\nsymlink whole link\nmkdir d\nls -l\n\
             chmod 600 whole\nget -r files fetched\nrm link\nrmdir d\n-rm none\n",
            site.text("up")
        ),
    );
    let said = site.done("sftp -q -b batch -S telexec-ssh web1").await;
    assert!(said.contains("link -> ") || said.contains("link"), "{said}");
    // many small requests at once, as few servers are asked
    site.done(&format!("sftp -q -B 4096 -R 1000 -S telexec-ssh web1:{} many", site.text("up/whole"))).await;
    assert!(same(&site.path("files/big"), &site.path("many")));
    assert!(same(&site.path("files/big"), &site.path("up/whole")) && same(&site.path("files"), &site.path("fetched")));
    let missing = site.run(&format!("scp -q -S telexec-ssh web1:{} x", site.text("none"))).await;
    assert!(missing.code == 1 && missing.stderr.contains("No such file"), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sshfs_is_a_file_system() {
    let site = Site::new();
    site.files();
    site.write("home/.gitconfig", "[user]\nname = a\nemail = a@b\n");
    std::fs::create_dir_all(site.path("there/dir")).unwrap();
    let (mount, there) = (site.text("mount"), site.text("there"));
    let text = format!(
        "set -e; mkdir {mount}; sshfs -o ssh_command=telexec-ssh web1:{there} {mount}
        trap 'cd /; fusermount3 -u {mount}' EXIT
        cp -r files {mount}/; cd {mount}; git init -q; git add .; git commit -qm all; git status --porcelain
        echo one >a; echo two >b; mv b a; cat a; ln -s a link; cat link; truncate -s 3 a; stat -c %s a; rmdir dir
        chmod 640 a; df . | wc -l; rm link; ls"
    );
    assert_eq!(site.done(&text).await, "two\ntwo\n3\n2\na\nfiles\n");
    assert!(same(&site.path("files"), &site.path("there/files")));
}

#[tokio::test(flavor = "multi_thread")]
async fn rclone_and_restic_agree_with_what_is_there() {
    let site = Site::new();
    site.files();
    let up = site.text("up");
    let rclone = std::env::var("RCLONE").expect("RCLONE names no rclone: run tests/run, which installs it");
    let remote = format!(":sftp,ssh=\"telexec-ssh web1\",shell_type=unix:{up}");
    site.done(&format!("{rclone} copy -q files '{remote}' && {rclone} check -q files '{remote}'")).await;
    assert!(same(&site.path("files"), &site.path("up")));
    site.done("echo other >up/d1/f1").await;
    assert_ne!(site.run(&format!("{rclone} check -q files '{remote}'")).await.code, 0);
    let text = format!(
        "set -e; export RESTIC_PASSWORD=secret RESTIC_REPOSITORY=sftp:web1:{} XDG_CACHE_HOME=$PWD/cache
        r() {{ restic -q -o sftp.command='telexec-ssh web1 -s sftp' \"$@\"; }}
        r init; r backup files; r check; r restore latest --target restored",
        site.text("restic")
    );
    site.done(&text).await;
    assert!(same(&site.path("files"), &site.path("restored/files")));
}

#[tokio::test(flavor = "multi_thread")]
async fn gnu_parallel_spreads_work() {
    let site = Site::new();
    let jobs =
        "parallel --will-cite -k --ssh telexec-ssh -S 2/web1,2/web2 'sleep 0.2; echo {} $MACHINE' ::: 1 2 3 4 5 6 7 8";
    let said = site.done(jobs).await;
    let numbers: Vec<_> = said.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(numbers, ["1", "2", "3", "4", "5", "6", "7", "8"]);
    assert!(said.contains(" one") && said.contains(" two"), "{said}");
    // how many jobs it may start, it asks the machine
    assert!(!site.run("parallel --will-cite --ssh telexec-ssh -S web1 echo ::: 1").await.stderr.contains("Warning"));
}

#[tokio::test(flavor = "multi_thread")]
async fn clush_and_pdsh_run_everywhere() {
    let site = Site::new();
    let said = site.done("clush -O ssh_path=telexec-ssh -w web1,web2 'echo $MACHINE' | sort").await;
    assert_eq!(said, "web1: one\nweb2: two\n");
    let failed = site.run("clush -S -O ssh_path=telexec-ssh -w web1,gone 'exit 3'").await;
    assert!(failed.code == 255 && failed.stderr.contains("web1: exited with exit code 3"), "{failed:?}");
    // it knows no other name than ssh
    assert_eq!(site.done("pdsh -R ssh -w web1,web2 'echo $MACHINE' | sort").await, "web1: one\nweb2: two\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn distcc_compiles_elsewhere() {
    let site = Site::new();
    site.write("hello.c", "#include <stdio.h>\nint main(void) { return puts(\"hello\") < 0; }\n");
    std::fs::create_dir(site.path("state")).unwrap();
    let settings =
        format!("DISTCC_SSH=telexec-ssh DISTCC_HOSTS=@web1 DISTCC_FALLBACK=0 DISTCC_DIR={}", site.text("state"));
    site.done(&format!("{settings} distcc gcc -c hello.c -o hello.o && gcc hello.o -o hello")).await;
    assert_eq!(site.done("./hello").await, "hello\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn borg_backs_up_and_restores() {
    let site = Site::new();
    site.files();
    let text = format!(
        "set -e; export BORG_RSH=telexec-ssh BORG_REPO=ssh://web1{} BORG_PASSPHRASE=secret
        borg init -e repokey; borg create ::first files; mkdir restored; cd restored; borg extract ::first",
        site.text("backup")
    );
    site.done(&text).await;
    assert!(same(&site.path("files"), &site.path("restored/files")));
}
