//! `google.rpc.Status` with its details, and [`ExecutorError`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use telexec_executor::{ExecutorError, FileError, FileErrorKind, FilePath, InvalidCommand, SpawnError, SpawnStage};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of our `google.rpc.ErrorInfo`s.
const DOMAIN: &str = "telexec";
/// Statuses travel in headers, which have a limit.
const MAX_TEXT_BYTES: usize = 1024;
/// What the machine lacks at one moment it may have at the next.
const RETRY_AFTER: Duration = Duration::from_secs(1);

const SPAWN_FAILED: &str = "SPAWN_FAILED";
const UNSUPPORTED: &str = "UNSUPPORTED";
const POLICY_DENIED: &str = "POLICY_DENIED";
const APPROVAL_REQUIRED: &str = "APPROVAL_REQUIRED";
const APPROVAL_NOT_FOUND: &str = "APPROVAL_NOT_FOUND";
const EXECUTION_NOT_FOUND: &str = "EXECUTION_NOT_FOUND";
const EXECUTION_EXISTS: &str = "EXECUTION_EXISTS";
const ALREADY_RUNNING: &str = "ALREADY_RUNNING";
const WRONG_STATE: &str = "WRONG_STATE";
const BEYOND_END: &str = "BEYOND_END";
const SHUTTING_DOWN: &str = "SHUTTING_DOWN";
const UNREACHABLE: &str = "UNREACHABLE";
const FILE_FAILED: &str = "FILE_FAILED";
const FILE_ACCESS: &str = "FILE_ACCESS";
const FILE_CORRUPTED: &str = "FILE_CORRUPTED";
const UPLOAD_NOT_FOUND: &str = "UPLOAD_NOT_FOUND";

/// An error as it travels.
pub fn error_to_status(error: &ExecutorError) -> Status {
    let (code, details) = match error {
        ExecutorError::Invalid(InvalidCommand { field, reason }) => {
            (Code::InvalidArgument, ErrorDetails::with_bad_request_violation(cut(field), cut(reason)))
        }
        ExecutorError::Spawn(error) => (spawn_code(error), spawn_details(error)),
        ExecutorError::File(error) => (file_code(error.kind()), file_details(error)),
        ExecutorError::Corrupted { path } => (Code::DataLoss, info(FILE_CORRUPTED, [("path", cut(&path_text(path)))])),
        ExecutorError::NoUpload(id) => (Code::NotFound, info(UPLOAD_NOT_FOUND, [("upload_id", id.to_string())])),
        ExecutorError::Unsupported { field, .. } => {
            (Code::FailedPrecondition, info(UNSUPPORTED, [("field", cut(field))]))
        }
        ExecutorError::Unauthenticated { .. } => (Code::Unauthenticated, ErrorDetails::new()),
        ExecutorError::ApprovalRequired { approval_id, rule, .. } => {
            let metadata = [("approval_id", cut(approval_id)), ("rule", cut(rule))];
            (Code::PermissionDenied, info(APPROVAL_REQUIRED, metadata))
        }
        ExecutorError::NoApproval(id) => (Code::NotFound, info(APPROVAL_NOT_FOUND, [("approval_id", cut(id))])),
        ExecutorError::Denied { rule, nearest, missing, .. } => {
            (Code::PermissionDenied, info(POLICY_DENIED, denied_metadata(rule.as_deref(), nearest.as_deref(), missing)))
        }
        ExecutorError::Exhausted { retry_after, .. } => {
            (Code::ResourceExhausted, ErrorDetails::with_retry_info(*retry_after))
        }
        ExecutorError::NotFound(id) => (Code::NotFound, info(EXECUTION_NOT_FOUND, [("execution_id", id.to_string())])),
        ExecutorError::AlreadyExists(id) => {
            (Code::AlreadyExists, info(EXECUTION_EXISTS, [("execution_id", id.to_string())]))
        }
        // only where there is no stream to answer it on
        ExecutorError::AlreadyRunning(other) => {
            (Code::AlreadyExists, info(ALREADY_RUNNING, [("execution_id", other.id.to_string())]))
        }
        ExecutorError::FailedPrecondition { .. } => (Code::FailedPrecondition, info(WRONG_STATE, [])),
        ExecutorError::OutOfRange { field, end } => {
            (Code::OutOfRange, info(BEYOND_END, [("field", cut(field)), ("end", end.to_string())]))
        }
        ExecutorError::DeadlineExceeded => (Code::DeadlineExceeded, ErrorDetails::new()),
        ExecutorError::ShuttingDown => (Code::Unavailable, info(SHUTTING_DOWN, [])),
        // of an agent behind the one that answers
        ExecutorError::Unreachable { endpoint, source } => {
            let metadata = [("endpoint", cut(endpoint)), ("cause", cut(&source.to_string()))];
            (Code::Unavailable, info(UNREACHABLE, metadata))
        }
        ExecutorError::Untrusted { .. } | ExecutorError::Lost { .. } => (Code::Unavailable, ErrorDetails::new()),
        ExecutorError::Internal(_) => (Code::Internal, ErrorDetails::new()),
    };
    Status::with_error_details(code, cut(&message(error)), details)
}

