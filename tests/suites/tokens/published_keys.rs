//! Keys that the issuer publishes.

use telexec_client::{AccessToken, TlsOptions};
use telexec_executor::ExecutorError;
use telexec_tests::{Agent, Certs, JsonServer, TokenIssuer, until};

use crate::cli::troubleshooting::shows;

use super::{Tokened, identity, unauthenticated};

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

    async fn anna(&self) -> telexec_client::Agent {
        self.tokened.with(&self.tokened.issuer.token("anna")).await
    }
}

fn discover(server: &JsonServer, issuer: &str) {
    let keys = format!("{}/keys", server.url());
    server.set(DISCOVERY, 200, &serde_json::json!({ "issuer": issuer, "jwks_uri": keys }).to_string());
}

fn is_unreachable(error: &ExecutorError) -> String {
    let ExecutorError::Unreachable { endpoint, source } = error else { panic!("{error:?}") };
    shows("the token issuer … is unreachable", &error.to_string());
    assert!(endpoint.starts_with("the token issuer http://127.0.0.1:"), "{endpoint}");
    source.to_string()
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
    let agent = published.anna().await;
    until("the agent has its keys", async || identity(&agent).await.is_ok()).await;
    assert_eq!(published.server.asked(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_an_issuer_is_down_its_tokens_are_not_verified_and_others_call() {
    let published = Published::start(false, |_| String::new());
    let agent = published.anna().await;
    let why = is_unreachable(&identity(&agent).await.unwrap_err());
    assert!(why.contains(DISCOVERY) && why.contains("the answer is 404"), "{why}");
    until("the log says it", async || {
        published.tokened.agent.log().contains("cannot fetch the keys of a token issuer; trying again")
    })
    .await;
    // of another one, its keys are not taken
    discover(&published.server, "https://other.example.org");
    published.server.set("/keys", 200, &TokenIssuer::key_set(&[&published.tokened.issuer]));
    until("it was asked again", async || {
        is_unreachable(&identity(&agent).await.unwrap_err()).contains("is of another issuer")
    })
    .await;
    discover(&published.server, published.server.url());
    until("the agent has its keys", async || identity(&agent).await.is_ok()).await;
    assert_eq!(published.tokened.agent.reported("fetched the keys of a token issuer").0, 1);
    // and goes on with those it has
    published.server.set("/keys", 500, "");
    assert_eq!(identity(&agent).await.unwrap(), "corp:anna");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_is_fetched_with_the_first_token_that_it_signed() {
    let published = Published::start(true, |_| String::new());
    assert_eq!(identity(&published.anna().await).await.unwrap(), "corp:anna");
    let next = TokenIssuer::new(published.server.url());
    published.server.set("/keys", 200, &TokenIssuer::key_set(&[&next, &published.tokened.issuer]));
    let with_next = published.tokened.with(&next.token("bob")).await;
    until("the agent has it", async || identity(&with_next).await.is_ok()).await;
    // a key that nobody has costs the issuer no more than one fetch in ten seconds
    let (stranger, asked) = (TokenIssuer::new(published.server.url()), published.server.asked());
    for _ in 0..3 {
        let reason = unauthenticated(&published.tokened.with(&stranger.token("eve")).await).await;
        assert!(reason.contains("no key of its issuer fits"), "{reason}");
    }
    assert!(published.server.asked() <= asked + 2, "{} then {}", asked, published.server.asked());
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
    let Err(ExecutorError::Unreachable { source, .. }) = identity(&agent).await else { panic!("it has no keys") };
    assert!(source.to_string().contains("invalid peer certificate"), "{source}");
}
