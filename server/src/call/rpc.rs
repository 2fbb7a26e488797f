//! The RPCs of the services.

/// Writes [`Rpc`] from a row for each: its name in policies, logs and metrics, which is that in the proto; the path of its requests;
/// and its group of actions in the policy schema.
macro_rules! rpcs {
    ($($rpc:ident: $path:literal, $group:expr;)+) => {
        /// Every RPC of the services. In policies these are the actions, but those of a `Subject` that has its own.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Rpc {
            $($rpc,)+
        }

        impl Rpc {
            pub(crate) const ALL: &[Self] = &[$(Self::$rpc,)+];

            /// Its name.
            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$rpc => stringify!($rpc),)+
                }
            }

            /// The path of its requests.
            pub(crate) const fn path(self) -> &'static str {
                match self {
                    $(Self::$rpc => $path,)+
                }
            }

            /// Its group of actions in the policy schema, if it is in one.
            pub(crate) const fn group(self) -> Option<&'static str> {
                match self {
                    $(Self::$rpc => $group,)+
                }
            }
        }
    };
}

rpcs! {
    Execute: "/telexec.v1.ExecutionService/Execute", Some("start");
    Run: "/telexec.v1.ExecutionService/Run", Some("start");
    Interact: "/telexec.v1.ExecutionService/Interact", Some("start");
    Attach: "/telexec.v1.ExecutionService/Attach", Some("read");
    WriteInput: "/telexec.v1.ExecutionService/WriteInput", Some("control");
    SignalExecution: "/telexec.v1.ExecutionService/SignalExecution", Some("control");
    ResizeTerminal: "/telexec.v1.ExecutionService/ResizeTerminal", Some("control");
    GetExecution: "/telexec.v1.ExecutionService/GetExecution", Some("read");
    ListExecutions: "/telexec.v1.ExecutionService/ListExecutions", Some("read");
    GetAgent: "/telexec.v1.AgentService/GetAgent", Some("read");
    CheckCommand: "/telexec.v1.AgentService/CheckCommand", Some("read");
    ListApprovals: "/telexec.v1.ApprovalService/ListApprovals", Some("read");
    GetApproval: "/telexec.v1.ApprovalService/GetApproval", Some("read");
    Approve: "/telexec.v1.ApprovalService/Approve", Some("review");
    Reject: "/telexec.v1.ApprovalService/Reject", Some("review");
    Connect: "/telexec.v1.ForwardService/Connect", Some("ports");
    Listen: "/telexec.v1.ForwardService/Listen", Some("ports");
    ReadFile: "/telexec.v1.FileService/ReadFile", Some("files");
    WriteFile: "/telexec.v1.FileService/WriteFile", Some("files");
    GetFileInfo: "/telexec.v1.FileService/GetFileInfo", Some("files");
    ListDirectory: "/telexec.v1.FileService/ListDirectory", Some("files");
    MakeDirectory: "/telexec.v1.FileService/MakeDirectory", Some("files");
    MoveFile: "/telexec.v1.FileService/MoveFile", Some("files");
    RemoveFile: "/telexec.v1.FileService/RemoveFile", Some("files");
    GetUpload: "/telexec.v1.FileService/GetUpload", Some("files");
    SearchFiles: "/telexec.v1.FileService/SearchFiles", Some("files");
    WatchFiles: "/telexec.v1.FileService/WatchFiles", Some("files");
    Transfer: "/telexec.v1.FileService/Transfer", Some("files");
    ServeSftp: "/telexec.v1.FileService/ServeSftp", Some("files");
    // an agent sends its audit log
    ExportLogs: "/opentelemetry.proto.collector.logs.v1.LogsService/Export", None;
}
