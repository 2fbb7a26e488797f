//! `telexec receipt`, and `--receipt` of `exec` and `fleet`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use telexec_tests::{Agent, directory};
use tokio::io::AsyncWriteExt;

use super::troubleshooting::shows;
use super::{Said, say, telexec};
use crate::receipts::Key;

/// A directory with the public key of an agent, by `telexec receipt key`.
struct Desk {
    agent: Agent,
    directory: tempfile::TempDir,
}

impl Desk {
    async fn new(key: &Key) -> Self {
        let (agent, directory) = (key.agent().start(), directory());
        let public = say(&["receipt", "key", agent.uri()]).await;
        assert_eq!(public.answer(), key.public.to_pem());
        std::fs::write(directory.path().join("web1.pub"), &public.stdout).unwrap();
        Self { agent, directory }
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.path().join(name)).unwrap()
    }

    /// `telexec` there.
    async fn say(&self, args: &[&str]) -> Said {
        let mut command = telexec(args.iter().map(|word| if *word == "T" { self.agent.uri() } else { word }));
        command.current_dir(self.directory.path());
        Said::by(command).await
    }
}

#[tokio::test]
async fn a_receipt_is_written_and_verified() {
    let desk = Desk::new(&Key::new()).await;
    let said = desk.say(&["exec", "--receipt-file", "r", "T", "sh", "-c", "echo out; exit 3"]).await;
    assert_eq!((said.code, said.stdout(), said.stderr()), (3, "out\n", ""));
    std::fs::write(desk.directory.path().join("out"), "out\n").unwrap();
    std::fs::write(desk.directory.path().join("other"), "out\n\n").unwrap();
    let verify = ["receipt", "verify", "--key", "web1.pub"];
    let said = desk.say(&[&verify[..], &["--stdout", "out", "r"]].concat()).await;
    for line in
        ["signed by:      web1.pub (key ", "program:        sh -c 'echo out; exit 3'\n", "exit:           code 3\n"]
    {
        assert!(said.answer().contains(line), "{}", said.stdout());
    }
    let said = desk.say(&[&verify[..], &["--json", "r"]].concat()).await;
    let statement: Value = serde_json::from_str(said.answer()).unwrap();
    assert_eq!(statement["predicate"]["end"]["exitCode"], 3);
    let id = statement["predicate"]["executionId"].as_str().unwrap().to_owned();
    assert_eq!(desk.say(&["receipt", "get", "T", &id]).await.answer(), desk.file("r"));

    let said = desk.say(&[&verify[..], &["--stdout", "other", "r"]].concat()).await;
    assert!(said.failure(1).contains("other: this is not what the command wrote to stdout"), "{said:?}");
    std::fs::write(desk.directory.path().join("other.pub"), Key::new().public.to_pem()).unwrap();
    let said = desk.say(&["receipt", "verify", "--key", "other.pub", "r"]).await;
    assert!(said.failure(1).contains("r: none of the given keys has signed it: it names the key "), "{said:?}");
    shows("none of the given keys has signed it: …", said.stderr());
    let said = desk.say(&["receipt", "verify", "--key", "other.pub", "--key", "web1.pub", "r"]).await;
    assert!(said.answer().contains("signed by:      web1.pub (key "), "{said:?}");
    // both in one file, as well
    std::fs::write(desk.directory.path().join("all.pub"), desk.file("other.pub") + &desk.file("web1.pub")).unwrap();
    let said = desk.say(&["receipt", "verify", "--key", "all.pub", "r"]).await;
    assert!(said.answer().starts_with("signed by:      all.pub (key "), "{said:?}");
    let said = desk.say(&["receipt", "verify", "--key", "r", "r"]).await;
    assert!(said.failure(2).contains("--key: r: it has no public key in PEM"), "{said:?}");
    let said = desk.say(&["receipt", "verify", "--key", "web1.pub", "out"]).await;
    assert!(said.failure(1).contains("out: it is not a receipt"), "{said:?}");
    std::fs::write(desk.directory.path().join("changed"), desk.file("r").replacen("eyJ", "eyI", 1)).unwrap();
    let said = desk.say(&["receipt", "verify", "--key", "web1.pub", "changed"]).await;
    assert!(said.failure(1).contains("changed: its signature is not valid for what it says"), "{said:?}");
    shows("its signature is not valid for what it says: it was changed, or another key has signed it …", said.stderr());
    std::fs::write(desk.directory.path().join("long"), desk.file("r") + &" ".repeat(1 << 20)).unwrap();
    let said = desk.say(&["receipt", "verify", "--key", "web1.pub", "long"]).await;
    assert!(said.failure(1).contains("long: it is too long: over 1 MiB"), "{said:?}");
}

