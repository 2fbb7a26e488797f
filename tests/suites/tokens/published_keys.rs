//! Keys that the issuer publishes.

use telexec_client::{AccessToken, TlsOptions};
use telexec_executor::ExecutorError;
use telexec_tests::{Agent, Certs, JsonServer, TokenIssuer, until};

use crate::cli::troubleshooting::shows;

use super::{Tokened, ask, identity};

const DISCOVERY: &str = "/.well-known/openid-configuration";

struct Published {
    server: JsonServer,
    tokened: Tokened,
}

impl Published {
    /// The issuer says where its keys are, if it says anything.
    fn start(up: bool, more: impl FnOnce(&JsonServer) -> String) -> Self {
        let server = JsonServer::start();
        let (certs, issuer) = (Certs::new(), TokenIssuer::new(server.url()));
        if up {
            discover(&server, server.url());
            server.set("/keys", 200, &TokenIssuer::key_set(&[&issuer]));
        }
        let ca = certs.ca.cert();
        let config = format!("{}keys_ca = {ca:?}\n{}", issuer.table_without_keys("corp"), more(&server));
        let agent = Agent::builder().config(config).tls(&certs).start();
        let keys = certs.ca.directory().join("unused");
        Self { server, tokened: Tokened { agent, certs, issuer, keys } }
    }

    /// Waits until the agent has the keys.
    async fn fetched(&self) {
        let has_keys = || self.tokened.agent.log().contains("fetched the keys of a token issuer");
        until("the agent has the keys", async || has_keys()).await;
    }

    async fn anna(&self) -> telexec_client::Agent {
        self.tokened.with(&self.tokened.issuer.token("anna")).await
    }
}

fn discover(server: &JsonServer, issuer: &str) {
    let keys = format!("{}/keys", server.url());
    server.set(DISCOVERY, 200, &serde_json::json!({ "issuer": issuer, "jwks_uri": keys }).to_string());
}

/// The agent does not have the keys, and tells no stranger why.
fn without_keys(error: &ExecutorError) {
    let ExecutorError::Unauthenticated { reason } = error else { panic!("{error:?}") };
    shows("the token cannot be verified: …", reason);
    assert!(!reason.contains("127.0.0.1"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_where_the_issuer_says() {
    let published = Published::start(true, |_| String::new());
    assert_eq!(identity(&published.anna().await).await.unwrap(), "corp:anna");
    let asked = published.server.asked();
    for _ in 0..20 {
        assert_eq!(identity(&published.anna().await).await.unwrap(), "corp:anna");
    }
    assert_eq!(published.server.asked(), asked, "they are kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_where_the_configuration_says() {
    let server = JsonServer::start();
    let url = format!("{}/elsewhere", server.url());
    let published = Published::start(false, |_| format!("keys_url = {url:?}"));
    server.set("/elsewhere", 200, &TokenIssuer::key_set(&[&published.tokened.issuer]));
    published.fetched().await;
    assert_eq!(identity(&published.anna().await).await.unwrap(), "corp:anna");
    assert_eq!(published.server.asked(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_an_issuer_is_down_its_tokens_are_not_verified_and_others_call() {
    let published = Published::start(false, |_| String::new());
    let logged = |text: &str| published.tokened.agent.log().contains(text);
    without_keys(&identity(&published.anna().await).await.unwrap_err());
    until("the log says why", async || logged("cannot fetch the keys of a token issuer; trying again")).await;
    assert!(logged("/.well-known/openid-configuration: the answer is 404"));
    // of another one, its keys are not taken
    discover(&published.server, "https://other.example.org");
    published.server.set("/keys", 200, &TokenIssuer::key_set(&[&published.tokened.issuer]));
    until("it was asked again", async || logged("is of another issuer")).await;
    without_keys(&identity(&published.anna().await).await.unwrap_err());
    discover(&published.server, published.server.url());
    published.fetched().await;
    assert_eq!(identity(&published.anna().await).await.unwrap(), "corp:anna");
    // and goes on with those it has
    published.server.set("/keys", 500, "");
    assert_eq!(identity(&published.anna().await).await.unwrap(), "corp:anna");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_is_fetched_with_the_first_token_that_it_signed() {
    let published = Published::start(true, |_| String::new());
    assert_eq!(identity(&published.anna().await).await.unwrap(), "corp:anna");
    let next = TokenIssuer::new(published.server.url());
    published.server.set("/keys", 200, &TokenIssuer::key_set(&[&next, &published.tokened.issuer]));
    let wire = published.tokened.stranger().await;
    ask(&wire, Some(&published.tokened.issuer.token("anna"))).await.unwrap();
    until("the agent has it", async || ask(&wire, Some(&next.token("bob"))).await.is_ok()).await;
    // a key that nobody has costs the issuer no more than one fetch in ten seconds
    let (stranger, asked) = (TokenIssuer::new(published.server.url()), published.server.asked());
    for _ in 0..100 {
        let status = ask(&wire, Some(&stranger.token("eve"))).await.unwrap_err();
        assert!(status.message().contains("no key of its issuer fits"), "{status:?}");
    }
    // a fetch asks twice, and a slow machine may have time for several
    assert!(published.server.asked() < asked + 20, "{} then {}", asked, published.server.asked());
}

/// The issuer's own certificate is verified.
#[tokio::test(flavor = "multi_thread")]
async fn keys_come_by_tls_from_whom_the_configured_ca_names() {
    let (certs, strangers) = (Certs::new(), Certs::new());
    let issuer = TokenIssuer::new("https://issuer.example.org");
    // the agent itself is a server with TLS that is not the issuer
    let other = Agent::builder().mtls(&strangers).start();
    let url = format!("https://{}/keys", other.address());
    let table = format!("{}keys_url = {url:?}\nkeys_ca = {:?}", issuer.table_without_keys("corp"), certs.ca.cert());
    let agent = Agent::builder().config(table).tls(&certs).start();
    let keys = certs.ca.directory().join("unused");
    let tokened = Tokened { agent, certs, issuer, keys };
    let tls = TlsOptions::without_certificate(tokened.certs.ca.cert());
    let agent = tokened.connect_by(tls, Some(AccessToken::Text(tokened.issuer.token("anna")))).await;
    without_keys(&identity(&agent).await.unwrap_err());
    until("the log says why", async || tokened.agent.log().contains("invalid peer certificate")).await;
}
