//! The table `[spiffe]`: certificates from the SPIFFE Workload API.

use std::time::Duration;

use serde::Deserialize;
use telexec_spiffe::WorkloadApi;

use crate::identity::patterns::NamePatterns;
use crate::invalid::InvalidSetting;
use crate::tls::WorkloadSettings;

/// Where the agent's X.509-SVID and trust bundles are from, and who may call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpiffeConfig {
    /// The socket of the Workload API: `unix:///PATH`, or `tcp://ADDRESS:PORT` on a loopback address.
    pub socket: String,
    /// The SPIFFE ID of the agent, if several are issued to it. Default: the first, which is the default identity.
    pub id: Option<String>,
    /// Patterns of the SPIFFE IDs that may call; `*` and `?` match within one part of an ID, `**` across parts, which `/` separates. At
    /// least one: every process of the trust domain has an SVID.
    pub callers: Vec<String>,
    /// How long a call may run on after its caller's SVID has expired. Default 12 h.
    #[serde(default = "default_call_grace", with = "humantime_serde")]
    pub call_grace: Duration,
}

fn default_call_grace() -> Duration {
    Duration::from_secs(12 * 60 * 60)
}

impl SpiffeConfig {
    /// # Errors
    /// A setting is malformed.
    pub(super) fn settings(&self, admits_without_certificate: bool) -> Result<WorkloadSettings, InvalidSetting> {
        let Self { socket, id, callers, call_grace } = self;
        let api = WorkloadApi::new(socket, id.as_deref()).map_err(|error| InvalidSetting(format!("spiffe.{error}")))?;
        if callers.is_empty() {
            let text =
                "spiffe.callers is empty: name the SPIFFE IDs that may call, such as \"spiffe://example.org/ops/*\"";
            return Err(InvalidSetting(text.to_owned()));
        }
        if let Some(pattern) = callers.iter().find(|pattern| !pattern.starts_with("spiffe://")) {
            return Err(InvalidSetting(format!(
                "spiffe.callers: {pattern:?}: expected a pattern that begins with spiffe://"
            )));
        }
        let callers = NamePatterns::new("spiffe.callers", callers)?;
        Ok(WorkloadSettings { api, callers, call_grace: *call_grace, admits_without_certificate })
    }
}
