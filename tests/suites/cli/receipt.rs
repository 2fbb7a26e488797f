//! `telexec receipt`, and `--receipt` of `exec` and `fleet`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;
use telexec_tests::{Agent, directory};

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
    let said = desk.say(&["exec", "--receipt=r", "T", "sh", "-c", "echo out; exit 3"]).await;
    assert_eq!((said.code, said.stdout(), said.stderr()), (3, "out\n", ""));
    std::fs::write(desk.directory.path().join("out"), "out\n").unwrap();
    std::fs::write(desk.directory.path().join("other"), "out\n\n").unwrap();
    let verify = ["receipt", "verify", "--key", "web1.pub"];
    let said = desk.say(&[&verify[..], &["--stdout", "out", "r"]].concat()).await;
    for line in ["signed by:      web1.pub\n", "program:        sh -c 'echo out; exit 3'\n", "exit:           code 3\n"]
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
    assert!(said.failure(1).contains("r: none of the given keys has signed it"), "{said:?}");
    shows("none of the given keys has signed it; …", said.stderr());
    let said = desk.say(&["receipt", "verify", "--key", "other.pub", "--key", "web1.pub", "r"]).await;
    assert!(said.answer().contains("signed by:      web1.pub\n"), "{said:?}");
    let said = desk.say(&["receipt", "verify", "--key", "r", "r"]).await;
    assert!(said.failure(2).contains("r: it has no Ed25519 public key in PEM"), "{said:?}");
    let said = desk.say(&["receipt", "verify", "--key", "web1.pub", "out"]).await;
    assert!(said.failure(1).contains("out: is not a receipt"), "{said:?}");
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
    assert!(said.answer().contains("exit:           signaled, SIGKILL\n"), "{said:?}");
    let said = desk.say(&["exec", "-d", "--receipt=r", "T", "true"]).await;
    assert!(said.failure(2).contains("--receipt=FILE: with -d"), "{said:?}");
    desk.say(&["exec", "-d", "--id", "without", "T", "true"]).await.answer();
    assert_eq!(desk.say(&["wait", "T", "without"]).await.code, 0);
    let said = desk.say(&["receipt", "get", "T", "without"]).await;
    assert!(said.failure(1).contains("has no receipt"), "{said:?}");
}

#[tokio::test]
async fn a_success_without_its_receipt_is_none() {
    let desk = Desk::new(&Key::new()).await;
    let said = desk.say(&["exec", "--receipt=none/r", "T", "true"]).await;
    assert!(said.failure(255).contains("cannot write the receipt to none/r: No such file"), "{said:?}");
    let said = desk.say(&["exec", "--receipt=none/r", "T", "-c", "exit 7"]).await;
    assert!(said.failure(7).contains("cannot write the receipt"), "{said:?}");
    let without = Agent::start();
    let said = desk.say(&["exec", "--receipt=r", without.uri(), "true"]).await;
    assert!(
        said.failure(125).contains("--receipt cannot be given here: the agent's configuration has no receipt_key"),
        "{said:?}"
    );
    shows("… cannot be given here: the agent's configuration has no receipt_key", said.stderr());
    assert!(!Path::new(desk.directory.path()).join("r").exists());
    let said = desk.say(&["receipt", "key", without.uri()]).await;
    assert!(said.failure(1).contains("this agent signs no receipts"), "{said:?}");
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
    assert!(said.failure(1).contains("File exists"), "{said:?}");
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
    refused(&file, "cannot read a private key from");
    say(&["receipt", "keygen", file.to_str().unwrap()]).await.answer();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    refused(&file, "others may use the private key");
    let certs = telexec_tests::Certs::new();
    let log = refused(&certs.agent.key, "it is not an Ed25519 key in PKCS#8");
    shows("receipt_key: … cannot be used: it is not an Ed25519 key in PKCS#8: …", &log);
}
