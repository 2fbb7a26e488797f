//! Receipts: what an agent has run, for whom and how it ended, signed with the agent's key.
//!
//! A receipt is an [in-toto statement](https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md) in a
//! [DSSE envelope](https://github.com/secure-systems-lab/dsse/blob/master/envelope.md), signed with Ed25519, so that
//! other programs verify it too. `statement` is what it says, `envelope` signs and verifies that, `key` has the keys.

mod envelope;
mod key;
mod statement;

pub use self::envelope::{ReceiptError, Verified, sign, verify};
pub use self::key::{KeyError, PublicKey, SigningKey};
pub use self::statement::{
    Agent, COMMAND, Caller, End, Limits, Policy, Receipt, Request, STDERR, STDIN, STDOUT, Start, Statement, Stream,
    Subject, sha256,
};