/// A denial's own text is without its conditions, which have values of the command.
fn message(error: &ExecutorError) -> String {
    match error {
        ExecutorError::Denied { reason, missing, .. } if !missing.is_empty() => {
            format!("{reason}; not met: {}", missing.join("; "))
        }
        _ => error.to_string(),
    }
}

/// The conditions are lines: as many as fit.
fn denied_metadata(
    rule: Option<&str>,
    nearest: Option<&str>,
    missing: &[String],
) -> impl Iterator<Item = (&'static str, String)> {
    let mut lines = String::new();
    for condition in missing {
        if lines.len() + condition.len() >= MAX_TEXT_BYTES {
            break;
        }
        lines.extend([condition.as_str(), "\n"]);
    }
    let named = [("rule", rule.map(cut)), ("nearest_rule", nearest.map(cut))];
    let named = named.into_iter().filter_map(|(key, value)| Some((key, value?)));
    named.chain((!lines.is_empty()).then_some(("missing", lines.trim_end().to_owned())))
}

/// An error that an agent answered.
pub fn error_from_status(status: &Status) -> ExecutorError {
    let details = status.get_error_details();
    let info = details.error_info();
    let reason = info.map_or("", |info| info.reason.as_str());
    let metadata = |key: &str| info.and_then(|info| info.metadata.get(key)).map_or("", String::as_str);
    let message = || status.message().to_owned();
    match (status.code(), reason) {
        (_, SPAWN_FAILED) => spawn_from_metadata(metadata).map_or_else(|| other(status), ExecutorError::Spawn),
        (_, FILE_FAILED | FILE_ACCESS) => {
            file_from_metadata(metadata).map_or_else(|| other(status), ExecutorError::File)
        }
        (Code::DataLoss, FILE_CORRUPTED) => ExecutorError::Corrupted { path: FilePath::new(metadata("path")) },
        (Code::NotFound, UPLOAD_NOT_FOUND) => {
            metadata("upload_id").parse().map_or_else(|_| other(status), ExecutorError::NoUpload)
        }
        (Code::NotFound, APPROVAL_NOT_FOUND) => ExecutorError::NoApproval(metadata("approval_id").to_owned()),
        (Code::FailedPrecondition, UNSUPPORTED) => unsupported(metadata("field"), status.message()),
        (Code::NotFound, EXECUTION_NOT_FOUND) => {
            metadata("execution_id").parse().map_or_else(|_| other(status), ExecutorError::NotFound)
        }
        (Code::AlreadyExists, EXECUTION_EXISTS) => {
            metadata("execution_id").parse().map_or_else(|_| other(status), ExecutorError::AlreadyExists)
        }
        (Code::FailedPrecondition, WRONG_STATE) => ExecutorError::FailedPrecondition { reason: message() },
        (Code::OutOfRange, BEYOND_END) => match metadata("end").parse() {
            Ok(end) => ExecutorError::OutOfRange { field: metadata("field").to_owned().into(), end },
            Err(_) => other(status),
        },
        (Code::InvalidArgument, _) => ExecutorError::Invalid(invalid_from_details(&details, status.message())),
        (Code::Unauthenticated, _) => ExecutorError::Unauthenticated { reason: message() },
        (Code::PermissionDenied, APPROVAL_REQUIRED) => ExecutorError::ApprovalRequired {
            approval_id: metadata("approval_id").to_owned(),
            rule: metadata("rule").to_owned(),
            reason: message(),
        },
        (Code::PermissionDenied, _) => {
            let name = |key| Some(metadata(key)).filter(|name| !name.is_empty()).map(str::to_owned);
            let missing = metadata("missing").lines().map(str::to_owned).collect();
            ExecutorError::Denied { rule: name("rule"), reason: message(), nearest: name("nearest_rule"), missing }
        }
        (Code::ResourceExhausted, _) => ExecutorError::Exhausted {
            reason: message(),
            retry_after: details.retry_info().and_then(|retry| retry.retry_delay),
        },
        (Code::DeadlineExceeded, _) => ExecutorError::DeadlineExceeded,
        (Code::Unavailable, SHUTTING_DOWN) => ExecutorError::ShuttingDown,
        (Code::Unavailable, UNREACHABLE) => ExecutorError::Unreachable {
            endpoint: metadata("endpoint").to_owned(),
            source: metadata("cause").to_owned().into(),
        },
        _ => other(status),
    }
}

