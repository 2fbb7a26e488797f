//! What fails in the course of a forward, and its `google.rpc.Status`.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;

use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::status::{cut, info};

const DIAL_FAILED: &str = "DIAL_FAILED";
const LISTEN_FAILED: &str = "LISTEN_FAILED";
const CONNECTION_RESET: &str = "CONNECTION_RESET";
const CONNECTION_NOT_FOUND: &str = "CONNECTION_NOT_FOUND";

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardStep {
    /// To connect.
    Dial,
    /// To listen.
    Listen,
    /// To go on: the connection was reset.
    Carry,
    /// To take a connection that was accepted: it is not there any more.
    Take,
}

/// Why there is no connection, or not any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardFailure {
    /// What failed.
    pub step: ForwardStep,
    /// The address as it was asked for, or the id of an accepted connection.
    pub address: String,
    /// The name of the system's error, such as `ECONNREFUSED`; that of a name without address is `EAI_NONAME`.
    pub errno: String,
    /// The whole, in words.
    message: String,
}

impl ForwardFailure {
    /// The system refused it.
    pub fn new(step: ForwardStep, address: impl fmt::Display, error: &io::Error) -> Self {
        let errno = match error.raw_os_error() {
            Some(number) => errno_name(number),
            None if error.kind() == io::ErrorKind::TimedOut => "ETIMEDOUT".into(),
            None => "EIO".into(),
        };
        let text = error.to_string();
        let reason = match text.split_once(" (os error") {
            Some((reason, _)) => reason.to_lowercase(),
            None => text,
        };
        Self::because(step, address, &errno, &reason)
    }

    /// It is impossible for this reason.
    pub fn because(step: ForwardStep, address: impl fmt::Display, errno: &str, reason: &str) -> Self {
        let address = address.to_string();
        let message = match step {
            ForwardStep::Dial => format!("cannot connect to {address}: {reason}"),
            ForwardStep::Listen => format!("cannot listen on {address}: {reason}"),
            ForwardStep::Carry => format!("the connection to {address} broke: {reason}"),
            ForwardStep::Take => format!("no accepted connection {address}: {reason}"),
        };
        Self { step, address, errno: errno.to_owned(), message }
    }

    fn code(&self) -> Code {
        match (self.step, self.errno.as_str()) {
            (ForwardStep::Carry, _) => Code::Aborted,
            (ForwardStep::Take, _) | (_, "ENOENT" | "EAI_NONAME") => Code::NotFound,
            (_, "EMFILE" | "ENFILE" | "ENOMEM" | "ENOBUFS") => Code::ResourceExhausted,
            (
                _,
                "EPERM" | "EACCES" | "EEXIST" | "ENOTDIR" | "EINVAL" | "ENAMETOOLONG" | "ELOOP" | "ENOTSOCK"
                | "EPROTOTYPE" | "EADDRINUSE" | "EADDRNOTAVAIL",
            ) => Code::FailedPrecondition,
            _ => Code::Unavailable,
        }
    }
}

impl fmt::Display for ForwardFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for ForwardFailure {}

/// The failure as it travels.
pub fn forward_failure_to_status(failure: &ForwardFailure) -> Status {
    let reason = match failure.step {
        ForwardStep::Dial => DIAL_FAILED,
        ForwardStep::Listen => LISTEN_FAILED,
        ForwardStep::Carry => CONNECTION_RESET,
        ForwardStep::Take => CONNECTION_NOT_FOUND,
    };
    let metadata = [("errno", failure.errno.clone()), ("address", cut(&failure.address))];
    Status::with_error_details(failure.code(), cut(&failure.message), info(reason, metadata))
}

/// A failure that an agent answered; `None`: the status is of another kind.
pub fn forward_failure_from_status(status: &Status) -> Option<ForwardFailure> {
    let details = status.get_error_details();
    let info = details.error_info()?;
    let step = match info.reason.as_str() {
        DIAL_FAILED => ForwardStep::Dial,
        LISTEN_FAILED => ForwardStep::Listen,
        CONNECTION_RESET => ForwardStep::Carry,
        CONNECTION_NOT_FOUND => ForwardStep::Take,
        _ => return None,
    };
    let metadata = |key: &str| info.metadata.get(key).cloned().unwrap_or_default();
    Some(ForwardFailure {
        step,
        address: metadata("address"),
        errno: metadata("errno"),
        message: status.message().to_owned(),
    })
}

/// The errors of connect(2), bind(2), recv(2) and send(2), as Linux counts them.
const ERRNO_NAMES: [(i32, &str); 27] = [
    (1, "EPERM"),
    (2, "ENOENT"),
    (11, "EAGAIN"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (17, "EEXIST"),
    (20, "ENOTDIR"),
    (22, "EINVAL"),
    (23, "ENFILE"),
    (24, "EMFILE"),
    (30, "EROFS"),
    (32, "EPIPE"),
    (36, "ENAMETOOLONG"),
    (40, "ELOOP"),
    (88, "ENOTSOCK"),
    (91, "EPROTOTYPE"),
    (97, "EAFNOSUPPORT"),
    (98, "EADDRINUSE"),
    (99, "EADDRNOTAVAIL"),
    (100, "ENETDOWN"),
    (101, "ENETUNREACH"),
    (103, "ECONNABORTED"),
    (104, "ECONNRESET"),
    (105, "ENOBUFS"),
    (110, "ETIMEDOUT"),
    (111, "ECONNREFUSED"),
    (113, "EHOSTUNREACH"),
];

fn errno_name(number: i32) -> Cow<'static, str> {
    let known = ERRNO_NAMES.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| number.to_string().into(), |(_, name)| Cow::Borrowed(*name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_survive_the_wire() {
        let system = |step, number| ForwardFailure::new(step, "db:1", &io::Error::from_raw_os_error(number));
        for (failure, code, text) in [
            (system(ForwardStep::Dial, 111), Code::Unavailable, "cannot connect to db:1: connection refused"),
            (
                ForwardFailure::because(ForwardStep::Dial, "x:1", "EAI_NONAME", "no such name"),
                Code::NotFound,
                "cannot connect to x:1: no such name",
            ),
            (
                system(ForwardStep::Listen, 98),
                Code::FailedPrecondition,
                "cannot listen on db:1: address already in use",
            ),
            (system(ForwardStep::Carry, 104), Code::Aborted, "the connection to db:1 broke: connection reset by peer"),
            (
                ForwardFailure::because(ForwardStep::Take, "7", "ENOENT", "it was closed"),
                Code::NotFound,
                "no accepted connection 7: it was closed",
            ),
        ] {
            let status = forward_failure_to_status(&failure);
            assert_eq!((status.code(), status.message()), (code, text));
            assert_eq!(forward_failure_from_status(&status), Some(failure));
        }
        assert_eq!(forward_failure_from_status(&Status::aborted("x")), None);
    }
}
