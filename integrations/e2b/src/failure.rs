//! Why a request has no result: a code of the Connect protocol, or a status of HTTP, and what to do.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use telexec_executor::{ExecutorError, FileErrorKind, SpawnStage};

/// The codes of the Connect protocol, and one that the SDKs know from E2B's proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidArgument,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    Unauthenticated,
    /// A limit of this program.
    ResourceExhausted,
    /// A body.
    TooLarge,
    /// The disk of the target.
    Full,
    FailedPrecondition,
    OutOfRange,
    DeadlineExceeded,
    Unimplemented,
    Unavailable,
    DataLoss,
    Internal,
    /// There is no such sandbox (any more), or its agent cannot be reached: what a proxy in front of envd answers.
    BadGateway,
}

impl Code {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::Unauthenticated => "unauthenticated",
            Self::ResourceExhausted | Self::TooLarge | Self::Full => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::OutOfRange => "out_of_range",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Unimplemented => "unimplemented",
            Self::Unavailable | Self::BadGateway => "unavailable",
            Self::DataLoss => "data_loss",
            Self::Internal => "internal",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition | Self::OutOfRange => StatusCode::BAD_REQUEST,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Full => StatusCode::INSUFFICIENT_STORAGE,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::DataLoss | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::BadGateway => StatusCode::BAD_GATEWAY,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// The SDKs look for these words.
    pub(crate) fn gone() -> Self {
        Self::new(Code::BadGateway, "The sandbox was not found")
    }

    /// For these too: the sandbox is there, but what answers in it is not.
    pub(crate) fn no_port(why: &str) -> Self {
        Self::new(Code::BadGateway, format!("The sandbox is running but port is not open: {why}"))
    }

    /// As the error of a Connect call.
    pub(crate) fn to_connect(&self) -> Value {
        json!({"code": self.code.as_str(), "message": self.message})
    }

    /// As the answer to a unary call.
    pub(crate) fn connect_response(&self) -> Response {
        match self.code {
            Code::BadGateway => self.response(),
            code => answer(code.status(), &self.to_connect()),
        }
    }

    /// As the answer to a call of the control plane, or about files.
    pub(crate) fn response(&self) -> Response {
        let status = self.code.status();
        answer(status, &json!({"code": status.as_u16(), "message": self.message}))
    }
}

/// JSON.
pub(crate) fn answer(status: StatusCode, value: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], Body::from(value.to_string())).into_response()
}

/// One more field of an object.
pub(crate) fn put(object: &mut Value, field: &str, value: impl Into<Value>) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), value.into());
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        self.response()
    }
}

impl From<ExecutorError> for Failure {
    fn from(error: ExecutorError) -> Self {
        Self { code: code(&error), message: crate::chain(&error) }
    }
}

fn code(error: &ExecutorError) -> Code {
    match error {
        ExecutorError::Invalid(_) | ExecutorError::Unsupported { .. } => Code::InvalidArgument,
        ExecutorError::Spawn(error) if error.is_exhausted() => Code::ResourceExhausted,
        ExecutorError::Spawn(error) => match error.stage {
            SpawnStage::User | SpawnStage::Chdir | SpawnStage::Exec => Code::InvalidArgument,
            SpawnStage::Setuid | SpawnStage::Setgid | SpawnStage::Setgroups => Code::PermissionDenied,
            _ => Code::Internal,
        },
        ExecutorError::File(error) => match error.kind() {
            FileErrorKind::NotFound => Code::NotFound,
            FileErrorKind::AlreadyExists => Code::AlreadyExists,
            FileErrorKind::AccessDenied => Code::PermissionDenied,
            FileErrorKind::Full => Code::Full,
            FileErrorKind::WrongState => Code::InvalidArgument,
        },
        ExecutorError::NotFound(_) | ExecutorError::NoUpload(_) | ExecutorError::NoApproval(_) => Code::NotFound,
        ExecutorError::Unauthenticated { .. }
        | ExecutorError::Denied { .. }
        | ExecutorError::ApprovalRequired { .. } => Code::PermissionDenied,
        ExecutorError::Exhausted { .. } => Code::ResourceExhausted,
        ExecutorError::AlreadyExists(_) | ExecutorError::AlreadyRunning(_) => Code::AlreadyExists,
        ExecutorError::FailedPrecondition { .. } => Code::FailedPrecondition,
        ExecutorError::OutOfRange { .. } => Code::OutOfRange,
        ExecutorError::DeadlineExceeded => Code::DeadlineExceeded,
        ExecutorError::ShuttingDown
        | ExecutorError::Unreachable { .. }
        | ExecutorError::Untrusted { .. }
        | ExecutorError::Lost { .. } => Code::Unavailable,
        ExecutorError::Corrupted { .. } => Code::DataLoss,
        ExecutorError::Internal(_) => Code::Internal,
    }
}
