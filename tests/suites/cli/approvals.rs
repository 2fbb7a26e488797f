//! `telexec approvals`, `approve` and `reject`, and `telexec exec` of what has to be approved.

use serde_json::Value;
use telexec_proto::v1::ExecuteRequest;
use telexec_tests::{Agent, Certs, Leaf, Pair, Wire, until, within};
use tonic_types::StatusExt;

use super::troubleshooting::shows;
use super::{Said, telexec};

const RULES: &str = r#"
@id("on-call") @approval("15m") @environment("*") permit(principal == Identity::"anna", action in Action::"start", resource)
when { context.reason != "" };
permit(principal, action in [Action::"read", Action::"review"], resource);
"#;

struct Scene {
    agent: Agent,
    certs: Certs,
    anna: Pair,
    bob: Pair,
}

impl Scene {
    fn start() -> Self {
        let certs = Certs::new();
        let agent = Agent::builder().mtls(&certs).policy(RULES).start();
        let [anna, bob] = ["anna", "bob"].map(|name| certs.ca.issue(Leaf::client(name)));
        Self { agent, certs, anna, bob }
    }

    /// `telexec` of one of them; TARGET stands for the agent.
    fn by(&self, who: &Pair, words: &[&str]) -> tokio::process::Command {
        let words = words.iter().map(|word| if *word == "TARGET" { self.agent.address() } else { word });
        let mut command = telexec(words);
        command.env("TELEXEC_CERT", &who.cert).env("TELEXEC_KEY", &who.key).env("TELEXEC_CA", self.certs.ca.cert());
        command
    }

    async fn anna(&self, words: &[&str]) -> Said {
        Said::by(self.by(&self.anna, words)).await
    }

    async fn bob(&self, words: &[&str]) -> Said {
        Said::by(self.by(&self.bob, words)).await
    }

    /// The only one that waits.
    async fn pending(&self) -> String {
        let said = self.bob(&["approvals", "--json", "TARGET"]).await;
        let listed = said.answer().lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut pending = listed.filter(|approval| approval["state"] == "pending");
        let id = pending.next().unwrap()["approval_id"].as_str().unwrap().to_owned();
        assert!(pending.next().is_none());
        id
    }
}

const ASKED: [&str; 7] = ["exec", "--reason", "INC-1", "-e", "LANG=C", "TARGET", "-c"];

