//! Who may ask where no API key is asked for: programs of this machine, but no web page that a browser of it shows.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Uri};

use crate::failure::{Code, Failure};

/// Refuses what was not sent to this machine by its own name: a page can have its own name resolve to a loopback address (DNS
/// rebinding), or send what needs no answer to one.
pub(crate) async fn only(request: Request, next: Next) -> Result<Response, Failure> {
    check(request.headers())?;
    Ok(next.run(request).await)
}

fn check(headers: &HeaderMap) -> Result<(), Failure> {
    for name in [HOST, ORIGIN] {
        for value in headers.get_all(&name) {
            let value = value.to_str().unwrap_or_default();
            if !is_local(value.split_once("://").map_or(value, |(_, rest)| rest)) {
                let message = format!(
                    "{name}: {value:?} is not localhost or a loopback address, which is all that telexec-e2b serves without \
                     --token-file"
                );
                return Err(Failure::new(Code::PermissionDenied, message));
            }
        }
    }
    Ok(())
}

/// Of "HOST:PORT". Names below "localhost" are loopback too (RFC 6761).
fn is_local(authority: &str) -> bool {
    let Ok(uri) = Uri::builder().scheme("http").authority(authority).path_and_query("/").build() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    match host.parse::<std::net::IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_local() {
        for host in
            ["localhost", "LOCALHOST:3000", "127.0.0.1:3000", "127.1.2.3", "[::1]:3000", "49983-a-1f.localhost:1"]
        {
            assert!(is_local(host), "{host}");
        }
        for host in
            ["", "example.org", "localhost.example.org", "127.0.0.1.example.org", "10.0.0.1:1", "a@example.org", "null"]
        {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn a_web_page_is_refused() {
        let headers = |pairs: &[(http::HeaderName, &str)]| {
            pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect::<HeaderMap>()
        };
        assert!(check(&headers(&[(HOST, "127.0.0.1:3000")])).is_ok());
        assert!(check(&headers(&[(HOST, "127.0.0.1:3000"), (ORIGIN, "http://localhost:8080")])).is_ok());
        for origin in ["http://example.org", "null", "https://localhost.example.org"] {
            assert!(check(&headers(&[(HOST, "127.0.0.1:3000"), (ORIGIN, origin)])).is_err(), "{origin}");
        }
        assert!(check(&headers(&[(HOST, "example.org:3000")])).is_err());
    }
}
