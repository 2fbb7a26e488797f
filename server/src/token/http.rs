//! Fetches JSON by HTTPS, or by HTTP from this machine.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::ACCEPT;
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use telexec_executor::text::error_chain;

use super::key_set::MAX_BYTES;
use crate::tls::{certificates, roots};

/// For the whole response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Fetches JSON; clones share connections.
#[derive(Clone, Debug)]
pub(super) struct HttpClient(Client<HttpsConnector<HttpConnector>, Empty<Bytes>>);

impl HttpClient {
    /// With the CAs of this file, or else those of the system, which need not have any if nothing is fetched by HTTPS.
    ///
    /// # Errors
    /// There are none, or the file cannot be used.
    pub(super) fn new(ca: Option<&Path>, is_https: bool) -> Result<Self, String> {
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let builder = match ca {
            Some(path) => {
                let roots = certificates(path).and_then(|cas| roots(path, cas));
                builder.with_root_certificates(roots.map_err(|error| error_chain(&error))?)
            }
            None if !is_https => builder.with_root_certificates(RootCertStore::empty()),
            None => builder.with_native_roots().map_err(|error| {
                format!("this system has no CA certificates ({error}): install them (ca-certificates), or set keys_ca")
            })?,
        };
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(TIMEOUT));
        let tls = HttpsConnectorBuilder::new().with_tls_config(builder.with_no_client_auth());
        let connector = tls.https_or_http().enable_http1().wrap_connector(http);
        Ok(Self(Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector)))
    }

    /// What is at `url`. Redirections are not followed.
    ///
    /// # Errors
    /// It cannot be had.
    pub(super) async fn get(&self, url: &str) -> Result<Bytes, String> {
        let failed = |reason: String| format!("{url}: {reason}");
        check_url(url).map_err(failed)?;
        match tokio::time::timeout(TIMEOUT, self.fetch(url)).await {
            Ok(fetched) => fetched.map_err(|error| failed(error_chain(&*error))),
            Err(_) => Err(failed(format!("no answer within {} s", TIMEOUT.as_secs()))),
        }
    }

    async fn fetch(&self, url: &str) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
        let request = Request::get(url).header(ACCEPT, "application/json").body(Empty::new())?;
        let response = self.0.request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(format!("the answer is {}", response.status()).into());
        }
        Ok(Limited::new(response.into_body(), MAX_BYTES).collect().await?.to_bytes())
    }
}

/// Whether what is at this URL can be trusted to be its owner's.
///
/// # Errors
/// Why not.
pub(super) fn check_url(url: &str) -> Result<(), String> {
    let uri: Uri = url.parse().map_err(|error| format!("{url:?} is not a URL: {error}"))?;
    let host = uri.host().unwrap_or_default();
    let is_local = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
    match uri.scheme_str() {
        Some("https") if !host.is_empty() => Ok(()),
        Some("http") if is_local => Ok(()),
        _ => Err(format!("{url:?}: expected https://, or http:// on a loopback address")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_for_loopback_addresses() {
        for url in [
            "https://i.example.org/a?b",
            "https://10.0.0.1:8443",
            "http://localhost:1/x",
            "http://127.0.0.1",
            "http://[::1]:1",
        ] {
            check_url(url).unwrap();
        }
        for url in [
            "",
            "x",
            "/x",
            "http://i.example.org",
            "http://localhost.example.org",
            "http://127.0.0.1.nip.io",
            "ftp://localhost",
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
        for url in ["http://localhost@i.example.org/", "file:///etc/passwd", "https://", "http://0.0.0.0"] {
            assert!(check_url(url).is_err(), "{url}");
        }
    }
}