fn other(status: &Status) -> ExecutorError {
    ExecutorError::Internal(format!("{} ({})", status.message(), status.code()))
}

fn spawn_code(error: &SpawnError) -> Code {
    if error.is_not_found() {
        Code::NotFound
    } else if error.is_exhausted() {
        Code::ResourceExhausted
    } else {
        Code::FailedPrecondition
    }
}

fn file_code(kind: FileErrorKind) -> Code {
    match kind {
        FileErrorKind::NotFound => Code::NotFound,
        FileErrorKind::AlreadyExists => Code::AlreadyExists,
        FileErrorKind::AccessDenied => Code::PermissionDenied,
        FileErrorKind::Full => Code::ResourceExhausted,
        FileErrorKind::WrongState => Code::FailedPrecondition,
    }
}

fn file_details(error: &FileError) -> ErrorDetails {
    let reason = match error.kind() {
        FileErrorKind::AccessDenied => FILE_ACCESS,
        _ => FILE_FAILED,
    };
    let metadata = [
        ("operation", error.operation.as_str().to_owned()),
        ("errno", error.errno_name().into_owned()),
        ("path", cut(&path_text(&error.path))),
    ];
    info(reason, metadata)
}

/// Bytes that are not UTF-8 become U+FFFD.
fn path_text(path: &FilePath) -> Cow<'_, str> {
    String::from_utf8_lossy(path.as_bytes())
}

fn file_from_metadata<'a>(metadata: impl Fn(&str) -> &'a str) -> Option<FileError> {
    Some(FileError {
        operation: FileError::operation_from_name(metadata("operation"))?,
        path: FilePath::new(metadata("path")),
        errno: FileError::errno_from_name(metadata("errno"))?,
    })
}

fn spawn_details(error: &SpawnError) -> ErrorDetails {
    let mut details = info(SPAWN_FAILED, spawn_metadata(error));
    if error.is_exhausted() {
        details.set_retry_info(Some(RETRY_AFTER));
    }
    details
}

fn spawn_metadata(error: &SpawnError) -> [(&'static str, String); 4] {
    [
        ("stage", error.stage.to_string()),
        ("errno", error.errno_name().into_owned()),
        ("subject", cut(&error.subject)),
        ("missing_interpreter", error.missing_interpreter.to_string()),
    ]
}

fn spawn_from_metadata<'a>(metadata: impl Fn(&str) -> &'a str) -> Option<SpawnError> {
    Some(SpawnError {
        stage: SpawnStage::from_name(metadata("stage"))?,
        errno: SpawnError::errno_from_name(metadata("errno"))?,
        subject: metadata("subject").to_owned(),
        missing_interpreter: metadata("missing_interpreter") == "true",
    })
}

/// The message is the field and the reason.
fn unsupported(field: &str, message: &str) -> ExecutorError {
    let reason = message.strip_prefix(field).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(message);
    ExecutorError::Unsupported { field: field.to_owned().into(), reason: reason.to_owned() }
}

fn invalid_from_details(details: &ErrorDetails, message: &str) -> InvalidCommand {
    let violation = details.bad_request().and_then(|bad| bad.field_violations.first());
    match violation {
        Some(violation) => InvalidCommand::new(violation.field.clone(), violation.description.clone()),
        None => InvalidCommand::new("request", message.to_owned()),
    }
}

