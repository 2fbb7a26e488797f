//! Starts that another identity has to approve.

mod once;

use futures_util::future::join_all;
use rustix::process::Signal;
use telexec_client::{Approval, ApprovalState};
use telexec_executor::{
    Command, CommandBuilder, ExecutionId, Executor, ExecutorError, Input, OnDisconnect, TerminalSize,
};
use telexec_proto::convert::command_to_wire;
use telexec_proto::v1::approval_service_client::ApprovalServiceClient;
use telexec_proto::v1::interact_request::Request as Step;
use telexec_proto::v1::{ApproveRequest, ExecuteRequest, InteractRequest};
use telexec_tests::{Grpcurl, Outcome, Wire, collect, follow, marker, processes_with, run, until, within};
use tonic::Code;
use tonic_types::StatusExt;

use super::{Ruled, sh};

/// Anna and Adam may do anything that is approved, and `true` without; Bob approves, and may have his own approved.
const RULES: &str = r#"
@id("free") permit(principal, action in Action::"start", resource) when { context.programs == ["true"] };
@id("on-call") @approval("15m") @environment("*")
permit(principal, action in Action::"start", resource) when { context.reason != "" };
@id("never") forbid(principal, action, resource) when { context has programs && context.programs.contains("reboot") };
@id("control") permit(principal, action in [Action::"read", Action::"control"], resource);
@id("review") permit(principal == Identity::"bob", action in Action::"review", resource)
when { context.identity.name != "adam" && ["on-call"].containsAll(context.rules) };
"#;

fn ruled(rules: &str) -> Ruled {
    Ruled::start(rules, "")
}

fn asked(text: &str) -> CommandBuilder {
    sh(text).reason("incident")
}

impl Ruled {
    /// What waits for an approval when this caller runs it.
    async fn pending(&self, name: &str, command: CommandBuilder) -> String {
        match self.run_as(name, command).await {
            Err(ExecutorError::ApprovalRequired { approval_id, .. }) => approval_id,
            other => panic!("{other:?}"),
        }
    }

    async fn run_as(&self, name: &str, command: CommandBuilder) -> Result<Outcome, ExecutorError> {
        run(&self.to(name).await.executor(), command).await
    }

    async fn approve(&self, name: &str, id: &str) -> Result<Approval, ExecutorError> {
        within(self.to(name).await.approvals().approve(id, "as agreed")).await
    }

    /// The same, by one who may.
    async fn approved(&self, name: &str, command: CommandBuilder) -> String {
        let id = self.pending(name, command).await;
        self.approve("bob", &id).await.unwrap();
        id
    }

    async fn reject(&self, name: &str, id: &str) -> Result<Approval, ExecutorError> {
        within(self.to(name).await.approvals().reject(id, "not now")).await
    }

    async fn listed(&self, name: &str) -> Vec<Approval> {
        within(self.to(name).await.approvals().list()).await.unwrap()
    }

    fn replace(&self, rules: &str) {
        std::fs::write(self.agent.policy(), rules).unwrap();
        self.agent.signal(Signal::HUP);
    }
}