fn asked(text: &str) -> Vec<&str> {
    [&ASKED[..], &[text]].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_looked_at_approved_and_run() {
    let scene = Scene::start();
    let text = "echo one\n  state:          approved\n";
    let said = scene.anna(&asked(text)).await;
    let id = scene.pending().await;
    let hint = format!("`telexec approve {} {id}`", scene.agent.uri());
    assert!(said.failure(125).contains(&hint), "{said:?}");
    shows("the rule RULE requires another identity's approval: request … is pending", said.stderr());
    let said = scene.anna(&["approve", "TARGET", &id]).await;
    shows("you cannot approve or reject your own request", said.failure(125));

    let said = scene.bob(&["approvals", "TARGET"]).await;
    let row: Vec<_> = said.answer().lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((&row[..3], &row[4..6]), (&[&*id, "pending", "in"][..], &["anna", "root"][..]), "{said:?}");
    let said = scene.bob(&["approvals", "TARGET", &id]).await;
    let shown = said.answer();
    for line in [
        "state:          pending\n",
        "identity:       anna\n",
        "reason:         INC-1\n",
        "environment:    'LANG=C'\n",
        "reconnect:      30s\n",
    ] {
        assert!(shown.contains(line), "{line:?}: {shown}");
    }
    let command = format!("command:        echo one\n{0}  state:          approved\n{0}\n", " ".repeat(16));
    assert!(shown.ends_with(&command), "{shown}");

    let said = scene.bob(&["approve", "--reason", "go ahead", "TARGET", &id]).await;
    assert!(
        said.answer().contains("state:          approved\n") && said.answer().contains("review reason:  go ahead\n")
    );
    let said = scene.bob(&["approve", "TARGET", &id]).await;
    assert!(said.failure(125).contains("has been approved by bob"), "{said:?}");
    assert!(scene.anna(&asked(text)).await.stdout().starts_with("one\n"));
    let said = scene.anna(&["approvals", "TARGET", &id]).await;
    assert!(said.answer().contains("state:          used\n") && said.answer().contains("execution:      "), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rejected_or_unknown_is_said() {
    let scene = Scene::start();
    scene.anna(&asked("id")).await.failure(125);
    let id = scene.pending().await;
    let said = scene.bob(&["reject", "--reason", "no", "TARGET", &id]).await;
    assert!(said.answer().contains("state:          rejected\n"), "{said:?}");
    let said = scene.anna(&asked("id")).await;
    shows("NAME has rejected request …", said.failure(125));
    assert!(said.stderr().ends_with(": no\n"), "{said:?}");
    for words in [["approve", "TARGET", "x"], ["reject", "TARGET", "x"], ["approvals", "TARGET", "x"]] {
        let said = scene.bob(&words).await;
        shows("no request …: it has expired, the agent was restarted, or you may not see it", said.failure(125));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_for_its_approval() {
    let scene = Scene::start();
    let words = [&["exec", "--wait-approval", "60s", "--reason", "INC-1", "TARGET"][..], &["echo", "a b"]].concat();
    for verdict in ["approve", "reject"] {
        let waiting = scene.by(&scene.anna, &words).spawn().unwrap();
        until("it waits", async || scene.bob(&["approvals", "TARGET"]).await.answer().contains("pending")).await;
        let id = scene.pending().await;
        let said = scene.bob(&["approvals", "TARGET", &id]).await;
        assert!(said.answer().ends_with("program:        echo 'a b'\n"), "{said:?}");
        scene.bob(&[verdict, "TARGET", &id]).await.answer();
        let said = within(Said::by_child(waiting)).await;
        match verdict {
            "approve" => assert_eq!((said.code, said.stdout()), (0, "a b\n")),
            _ => assert!(said.failure(125).contains("bob has rejected"), "{said:?}"),
        }
        assert!(said.stderr().contains("waiting for somebody else to run: telexec approve"), "{said:?}");
    }
    // not for longer than it was told to
    let words = [&["exec", "--wait-approval", "10ms", "--reason", "INC-1", "TARGET"][..], &["date"]].concat();
    assert!(scene.anna(&words).await.failure(125).contains("is still pending"));
}

/// What cannot be told from something else is quoted as bash would read it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_approved_shows_as_what_it_is() {
    let scene = Scene::start();
    let all: [(&[&str], &[&str], &str); 8] = [
        (&[], &["-c", "echo \\u{1b}"], "command:        echo \\u{1b}\n"),
        (&[], &["-c", "echo \x1b\\"], "quoted:         $'echo \\x1b\\\\'\n"),
        (&[], &["-c", "# ok \u{202e}\n'id'"], "quoted:         $'# ok \\U0000202e\\n\\'id\\''\n"),
        (&[], &["printf", "a\nb", "", "$x y"], "program:        printf $'a\\nb' '' '$x y'\n"),
        (&["-e", "X=l1\nl2 \u{200b}"], &["date"], "environment:    $'X=l1\\nl2 \\U0000200b'\n"),
        (&["--timeout", "7s"], &["date"], "timeout:        7s\n"),
        (&["--memory", "1G"], &["date"], "memory:         1073741824\n"),
        (&["--merge"], &["date"], "merged output:  yes\n"),
    ];
    for (options, words, line) in all {
        let words = [&["exec", "--reason", "INC-1"][..], options, &["TARGET"], words].concat();
        let said = scene.anna(&words).await;
        let (_, after) = said.failure(125).split_once(": request ").unwrap_or_else(|| panic!("{said:?}"));
        let id = after.split_once(' ').unwrap().0.to_owned();
        let shown = scene.bob(&["approvals", "TARGET", &id]).await;
        assert!(shown.answer().contains(line), "{words:?}: {line:?}: {}", shown.answer());
    }
    // bytes that are no text, which the command line does not send
    let wire = Wire::connect_tls(&scene.agent, scene.certs.config(Some(&scene.anna))).await.unwrap();
    let (stdin, reason) = (b"\xffrm -r /srv\n".to_vec().into(), "INC-1".to_owned());
    let request = ExecuteRequest { argv: vec!["sh".into()], stdin, reason, ..Default::default() };
    let status = within(wire.executions().run(request)).await.unwrap_err();
    let id = status.get_details_error_info().unwrap().metadata["approval_id"].clone();
    let shown = scene.bob(&["approvals", "TARGET", &id]).await;
    assert!(shown.answer().contains("input:          $'\\xffrm -r /srv\\n'\n"), "{shown:?}");
}
