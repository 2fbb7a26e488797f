//! How a machine gets a certificate of `telexec certs` without anybody copying a key: a one-time [`Token`], a key that it
//! makes itself, and a call to the CA's service (`proto/telexec/enrollment/v1/enrollment.proto`).
//!
//! `args` is the command line and what it does, `client` calls the service, and `machine` holds the files.

mod args;
mod client;
mod error;
pub mod files;
mod machine;
mod token;

pub use args::{EnrollArgs, Enrolled};
pub use error::EnrollError;
pub use machine::MachineFiles;
pub use token::{InvalidToken, Token, is_name};

/// The name in the certificate of the CA's service. The domain `invalid` is nobody's (RFC 6761), and the CA issues
/// certificates for this name to nobody else.
pub const SERVER_NAME: &str = "enrollment.telexec.invalid";
/// Where the CA's service listens, if no other port is given.
pub const DEFAULT_PORT: u16 = 7444;