/// What a command is shown as is what ran, whatever it looks like on a terminal.
#[tokio::test]
async fn a_command_cannot_pass_for_another() {
    let desk = Desk::new(&Key::new()).await;
    let file = desk.directory.path().join("r");
    for (text, shown) in [
        (": <<X\n… ; : b\nX", "quoted:         $': <<X\\n… ; : b\\nX'\n"),
        (": a\u{3000}b", "quoted:         $': a\\U00003000b'\n"),
        (": a\u{202e}b", "quoted:         $': a\\U0000202eb'\n"),
        (": a\n: b", "command:        : a\n                : b\n"),
    ] {
        assert_eq!(desk.say(&["exec", "--receipt-file", "r", "T", "-c", text]).await.answer(), "");
        let said = desk.say(&["receipt", "verify", "--key", "web1.pub", "r"]).await;
        assert!(said.answer().contains(shown), "{}", said.stdout());
        let said = desk.say(&["receipt", "verify", "--key", "web1.pub", "--json", "r"]).await;
        assert!(said.answer().chars().all(|c| c == '\n' || c == ' ' || c.is_ascii_graphic()), "{said:?}");
        let statement: Value = serde_json::from_str(said.answer()).unwrap();
        assert_eq!(statement["predicate"]["request"]["command"], text);
        std::fs::remove_file(&file).unwrap();
    }
}

/// What matters of a request is seen.
#[tokio::test]
async fn what_was_asked_for_is_shown() {
    let desk = Desk::new(&Key::new()).await;
    let flags = ["--timeout", "90", "--no-new-privileges", "--merge", "-e", "A=hidden", "--reason", "a test"];
    let said = desk.say(&[&["exec", "--receipt-file", "r"], &flags[..], &["T", "echo", "hi"]].concat()).await;
    assert_eq!(said.answer(), "hi\n");
    let receipt = desk.file("r");
    let mut verify = telexec(["receipt", "verify", "--key", "web1.pub", "-"]);
    verify.current_dir(desk.directory.path()).stdin(Stdio::piped());
    let mut child = verify.spawn().unwrap();
    child.stdin.take().unwrap().write_all(receipt.as_bytes()).await.unwrap();
    let said = Said::by_child(child).await;
    for line in [
        "program:        echo hi\n",
        "timeout:        1m 30s\n",
        "no new privs:   yes\n",
        "variables:      A\n",
        "reason:         a test\n",
        "stderr:         in stdout\n",
        "left running:   nothing\n",
    ] {
        assert!(said.answer().contains(line), "{line} in {}", said.stdout());
    }
    assert!(!said.stdout().contains("hidden"), "{}", said.stdout());
    let said = desk.say(&["receipt", "verify", "--key", "web1.pub", "--stderr", "r", "r"]).await;
    assert!(said.failure(1).contains("the command's standard error is in its standard output"), "{said:?}");
    let long = format!(": {}", "x".repeat(17_000));
    assert_eq!(desk.say(&["exec", "--receipt-file", "long", "T", "-c", &long]).await.answer(), "");
    let said = desk.say(&["receipt", "verify", "--key", "web1.pub", "long"]).await;
    assert!(said.answer().contains("long command:   17002 bytes, SHA-256 "), "{}", said.stdout());
}

