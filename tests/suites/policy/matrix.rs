//! Every RPC, by every caller, under every role. The RPCs come from the descriptors: a new one needs a row here.

use std::collections::BTreeSet;

use futures_util::stream;
use prost::Message;
use prost_types::FileDescriptorSet;
use telexec_proto::v1::{
    ApproveRequest, AttachRequest, CheckCommandRequest, ConnectRequest, Dial, ExecuteRequest, ExecutionEvent,
    GetAgentRequest, GetApprovalRequest, GetExecutionRequest, GetFileInfoRequest, GetUploadRequest, InteractRequest,
    ListApprovalsRequest, ListDirectoryRequest, ListExecutionsRequest, ListenRequest, MakeDirectoryRequest,
    MoveFileRequest, ReadFileRequest, RejectRequest, RemoveFileRequest, ResizeTerminalRequest, SearchFilesRequest,
    ServeSftpHeader, ServeSftpRequest, SignalExecutionRequest, TcpAddress, TerminalSize, WatchFilesRequest,
    WriteFileHeader, WriteFileRequest, WriteInputRequest, approval_service_client::ApprovalServiceClient,
    connect_request, dial, forward_service_client::ForwardServiceClient, interact_request::Request as Step,
    listen_request, serve_sftp_request, write_file_request,
};
use telexec_tests::{Agent, Grpcurl, Wire, follow, within};
use tonic::{Code, Response, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;

use super::{Ruled, rule};

/// All RPCs of our package.
fn rpcs() -> Vec<String> {
    let set = FileDescriptorSet::decode(telexec_proto::FILE_DESCRIPTOR_SET).unwrap();
    let files = set.file.into_iter().filter(|file| file.package() == "telexec.v1");
    let methods = files.flat_map(|file| file.service).flat_map(|service| service.method);
    methods.map(|method| method.name().to_owned()).collect()
}

/// The actions in policies, of which any permits to call this.
fn actions(rpc: &str) -> Vec<String> {
    let actions: &[&str] = match rpc {
        "MakeDirectory" | "MoveFile" | "RemoveFile" | "GetUpload" => &["WriteFile"],
        "GetFileInfo" | "ListDirectory" | "SearchFiles" => &["ListFiles"],
        "Connect" => &["Forward"],
        // each file in the course of it is judged by itself
        "Transfer" | "ServeSftp" => &["ReadFile", "WriteFile", "ListFiles"],
        rpc => &[rpc],
    };
    actions.iter().map(|&action| action.to_owned()).collect()
}

/// Reads a call to its end.
async fn end(response: Response<Streaming<ExecutionEvent>>) -> Result<(), Status> {
    let status = follow(response.into_inner()).await.status;
    if status.code() == Code::Ok { Ok(()) } else { Err(status) }
}

/// Calls an RPC with a request that is well-formed; executions are asked for by an id that nothing has.
async fn call(wire: &Wire, rpc: &str) -> Result<(), Status> {
    let (mut executions, mut agent, mut files) = (wire.executions(), wire.agent(), wire.files());
    let mut approvals = ApprovalServiceClient::with_origin(wire.clone(), Wire::origin());
    let path = || "/no/such/directory/file".to_owned();
    let execution_id = || "nothing".to_owned();
    let command = ExecuteRequest { command: "true".into(), ..Default::default() };
    let called = async {
        match rpc {
            "Execute" => end(executions.execute(command).await?).await,
            "Run" => executions.run(command).await.map(drop),
            "Interact" => {
                let start = InteractRequest { request: Some(Step::Start(command)) };
                end(executions.interact(futures_util::stream::iter([start])).await?).await
            }
            "Attach" => {
                let request = AttachRequest { execution_id: execution_id(), ..Default::default() };
                executions.attach(request).await.map(drop)
            }
            "WriteInput" => {
                let request = WriteInputRequest { execution_id: execution_id(), ..Default::default() };
                executions.write_input(request).await.map(drop)
            }
            "SignalExecution" => {
                let request = SignalExecutionRequest { execution_id: execution_id(), signal: "TERM".into() };
                executions.signal_execution(request).await.map(drop)
            }
            "ResizeTerminal" => {
                let size = Some(TerminalSize { columns: 80, rows: 24 });
                executions.resize_terminal(ResizeTerminalRequest { execution_id: execution_id(), size }).await.map(drop)
            }
            "GetExecution" => {
                executions.get_execution(GetExecutionRequest { execution_id: execution_id() }).await.map(drop)
            }
            "ListExecutions" => executions.list_executions(ListExecutionsRequest::default()).await.map(drop),
            "GetAgent" => agent.get_agent(GetAgentRequest {}).await.map(drop),
            "CheckCommand" => {
                let request = CheckCommandRequest { request: Some(command), ..Default::default() };
                agent.check_command(request).await.map(drop)
            }
            "ListApprovals" => approvals.list_approvals(ListApprovalsRequest {}).await.map(drop),
            "GetApproval" => approvals.get_approval(GetApprovalRequest { approval_id: execution_id() }).await.map(drop),
            "Approve" => {
                let request = ApproveRequest { approval_id: execution_id(), ..Default::default() };
                approvals.approve(request).await.map(drop)
            }
            "Reject" => {
                let request = RejectRequest { approval_id: execution_id(), ..Default::default() };
                approvals.reject(request).await.map(drop)
            }
            "Connect" => {
                let to = Some(dial::To::UnixPath("/nothing".into()));
                let step = Some(connect_request::Step::Dial(Dial { to, ..Default::default() }));
                let mut forwards = ForwardServiceClient::with_origin(wire.clone(), Wire::origin());
                forwards.connect(futures_util::stream::iter([ConnectRequest { step }])).await.map(drop)
            }
            "Listen" => {
                let at = Some(listen_request::At::Tcp(TcpAddress::default()));
                let mut forwards = ForwardServiceClient::with_origin(wire.clone(), Wire::origin());
                forwards.listen(ListenRequest { at, ..Default::default() }).await.map(drop)
            }
            "ReadFile" => files.read_file(ReadFileRequest { path: path(), ..Default::default() }).await.map(drop),
            "WriteFile" => {
                let header = WriteFileHeader { path: path(), ..Default::default() };
                let header = WriteFileRequest { step: Some(write_file_request::Step::Header(header)) };
                files.write_file(stream::iter([header])).await.map(drop)
            }
            "GetFileInfo" => {
                files.get_file_info(GetFileInfoRequest { path: path(), ..Default::default() }).await.map(drop)
            }
            "ListDirectory" => {
                files.list_directory(ListDirectoryRequest { path: path(), ..Default::default() }).await.map(drop)
            }
            "SearchFiles" => {
                files.search_files(SearchFilesRequest { path: path(), ..Default::default() }).await.map(drop)
            }
            "WatchFiles" => files.watch_files(WatchFilesRequest { path: path(), ..Default::default() }).await.map(drop),
            "MakeDirectory" => {
                files.make_directory(MakeDirectoryRequest { path: path(), ..Default::default() }).await.map(drop)
            }
            "MoveFile" => {
                let (source_path, destination_path) = (path(), path());
                let request = MoveFileRequest { source_path, destination_path, ..Default::default() };
                files.move_file(request).await.map(drop)
            }
            "RemoveFile" => files.remove_file(RemoveFileRequest { path: path(), ..Default::default() }).await.map(drop),
            "GetUpload" => files.get_upload(GetUploadRequest { upload_id: execution_id() }).await.map(drop),
            "Transfer" => files.transfer(stream::iter([])).await.map(drop),
            "ServeSftp" => {
                let header = serve_sftp_request::Step::Header(ServeSftpHeader::default());
                files.serve_sftp(stream::iter([ServeSftpRequest { step: Some(header) }])).await.map(drop)
            }
            new => panic!("{new} is a new RPC: add a call of it here, and an action to the schema of policies"),
        }
    };
    within(called).await
}

/// The RPCs that this caller may call.
async fn allowed(wire: &Wire) -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for rpc in rpcs() {
        match call(wire, &rpc).await {
            Ok(()) => drop(allowed.insert(rpc)),
            // it was allowed to ask
            Err(status) if status.code() == Code::NotFound => drop(allowed.insert(rpc)),
            Err(status) => assert_eq!(rule(&status), "default", "{rpc}: {status:?}"),
        }
    }
    allowed
}

