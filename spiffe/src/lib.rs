//! X.509-SVIDs: the certificates that a machine's SPIFFE Workload API issues to workloads, the trust bundles that verify those of others,
//! and what a certificate must have to count as one.
//!
//! The standards are at <https://spiffe.io/docs/latest/spiffe-specs/>.

mod credentials;
mod peer;
mod workload_api;

pub use credentials::{TrustBundles, X509Credentials};
pub use peer::{NotSvid, spiffe_id};
pub use spiffe::{SpiffeId, TrustDomain};
pub use workload_api::{InvalidWorkloadApi, WorkloadApi, WorkloadApiError};