#[tokio::test]
async fn commands_in_the_background_have_one_later() {
    let desk = Desk::new(&Key::new()).await;
    let said = desk.say(&["exec", "-d", "--receipt", "T", "sleep", "600"]).await;
    let id = said.answer().trim().to_owned();
    let said = desk.say(&["receipt", "get", "T", &id]).await;
    assert!(said.failure(1).contains("has not ended"), "{said:?}");
    assert_eq!(desk.say(&["kill", "T", &id, "-s", "KILL"]).await.code, 0);
    assert_eq!(desk.say(&["wait", "T", &id]).await.code, 137);
    let said = desk.say(&["receipt", "get", "T", &id]).await;
    std::fs::write(desk.directory.path().join("r"), said.answer()).unwrap();
    let said = desk.say(&["receipt", "verify", "--key", "web1.pub", "r"]).await;
    assert!(said.answer().contains("exit:           killed by SIGKILL\n"), "{said:?}");
    for background in [&["-d"][..], &["--yield-after", "0"]] {
        let said = desk.say(&[&["exec", "--receipt-file", "r"], background, &["T", "true"]].concat()).await;
        assert!(said.code == 2 && said.stderr().contains("cannot be used with"), "{said:?}");
    }
    let said = desk.say(&["exec", "--receipt", "T", "true"]).await;
    assert!(said.failure(2).contains("neither the receipt nor the execution's ID would be shown"), "{said:?}");
    // found by the beginning of its ID
    let said = desk.say(&["receipt", "get", "T", &id[..30]]).await;
    assert_eq!(said.answer(), desk.file("r"));
    desk.say(&["exec", "-d", "--id", "without", "T", "true"]).await.answer();
    assert_eq!(desk.say(&["wait", "T", "without"]).await.code, 0);
    let said = desk.say(&["receipt", "get", "T", "without"]).await;
    assert!(said.failure(1).contains("has no receipt"), "{said:?}");
}