pub(super) fn info(reason: &str, metadata: impl IntoIterator<Item = (&'static str, String)>) -> ErrorDetails {
    let metadata: HashMap<String, String> = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    ErrorDetails::with_error_info(reason, DOMAIN, metadata)
}

/// The text, or as much of it as fits.
pub(super) fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_TEXT_BYTES);
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use telexec_executor::FileOperation;

    use super::*;

    fn denied(rule: Option<&str>, reason: &str, nearest: Option<&str>, missing: &[&str]) -> ExecutorError {
        let text = |text: &str| text.to_owned();
        let missing = missing.iter().copied().map(text).collect();
        ExecutorError::Denied { rule: rule.map(text), reason: text(reason), nearest: nearest.map(text), missing }
    }

    #[test]
    fn errors_survive_the_wire() {
        let failed = |stage, errno, missing_interpreter| {
            let subject = "/bin/x".to_owned();
            ExecutorError::Spawn(SpawnError { stage, subject, errno, missing_interpreter })
        };
        let spawn = |errno, missing_interpreter| failed(SpawnStage::Exec, errno, missing_interpreter);
        let file = |operation, errno| ExecutorError::File(FileError { operation, path: FilePath::new("/a\nb"), errno });
        let id = || "some-id".parse().unwrap();
        let cases = [
            (ExecutorError::Invalid(InvalidCommand::new("argv[1]", "is bad")), Code::InvalidArgument),
            (spawn(2, false), Code::NotFound),
            (spawn(20, false), Code::NotFound),
            (spawn(2, true), Code::FailedPrecondition),
            (spawn(13, false), Code::FailedPrecondition),
            (spawn(7, false), Code::FailedPrecondition),
            (spawn(11, false), Code::ResourceExhausted),
            (failed(SpawnStage::User, 2, false), Code::NotFound),
            (failed(SpawnStage::Cgroup, 2, false), Code::FailedPrecondition),
            (failed(SpawnStage::Cgroup, 16, false), Code::FailedPrecondition),
            (failed(SpawnStage::Rlimit, 1, false), Code::FailedPrecondition),
            (failed(SpawnStage::Setgroups, 1, false), Code::FailedPrecondition),
            (failed(SpawnStage::Setgid, 22, false), Code::FailedPrecondition),
            (failed(SpawnStage::Setuid, 11, false), Code::ResourceExhausted),
            (failed(SpawnStage::Prepare, 24, false), Code::ResourceExhausted),
            (failed(SpawnStage::Prepare, 28, false), Code::ResourceExhausted),
            (file(FileOperation::Open, 2), Code::NotFound),
            (file(FileOperation::MakeDirectory, 17), Code::AlreadyExists),
            (file(FileOperation::Write, 13), Code::PermissionDenied),
            (file(FileOperation::Read, 21), Code::FailedPrecondition),
            (file(FileOperation::Watch, 19), Code::FailedPrecondition),
            (ExecutorError::Corrupted { path: FilePath::new("/x") }, Code::DataLoss),
            (ExecutorError::NoUpload(id()), Code::NotFound),
            (
                ExecutorError::Unsupported { field: "limits.cpus".into(), reason: "no controller".into() },
                Code::FailedPrecondition,
            ),
            (ExecutorError::Unauthenticated { reason: "revoked".into() }, Code::Unauthenticated),
            (denied(Some("r"), "no", None, &[]), Code::PermissionDenied),
            (denied(None, "no", Some("n"), &[]), Code::PermissionDenied),
            (
                ExecutorError::ApprovalRequired { approval_id: "1f".into(), rule: "r".into(), reason: "wait".into() },
                Code::PermissionDenied,
            ),
            (ExecutorError::NoApproval("1f".into()), Code::NotFound),
            (
                ExecutorError::Exhausted { reason: "full".into(), retry_after: Some(Duration::from_secs(1)) },
                Code::ResourceExhausted,
            ),
            (ExecutorError::NotFound(id()), Code::NotFound),
            (ExecutorError::AlreadyExists(id()), Code::AlreadyExists),
            (ExecutorError::FailedPrecondition { reason: "it has ended".into() }, Code::FailedPrecondition),
            (ExecutorError::OutOfRange { field: "offset".into(), end: 7 }, Code::OutOfRange),
            (ExecutorError::DeadlineExceeded, Code::DeadlineExceeded),
            (ExecutorError::ShuttingDown, Code::Unavailable),
        ];
        for (error, code) in cases {
            let status = error_to_status(&error);
            assert_eq!(status.code(), code, "{error:?}");
            let retry = status.get_details_retry_info().and_then(|retry| retry.retry_delay);
            assert_eq!(retry.is_some(), code == Code::ResourceExhausted, "{error:?}");
            assert_eq!(format!("{:?}", error_from_status(&status)), format!("{error:?}"));
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let status = error_to_status(&denied(None, &"aé".repeat(5000), None, &[]));
        assert!(status.message().len() <= MAX_TEXT_BYTES && status.message().len() > MAX_TEXT_BYTES - 4);
    }

    #[test]
    fn a_denial_tells_its_conditions_and_does_not_log_them() {
        let error = denied(Some("default"), "no", Some("look"), &["a (a is 1)", "b"]);
        assert_eq!(error.to_string(), "no");
        let told = error_from_status(&error_to_status(&error));
        assert_eq!(told.to_string(), "no; not met: a (a is 1); b");
        let ExecutorError::Denied { rule, nearest, missing, .. } = told else { panic!("{told:?}") };
        assert_eq!((rule.as_deref(), nearest.as_deref()), (Some("default"), Some("look")));
        assert_eq!(missing, ["a (a is 1)", "b"]);

        let long = "é".repeat(200);
        let many = error_to_status(&denied(None, "no", None, &[long.as_str(); 16]));
        let ExecutorError::Denied { missing, .. } = error_from_status(&many) else { panic!("{many:?}") };
        assert_eq!(missing, [long.as_str(); 2]);
    }
}
