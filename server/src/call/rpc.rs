//! The RPCs of the services.

/// Writes [`Rpc`] from a row for each: its service and its name in the proto, and its group of actions in the policy
/// schema.
macro_rules! rpcs {
    ($($service:ident / $rpc:ident: $group:literal,)+) => {
        /// Every RPC of the services. In policies these are the actions, but those of a `Subject` that has its own.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Rpc {
            $($rpc,)+
        }

        impl Rpc {
            pub(crate) const ALL: &[Self] = &[$(Self::$rpc,)+];

            /// Its name in the proto.
            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$rpc => stringify!($rpc),)+
                }
            }

            /// The path of its requests.
            pub(crate) const fn path(self) -> &'static str {
                match self {
                    $(Self::$rpc => concat!("/telexec.v1.", stringify!($service), "/", stringify!($rpc)),)+
                }
            }

            /// Its group of actions in the policy schema.
            pub(crate) const fn group(self) -> &'static str {
                match self {
                    $(Self::$rpc => $group,)+
                }
            }
        }
    };
}

rpcs! {
    ExecutionService/Execute: "start",
    ExecutionService/Run: "start",
    ExecutionService/Interact: "start",
    ExecutionService/Attach: "read",
    ExecutionService/WriteInput: "control",
    ExecutionService/SignalExecution: "control",
    ExecutionService/ResizeTerminal: "control",
    ExecutionService/GetExecution: "read",
    ExecutionService/ListExecutions: "read",
    AgentService/GetAgent: "read",
    AgentService/CheckCommand: "read",
    ApprovalService/ListApprovals: "read",
    ApprovalService/GetApproval: "read",
    ApprovalService/Approve: "review",
    ApprovalService/Reject: "review",
    ForwardService/Connect: "ports",
    ForwardService/Listen: "ports",
    FileService/ReadFile: "files",
    FileService/WriteFile: "files",
    FileService/GetFileInfo: "files",
    FileService/ListDirectory: "files",
    FileService/MakeDirectory: "files",
    FileService/MoveFile: "files",
    FileService/RemoveFile: "files",
    FileService/GetUpload: "files",
    FileService/SearchFiles: "files",
    FileService/WatchFiles: "files",
    FileService/Transfer: "files",
    FileService/ServeSftp: "files",
}