fn denial(error: ExecutorError) -> String {
    match error {
        ExecutorError::Denied { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_runs_once_when_another_has_approved_it() {
    let ruled = ruled(RULES);
    let id = ruled.pending("anna", asked("echo $((1 + 1))")).await;
    // to ask again is to ask for the same
    assert_eq!(ruled.pending("anna", asked("echo $((1 + 1))")).await, id);
    let [waiting] = &ruled.listed("bob").await[..] else { panic!("one is listed") };
    assert_eq!((waiting.approval_id.as_str(), waiting.state()), (id.as_str(), ApprovalState::Pending));
    assert_eq!((waiting.identity.as_str(), &waiting.rules[..]), ("anna", &["on-call".to_owned()][..]));
    let request = waiting.request.as_ref().unwrap();
    assert_eq!((request.command.as_str(), request.reason.as_str()), ("echo $((1 + 1))", "incident"));
    assert_eq!((request.user.as_str(), request.execution_id.as_str()), ("root", ""));
    assert!(!request.working_directory.is_empty() && request.shell == "bash");

    let approved = ruled.approve("bob", &id).await.unwrap();
    assert_eq!((approved.state(), approved.reviewer.as_str()), (ApprovalState::Approved, "bob"));
    assert_eq!(approved.review_reason, "as agreed");
    assert_eq!(ruled.run_as("anna", asked("echo $((1 + 1))")).await.unwrap().text(), "2\n");
    let [used] = &ruled.listed("anna").await[..] else { panic!("one is listed") };
    assert_eq!(used.state(), ApprovalState::Used);
    assert!(used.execution_id.parse::<ExecutionId>().is_ok_and(|id| id.is_uuid()));
    assert_ne!(ruled.pending("anna", asked("echo $((1 + 1))")).await, id, "once");
    // what another rule permits, and what is forbidden, needs none
    assert!(ruled.run_as("anna", asked("true")).await.is_ok());
    assert!(denial(ruled.run_as("anna", asked("reboot")).await.unwrap_err()).contains("never"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_approves_their_own_or_what_no_rule_lets_them() {
    let ruled = ruled(&format!("{RULES}@id(\"all\") permit(principal == Identity::\"cleo\", action, resource);"));
    let [annas, bobs, adams] = [ruled.pending("anna", asked("id")).await, ruled.pending("bob", asked("id")).await, {
        ruled.pending("adam", asked("id")).await
    }];
    for (who, id) in [("anna", &annas), ("bob", &bobs), ("adam", &annas), ("anna", &bobs)] {
        denial(ruled.approve(who, id).await.unwrap_err());
        denial(ruled.reject(who, id).await.unwrap_err());
    }
    assert!(denial(ruled.approve("bob", &bobs).await.unwrap_err()).contains("your own"));
    // who may approve others is told nothing of this one
    for hidden in [ruled.approve("bob", &adams).await, ruled.reject("bob", &adams).await] {
        assert!(matches!(&hidden, Err(ExecutorError::NoApproval(id)) if *id == adams), "{hidden:?}");
    }
    let ids = |listed: Vec<Approval>| listed.into_iter().map(|approval| approval.approval_id).collect::<Vec<_>>();
    // of others those alone that one may approve
    assert_eq!(ids(ruled.listed("bob").await), [annas.clone(), bobs.clone()]);
    assert_eq!(ids(ruled.listed("adam").await), std::slice::from_ref(&adams));
    assert_eq!(ids(ruled.listed("cleo").await), [annas.clone(), bobs.clone(), adams.clone()]);
    let get = async |who: &str, id: &str| within(ruled.to(who).await.approvals().get(id)).await;
    assert!(get("bob", &annas).await.is_ok() && get("adam", &adams).await.is_ok());
    for (who, id) in [("adam", annas.as_str()), ("bob", &adams), ("bob", "nothing")] {
        assert!(matches!(get(who, id).await, Err(ExecutorError::NoApproval(not)) if not == id), "{who} {id}");
    }
    // who may approve none does not learn which there are
    for id in [annas.as_str(), "nothing"] {
        assert!(denial(ruled.approve("adam", id).await.unwrap_err()).contains("Approve"), "{id}");
    }
    assert!(matches!(ruled.approve("bob", "nothing").await, Err(ExecutorError::NoApproval(_))));
    for malformed in ["", "../x", "a b"] {
        let error = ruled.approve("bob", malformed).await.unwrap_err();
        assert!(matches!(&error, ExecutorError::Invalid(invalid) if invalid.field == "approval_id"), "{error:?}");
    }
    for reason in ["x".repeat(1025), "a\nb".to_owned()] {
        let error = within(ruled.to("bob").await.approvals().approve(&annas, &reason)).await.unwrap_err();
        assert!(matches!(&error, ExecutorError::Invalid(invalid) if invalid.field == "reason"), "{error:?}");
    }
    assert!(ruled.approve("bob", &annas).await.is_ok(), "nothing of that has changed it");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_the_same_start_is_approved() {
    let ruled = ruled(RULES);
    let start = || {
        asked("id; cat")
            .env("A", "1")
            .stdin("input")
            .working_directory("/tmp")
            .labels([("job".to_owned(), "x".to_owned())])
    };
    let id = ruled.approved("anna", start()).await;
    let size = |columns| TerminalSize::new(columns, 24).unwrap();
    let others = [
        asked("id; cat ")
            .env("A", "1")
            .stdin("input")
            .working_directory("/tmp")
            .labels([("job".to_owned(), "x".to_owned())]),
        start().env("A", "2"),
        start().env("B", ""),
        start().clear_environment(true),
        start().stdin("inputs"),
        start().accepts_input(true),
        start().working_directory("/"),
        start().user("nobody"),
        start().shell("sh"),
        start().login(true),
        start().labels([("job".to_owned(), "y".to_owned())]),
        start().reason("another incident"),
        start().merge_output(true),
        start().yield_after(std::time::Duration::ZERO),
        start().timeout(std::time::Duration::from_secs(60)),
        start().terminal(size(80)).stdin(""),
    ];
    let mut seen = vec![id.clone()];
    for other in others {
        let other = ruled.pending("anna", other).await;
        assert!(!seen.contains(&other), "{other}");
        seen.push(other);
    }
    assert_ne!(ruled.pending("adam", start()).await, id);
    assert!(
        ruled.run_as("anna", start().execution_id("mine".parse().unwrap())).await.unwrap().text().starts_with("uid=0")
    );

    // whichever RPC and window: these are the same
    let shell = || asked("read x; stty size").accepts_input(true);
    ruled.approved("anna", shell().terminal(size(80))).await;
    let executor = ruled.to("anna").await.executor();
    let execution = within(executor.execute(shell().terminal(size(100)).build().unwrap())).await.unwrap();
    let id = execution.id().clone();
    within(executor.write_input(&id, Input { data: "\n".into(), offset: None, close: false })).await.unwrap();
    assert!(collect(execution).await.unwrap().text().ends_with("24 100\r\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rejected_stays_so() {
    let ruled = ruled(RULES);
    let id = ruled.pending("anna", asked("id")).await;
    assert_eq!(ruled.reject("bob", &id).await.unwrap().state(), ApprovalState::Rejected);
    assert!(
        denial(ruled.run_as("anna", asked("id")).await.unwrap_err())
            .ends_with(&format!("bob has rejected request {id}: not now"))
    );
    for again in [ruled.approve("bob", &id).await, ruled.reject("bob", &id).await] {
        assert!(matches!(again, Err(ExecutorError::FailedPrecondition { .. })), "{again:?}");
    }
    // second thoughts
    let id = ruled.approved("anna", asked("date")).await;
    assert!(matches!(ruled.approve("bob", &id).await, Err(ExecutorError::FailedPrecondition { .. })));
    ruled.reject("bob", &id).await.unwrap();
    denial(ruled.run_as("anna", asked("date")).await.unwrap_err());
    let id = ruled.approved("anna", asked("date +%s")).await;
    ruled.run_as("anna", asked("date +%s")).await.unwrap();
    assert!(matches!(ruled.reject("bob", &id).await, Err(ExecutorError::FailedPrecondition { .. })), "it has run");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_expires() {
    let ruled = ruled(&RULES.replace("15m", "300ms"));
    let id = ruled.approved("anna", asked("id")).await;
    let mine = ruled.to("anna").await.approvals();
    until("it has expired", async || matches!(mine.get(&id).await, Err(ExecutorError::NoApproval(_)))).await;
    assert_ne!(ruled.pending("anna", asked("id")).await, id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_time_counts_from_the_approval() {
    let ruled = ruled(RULES);
    let id = ruled.approved("anna", asked("id")).await;
    let new = r#"@id("new") permit(principal, action in Action::"start", resource) when { context.programs == ["hostname"] };"#;
    ruled.replace(&format!("{}{new}", RULES.replace("15m", "1ms")));
    until("the new rules are used", async || ruled.check("anna", sh("hostname")).await.allowed).await;
    assert_ne!(ruled.pending("anna", asked("id")).await, id);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_one_by_the_rules_of_its_time() {
    let ruled = ruled(RULES);
    let mark = marker();
    let long = || asked("sleep 300").env(telexec_tests::MARK, &mark);
    ruled.approved("anna", long()).await;
    let executor = ruled.to("anna").await.executor();
    let running = within(executor.execute(long().build().unwrap())).await.unwrap();
    let id = ruled.approved("anna", asked("id")).await;

    // as before, but for who may approve
    ruled.replace(&RULES.replace("bob", "cleo"));
    until("cleo may approve", async || {
        ruled.approve("cleo", "nothing").await.is_err_and(|e| matches!(e, ExecutorError::NoApproval(_)))
    })
    .await;
    // what was approved is decided again, and goes on: the calls of an identity are, in their order
    ruled.pending("anna", asked("hostname")).await;
    assert!(!processes_with(&mark).is_empty(), "what was approved goes on");
    // another rule asks for it now
    ruled.replace(&RULES.replace("on-call", "strict"));
    until("it is ended", async || processes_with(&mark).is_empty()).await;
    assert!(matches!(collect(running).await, Err(ExecutorError::Denied { .. })));
    assert_ne!(ruled.pending("anna", asked("id")).await, id);
    // none asks for it
    ruled.replace(&RULES.replace("@approval(\"15m\")", ""));
    until("it is free", async || ruled.run_as("anna", asked("id")).await.is_ok()).await;
    // it is forbidden, although approved
    ruled.replace(&RULES.replace("reboot", "id"));
    until("it is forbidden", async || ruled.run_as("anna", asked("id")).await.is_err()).await;
    denial(ruled.run_as("anna", asked("id")).await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_of_a_text_may_need_one() {
    let ruled = ruled(
        r#"
        @id("free") permit(principal, action in Action::"start", resource) when { context.each_command.program == "echo" };
        @id("date") @approval("10m") permit(principal, action in Action::"start", resource)
        when { context.each_command.program == "date" };
        @id("id") @approval("300ms") permit(principal, action in Action::"start", resource)
        when { context.each_command.program == "id" };
        permit(principal, action in [Action::"read", Action::"review"], resource);"#,
    );
    assert!(ruled.run_as("anna", sh("echo a; echo b")).await.is_ok());
    denial(ruled.run_as("anna", sh("echo a; date; ls")).await.unwrap_err());
    let id = ruled.pending("anna", sh("echo a; date; id")).await;
    let [waiting] = &ruled.listed("bob").await[..] else { panic!("one is listed") };
    assert_eq!(waiting.rules, ["date", "id"]);
    let denied = ruled.run_as("anna", sh("echo a; date; id")).await.unwrap_err();
    assert!(matches!(&denied, ExecutorError::ApprovalRequired { rule, .. } if rule == "date, id"), "{denied:?}");
    ruled.approve("bob", &id).await.unwrap();
    // the shortest time of all
    let mine = ruled.to("anna").await.approvals();
    until("it has expired", async || matches!(mine.get(&id).await, Err(ExecutorError::NoApproval(_)))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_bounded() {
    let ruled = ruled(RULES);
    let first = ruled.approved("anna", asked("echo 0")).await;
    let other = ruled.pending("adam", asked("echo 0")).await;
    let mut ids = Vec::new();
    for number in 1..20 {
        ids.push(ruled.pending("anna", asked(&format!("echo {number}"))).await);
    }
    let kept: Vec<_> = ruled.listed("anna").await.into_iter().map(|approval| approval.approval_id).collect();
    // what was approved, and the latest
    assert!(kept.iter().eq([&first].into_iter().chain(&ids[4..])), "{kept:?}");
    assert_eq!(ruled.listed("adam").await[0].approval_id, other);
    let long = asked(&format!("echo {}", "x".repeat(64 * 1024)));
    assert!(denial(ruled.run_as("anna", long).await.unwrap_err()).contains("at most 65536 can be approved"));
    // all of its places are taken by what was decided
    for id in &ids[4..] {
        ruled.approve("bob", id).await.unwrap();
    }
    let full = ruled.run_as("anna", asked("echo 20")).await;
    assert!(matches!(full, Err(ExecutorError::Exhausted { .. })), "{full:?}");
    assert!(ruled.run_as("anna", asked("echo 0")).await.is_ok(), "which can be used");
    ruled.pending("anna", asked("echo 20")).await;
}

/// As many bytes as are kept, of as few identities as can have them.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_most_makes_room_for_others() {
    let ruled = ruled(RULES);
    let kept = "x".repeat(63 * 1024);
    join_all((0..17).map(async |who| {
        for number in 0..16 {
            ruled.pending(&format!("eve{who}"), asked(&format!("echo {number} {kept}"))).await;
        }
    }))
    .await;
    let id = ruled.pending("anna", asked(&format!("echo {kept}"))).await;
    // of long ones the list has no text
    let listed = ruled.listed("bob").await;
    let of_anna = listed.iter().find(|approval| approval.approval_id == id).unwrap();
    assert!(listed.len() > 200 && of_anna.request.is_none(), "{}", listed.len());
    let whole = within(ruled.to("bob").await.approvals().get(&id)).await.unwrap();
    assert!(whole.request.unwrap().command.len() > 63 * 1024);
    ruled.approve("bob", &id).await.unwrap();
    assert!(ruled.run_as("anna", asked(&format!("echo {kept}"))).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_named_commands_the_definition_is_shown() {
    let config = r#"
        [commands.secret]
        argv = ["echo", "restart", "{1..9}"]
        environment = { TOKEN = "hidden" }
        "#;
    let rules = RULES.replace("context.reason != \"\"", "context.named_command == \"secret\"");
    let ruled = Ruled::start(&rules, config);
    let named = |argument: &str| Command::argv(["@secret", argument]).env("TERM", "xterm");
    let id = ruled.pending("anna", named("3")).await;
    let [own] = &ruled.listed("anna").await[..] else { panic!("one is listed") };
    assert_eq!(own.named_command, "secret");
    let [seen] = &ruled.listed("bob").await[..] else { panic!("one is listed") };
    let request = seen.request.as_ref().unwrap();
    assert_eq!((&request.argv[..], request.environment.len()), (&["echo", "restart", "3"].map(str::to_owned)[..], 1));
    // what cannot run is nothing to approve
    for refused in [named("x"), Command::argv(["@secret"])] {
        assert!(matches!(ruled.run_as("anna", refused).await, Err(ExecutorError::Invalid(_))));
    }
    ruled.approve("bob", &id).await.unwrap();
    ruled.pending("anna", named("4")).await;
    assert_eq!(ruled.run_as("anna", named("3")).await.unwrap().text(), "restart 3\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_tells_of_it_and_asks_for_none() {
    let ruled = ruled(RULES);
    let check = ruled.check("anna", asked("id")).await;
    assert_eq!((check.allowed, check.needs_approval), (false, true));
    assert_eq!(check.reason, "the rule on-call requires another identity's approval");
    let check = ruled.check("anna", asked("true")).await;
    assert_eq!((check.allowed, check.needs_approval), (true, false));
    let check = ruled.check("anna", sh("id")).await;
    assert_eq!((check.allowed, check.needs_approval), (false, false));
    assert!(ruled.listed("anna").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_says_what_to_do() {
    let ruled = ruled(RULES);
    let wire = Wire::connect_tls(&ruled.agent, ruled.certs.config(Some(&ruled.pair("anna")))).await.unwrap();
    let request = ExecuteRequest { command: "id".into(), reason: "incident".into(), ..Default::default() };
    let status = within(wire.executions().run(request)).await.unwrap_err();
    let info = status.get_details_error_info().unwrap();
    assert_eq!((status.code(), info.reason.as_str()), (Code::PermissionDenied, "APPROVAL_REQUIRED"));
    assert_eq!((info.metadata.len(), info.metadata["rule"].as_str()), (2, "on-call"));
    let grpcurl = Grpcurl::with_tls(&ruled.agent, &ruled.certs, &ruled.pair("bob"));
    let id = &info.metadata["approval_id"];
    let answer = grpcurl.call("telexec.v1.ApprovalService/Approve", &serde_json::json!({ "approvalId": id })).await;
    assert_eq!(answer.message()["approval"]["state"], "APPROVAL_STATE_APPROVED");
    let bob = Wire::connect_tls(&ruled.agent, ruled.certs.config(Some(&ruled.pair("bob")))).await.unwrap();
    let mut approvals = ApprovalServiceClient::with_origin(bob, Wire::origin());
    let unknown =
        approvals.approve(ApproveRequest { approval_id: "x".into(), ..Default::default() }).await.unwrap_err();
    let info = unknown.get_details_error_info().unwrap();
    assert_eq!((unknown.code(), info.reason.as_str()), (Code::NotFound, "APPROVAL_NOT_FOUND"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_has_who_approved_what() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("audit.log");
    let ruled = Ruled::start(RULES, &format!("[audit]\nfile = {file:?}\n"));
    let id = ruled.approved("anna", asked("id")).await;
    ruled.run_as("anna", asked("id")).await.unwrap();
    let records = || {
        telexec_tests::lines(&file)
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect::<Vec<serde_json::Value>>()
    };
    until("its end is there", async || records().iter().any(|record| record["event"] == "end")).await;
    let about: Vec<_> = records().into_iter().filter(|record| record["approval_id"] == id.as_str()).collect();
    let [denied, approved, start] = &about[..] else { panic!("{about:?}") };
    assert_eq!((denied["event"].as_str(), denied["decision"].as_str()), (Some("denied"), Some("deny")));
    assert_eq!((approved["rpc"].as_str(), approved["identity"].as_str()), (Some("Approve"), Some("bob")));
    assert_eq!((approved["about"].as_str(), approved["review_reason"].as_str()), (Some("anna"), Some("as agreed")));
    assert_eq!((start["event"].as_str(), start["approved_by"].as_str()), (Some("start"), Some("bob")));
    // each of them has what it is about
    for record in [denied, approved, start] {
        assert_eq!((record["command"].as_str(), record["reason"].as_str()), (Some("id"), Some("incident")), "{record}");
    }
    let mut search = tokio::process::Command::from(telexec_tests::telexecd());
    search.args(["audit", "search", "--text", &id]).arg(&file);
    let found = within(search.output()).await.unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    assert!(
        found.contains(&format!("Approve {id} of anna: as agreed"))
            && found.contains("id; reason: incident; approved by bob"),
        "{found}"
    );
    // all of it belongs to the execution that came of it
    let mut show = tokio::process::Command::from(telexec_tests::telexecd());
    show.args(["audit", "show"]).arg(&file).arg(start["execution_id"].as_str().unwrap());
    let shown = String::from_utf8(within(show.output()).await.unwrap().stdout).unwrap();
    let headings: Vec<_> = shown.lines().filter(|line| !line.starts_with(' ') && !line.is_empty()).collect();
    let events: Vec<_> = headings.iter().filter_map(|line| line.split(',').next()).collect();
    assert_eq!(events, ["denied", "call", "start", "end"], "{shown}");
}