#[tokio::test]
async fn a_file_has_the_receipt_of_this_command_or_is_not_there() {
    let desk = Desk::new(&Key::new()).await;
    let mark = desk.directory.path().join("ran");
    let said = desk.say(&["exec", "--receipt-file", "none/r", "T", "touch", mark.to_str().unwrap()]).await;
    assert!(said.failure(2).contains("--receipt-file none/r: No such file or directory"), "{said:?}");
    assert!(!mark.exists());
    let is_there = || desk.directory.path().join("r").exists();
    assert_eq!(desk.say(&["exec", "--receipt-file", "r", "T", "no-such-program"]).await.code, 127);
    assert!(!is_there());
    let without = Agent::start();
    let said = desk.say(&["exec", "--receipt-file", "r", without.uri(), "true"]).await;
    let why = "--receipt cannot be given here: the agent's configuration has no receipt_key";
    assert!(said.failure(125).contains(why), "{said:?}");
    shows("… cannot be given here: the agent's configuration has no receipt_key", said.stderr());
    assert!(!is_there());
    assert_eq!(desk.say(&["exec", "--receipt-file", "r", "T", "true"]).await.answer(), "");
    let receipt = desk.file("r");
    // an earlier one, and what a link leads to, stay as they are
    std::os::unix::fs::symlink("nowhere", desk.directory.path().join("link")).unwrap();
    for there in ["r", "link"] {
        let said = desk.say(&["exec", "--receipt-file", there, "T", "touch", mark.to_str().unwrap()]).await;
        assert!(said.failure(2).contains("it exists: name another file, or remove it; nothing was run"), "{said:?}");
    }
    assert_eq!((desk.file("r"), mark.exists()), (receipt, false));
    let mode = std::fs::metadata(desk.directory.path().join("r")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let said = desk.say(&["receipt", "key", without.uri()]).await;
    assert!(said.failure(1).contains("this agent signs no receipts"), "{said:?}");
    let said = desk.say(&["exec", "--receipt-file", "r", "local", "true"]).await;
    assert!(said.failure(2).contains("local: receipts are signed by agents"), "{said:?}");
    // a full disk
    let said = desk.say(&["exec", "--receipt-file", "/dev/full", "T", "true"]).await;
    assert!(said.failure(255).contains("no receipt in /dev/full: No space left on device"), "{said:?}");
    let left = std::fs::read_dir(desk.directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<std::collections::BTreeSet<_>>(), ["link", "r", "web1.pub"].map(Into::into).into());
    assert!(said.stderr().contains("telexec receipt get unix://"), "{said:?}");
    assert_eq!(desk.say(&["exec", "--receipt-file", "/dev/full", "T", "-c", "exit 7"]).await.code, 7);
}

#[tokio::test]
async fn a_fleet_has_one_of_each_host() {
    let desk = Desk::new(&Key::new()).await;
    let said = desk.say(&["fleet", "--receipt", "--outdir", "all", "-w", "T", "echo", "hi"]).await;
    assert_eq!(said.code, 0, "{said:?}");
    let host = desk.agent.uri().replace('/', "_");
    let (receipt, stdout) = (format!("all/{host}/receipt"), format!("all/{host}/stdout"));
    let said = desk.say(&["receipt", "verify", "--key", "web1.pub", "--stdout", &stdout, &receipt]).await;
    assert!(said.answer().contains("program:        echo hi\n"), "{said:?}");
    let exit: Value = serde_json::from_str(&desk.file(&format!("all/{host}/exit.json"))).unwrap();
    assert_eq!(exit["exited"]["receipt"].as_str().unwrap(), desk.file(&receipt).trim_end());
    // the next run without one leaves none
    assert_eq!(desk.say(&["fleet", "--outdir", "all", "-w", "T", "echo", "hi"]).await.code, 0);
    assert!(!desk.directory.path().join(&receipt).exists());
    let said = desk.say(&["fleet", "--receipt", "-w", "T", "true"]).await;
    assert!(said.failure(2).contains("--receipt: no receipt would be shown"), "{said:?}");
}

#[tokio::test]
async fn keys_are_generated_once() {
    let directory = directory();
    let file = directory.path().join("receipt.key");
    let path = file.to_str().unwrap();
    let public = say(&["receipt", "keygen", path]).await;
    assert!(public.answer().starts_with("-----BEGIN PUBLIC KEY-----\n"));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let said = say(&["receipt", "keygen", path]).await;
    assert!(said.failure(1).contains("exists, and is not replaced"), "{said:?}");
    let agent = Agent::builder().config(format!("receipt_key = {path:?}")).start();
    assert_eq!(say(&["receipt", "key", agent.uri()]).await.answer(), public.answer());
}

/// What is no key, or not the agent's alone, is refused before anything is served.
#[tokio::test]
async fn unusable_keys_are_refused() {
    let directory = directory();
    let file = directory.path().join("receipt.key");
    let start = |file: &Path| Agent::builder().config(format!("receipt_key = {file:?}")).try_start();
    let refused = |file: &Path, why: &str| {
        let Err(refused) = start(file) else { panic!("it starts") };
        assert!(refused.log.contains(why), "{}", refused.log);
        refused.log
    };
    let log = refused(&file, "receipt_key: ");
    assert!(log.contains("cannot read a private key from"), "{log}");
    refused(directory.path(), "it is not a file");
    say(&["receipt", "keygen", file.to_str().unwrap()]).await.answer();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    refused(&file, "others may use the private key");
    let certs = telexec_tests::Certs::new();
    let log = refused(&certs.agent.key, "it is not an Ed25519 key in PKCS#8");
    shows("receipt_key: … cannot be used: it is not an Ed25519 key in PKCS#8: …", &log);
}