fn all() -> BTreeSet<String> {
    rpcs().into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_do_what_its_rule_says_and_nothing_else() {
    assert_eq!(rpcs().len(), 29);
    let actions: BTreeSet<_> = rpcs().iter().flat_map(|rpc| actions(rpc)).collect();
    let rule_for =
        |name: &String| format!("permit(principal in Role::\"{name}\", action == Action::\"{name}\", resource);\n");
    let group =
        |name: &&str| format!("permit(principal in Role::\"{name}\", action in Action::\"{name}\", resource);\n");
    let groups = ["start", "read", "control", "files", "ports", "review"];
    let policy: String = actions.iter().map(rule_for).chain(groups.iter().map(group)).collect();
    let names = actions.iter().cloned().chain(groups.map(str::to_owned));
    let roles: String = names.map(|name| format!("{name} = [\"{name}-*\"]\n")).collect();
    let ruled = Ruled::start(&policy, &format!("[roles]\n{roles}"));
    let may = async |name: &str| {
        let config = ruled.certs.config(Some(&ruled.pair(&format!("{name}-x"))));
        allowed(&Wire::connect_tls(&ruled.agent, config).await.unwrap()).await
    };
    for action in actions {
        let permitted = rpcs().into_iter().filter(|rpc| self::actions(rpc).contains(&action)).collect();
        assert_eq!(may(&action).await, permitted, "{action}");
    }
    let mut grouped = Vec::new();
    for name in groups {
        grouped.extend(may(name).await);
    }
    grouped.sort();
    assert!(grouped.iter().eq(&all()), "every RPC is in one group: {grouped:?}");
    assert!(may("nobody").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_rule_nothing_is_allowed() {
    for policy in ["", "forbid(principal, action, resource) when { false };"] {
        for agent in [Agent::builder().policy(policy).start(), Agent::builder().tcp().policy(policy).start()] {
            let wire = Wire::connect(&agent).await.unwrap();
            assert!(allowed(&wire).await.is_empty(), "{policy}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_for_all_allows_all() {
    let agent = Agent::builder().policy("permit(principal, action, resource);").start();
    assert_eq!(allowed(&Wire::connect(&agent).await.unwrap()).await, all());
    let unruled = Agent::start();
    assert_eq!(allowed(&Wire::connect(&unruled).await.unwrap()).await, all());
    assert!(unruled.log().contains("no policy: every authenticated caller may run anything"), "{}", unruled.log());
    let open = Agent::builder().listen("tcp://127.0.0.1:0").args(["--insecure"]).start();
    let (log, warning) =
        (open.log(), "nobody is authenticated: any user of this machine may run anything, by default as ");
    assert!(log.contains(warning) && !log.contains("every authenticated caller"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_reflection_need_no_rule() {
    let agent = Agent::builder().policy("forbid(principal, action, resource);").start();
    let wire = Wire::connect(&agent).await.unwrap();
    within(wire.health().check(HealthCheckRequest::default())).await.unwrap();
    let listed = Grpcurl::new(&agent).ask(&["list"]).await;
    assert!(listed.stdout.contains("telexec.v1.ExecutionService"), "{listed:?}");
}
