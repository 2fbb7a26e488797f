//! Tokens that are not accepted.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use telexec_proto::v1::GetAgentRequest;
use telexec_tests::{Agent, Certs, TokenIssuer, Wire, now, until, within};
use tonic::{Code, Request};

use super::{ISSUER, Tokened, identity, unauthenticated};

#[tokio::test]
async fn what_a_token_lacks_is_named() {
    let tokened = Tokened::start("claims = { environment = [\"prod\"] }");
    let now = now();
    for (claims, why) in [
        (
            json!({"iss": "https://other.example.org"}),
            "its issuer (iss), \"https://other.example.org\", is none of token_issuers",
        ),
        (json!({"iss": null}), "not a signed JSON Web Token with an issuer (iss)"),
        (json!({"iss": [ISSUER]}), "not a signed JSON Web Token with an issuer (iss)"),
        (json!({"aud": "others"}), "its audience (aud), \"others\", is none of the agent's"),
        (json!({"aud": ["others", "telexec"]}), "its audience (aud), "),
        (json!({"aud": []}), "its audience (aud), "),
        (json!({"aud": null}), "it has no claim aud"),
        (json!({"aud": 7}), "it has no claim aud"),
        (json!({"exp": null}), "it has no claim exp"),
        (json!({"exp": "tomorrow"}), "it has no claim exp"),
        (json!({"exp": -1}), "it has no claim exp"),
        (json!({"exp": now - 60, "iat": now - 120}), "it expired "),
        (json!({"nbf": now + 120}), "it is valid only in "),
        (json!({"nbf": "now"}), "its claim nbf is not a time"),
        (json!({"iat": now + 120}), "it is valid only in "),
        (json!({"exp": now + 25 * 3600}), "it is valid for more than 86400 s (max_lifetime)"),
        (json!({"exp": now + 25 * 3600, "iat": null}), "it is valid for more than 86400 s"),
        (json!({"exp": u64::MAX}), "it is valid for more than 86400 s"),
        (json!({"sub": null}), "it has no claim sub, which would name the caller"),
        (json!({"sub": 7}), "it has no claim sub, which would name the caller"),
        (json!({"sub": ""}), "its claim sub cannot be a name"),
        (json!({"sub": "a\nb"}), "its claim sub cannot be a name"),
        (json!({"sub": " anna"}), "its claim sub cannot be a name"),
        (json!({"sub": "an\u{202e}na"}), "its claim sub cannot be a name"),
        (json!({"sub": "a".repeat(4000)}), "its claim sub cannot be a name"),
        (json!({"environment": "test"}), "its claim environment is not as token_issuers.corp.claims says"),
        (json!({"environment": null}), "its claim environment is not as token_issuers.corp.claims says"),
        (
            json!({"cnf": {"x5t#S256": "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"}}),
            "bound (cnf) to another client certificate",
        ),
        (json!({"cnf": {"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}}), "bound (cnf) to something else"),
        (json!({"padding": "x".repeat(20_000)}), "longer than 16384 bytes"),
    ] {
        let mut all = json!({"sub": "anna", "environment": "prod"});
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        let reason = unauthenticated(&tokened.with(&tokened.issuer.sign(all)).await).await;
        assert!(reason.contains(why), "{claims}: {reason}");
    }
    let good = tokened.issuer.sign(json!({"sub": "anna", "environment": "prod", "aud": ["x", "telexec-tests"]}));
    assert_eq!(identity(&tokened.with(&good).await).await.unwrap(), "corp:anna");
}

#[tokio::test]
async fn names_are_those_that_the_issuer_may_give() {
    let (certs, issuer) = (Certs::new(), TokenIssuer::new(ISSUER));
    let keys = certs.ca.directory().join("keys.json");
    let table = issuer.table("ci", &keys, "name_claim = \"repository\"");
    let table = table.replace("[\"**\"]", "[\"example/*\", \"exact/one\"]");
    let agent = Agent::builder().config(table).tls(&certs).start();
    let tokened = Tokened { agent, certs, issuer, keys };
    let with = async |repository: Value| {
        let token = tokened.issuer.sign(json!({"sub": "x", "repository": repository}));
        identity(&tokened.with(&token).await).await.map_err(|error| error.to_string())
    };
    assert_eq!(with(json!("example/app")).await.unwrap(), "ci:example/app");
    assert_eq!(with(json!("exact/one")).await.unwrap(), "ci:exact/one");
    for name in ["example/app/x", "examples/app", "example", "exact/two", "Example/app", "x\u{0}example/app"] {
        let refused = with(json!(name)).await.unwrap_err();
        assert!(
            refused.contains("is none of token_issuers.ci.names") || refused.contains("cannot be a name"),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn only_the_keys_of_the_issuer_sign_and_by_their_algorithm() {
    let tokened = Tokened::start("");
    let claims = json!({"sub": "anna"});
    let (issuer, stranger) = (&tokened.issuer, TokenIssuer::new(ISSUER));
    let header = issuer.header();
    let secret = serde_json::to_vec(&issuer.public_key()).unwrap();
    let symmetric = TokenIssuer::with_key(ISSUER, Algorithm::HS256, EncodingKey::from_secret(&secret).unwrap());
    let token = issuer.sign(claims.clone());
    let [head, body, signature] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
    let encoded = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let unsigned = encoded(json!({"alg": "none", "typ": "JWT"}));
    let critical = Header { crit: Some(vec!["exp".to_owned()]), ..header.clone() };
    let logout = Header { typ: Some("logout+jwt".to_owned()), ..header.clone() };
    let renamed = Header { kid: Some("another".to_owned()), ..header.clone() };
    let signed_by = "its signature is not by a key of its issuer";
    for (token, why) in [
        (stranger.sign_with(&header, claims.clone()), signed_by),
        (stranger.sign(claims.clone()), "no key of its issuer fits its header (kid and alg)"),
        (issuer.sign_with(&renamed, claims.clone()), "no key of its issuer fits its header (kid and alg)"),
        (issuer.sign_with(&logout, claims.clone()), "its type (typ) is neither JWT nor at+jwt"),
        // the public key as a secret
        (
            symmetric.sign_with(&Header { kid: header.kid.clone(), ..Header::new(Algorithm::HS256) }, claims.clone()),
            "no key",
        ),
        (format!("{unsigned}.{body}."), "not a signed JSON Web Token"),
        (format!("{unsigned}.{body}.{signature}"), "not a signed JSON Web Token"),
        (issuer.sign_with(&critical, claims.clone()), "not a signed JSON Web Token"),
        (
            format!(
                "{head}.{}.{signature}",
                encoded(json!({"iss": ISSUER, "aud": "telexec-tests", "exp": now() + 60, "sub": "root"}))
            ),
            signed_by,
        ),
        (format!("{head}.{body}"), "not a signed JSON Web Token"),
        (format!("{head}.{body}.{signature}.{signature}"), "not a signed JSON Web Token"),
        (format!("{head}.{body}.{}", &signature[..signature.len() - 2]), signed_by),
        ("x".to_owned(), "not a signed JSON Web Token"),
        ("..".to_owned(), "not a signed JSON Web Token"),
    ] {
        let reason = unauthenticated(&tokened.with(&token).await).await;
        assert!(reason.contains(why), "{token}: {reason}");
    }
    let unnamed = Header { kid: None, typ: Some("application/at+JWT".to_owned()), ..header };
    let good = issuer.sign_with(&unnamed, claims);
    assert_eq!(identity(&tokened.with(&good).await).await.unwrap(), "corp:anna");
}

/// The beginning of a private key (PKCS#8) without its public one.
const ED25519: &[u8] =
    &[0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// With several algorithms, keys for other purposes, and one that nobody knows.
#[tokio::test]
async fn keys_of_the_usual_kinds_are_used_and_others_are_skipped() {
    let ed25519 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let p384 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let with = |algorithm, key| TokenIssuer::with_key(ISSUER, algorithm, key);
    let issuers = [
        with(Algorithm::EdDSA, EncodingKey::from_ed_der(&[ED25519, &ed25519.serialize_der()[16..48]].concat())),
        with(Algorithm::ES384, EncodingKey::from_ec_der(&p384.serialize_der())),
    ];
    let tokened = Tokened::start("");
    let mut keys: Vec<_> = issuers.iter().map(TokenIssuer::public_key).collect();
    let mut encrypting = tokened.issuer.public_key();
    encrypting["use"] = json!("enc");
    keys.extend([json!({"kty": "future", "kid": "x"}), json!({"kty": "oct", "k": "AAAA"}), encrypting]);
    std::fs::write(&tokened.keys, json!({ "keys": keys }).to_string()).unwrap();
    until("the agent has the new keys", async || tokened.agent.reported("token keys loaded").0 > 1).await;
    for issuer in &issuers {
        assert_eq!(identity(&tokened.with(&issuer.token("anna")).await).await.unwrap(), "corp:anna");
    }
    let reason = unauthenticated(&tokened.with(&tokened.issuer.token("anna")).await).await;
    assert!(reason.contains("no key of its issuer fits"), "{reason}");
}

#[tokio::test]
async fn headers_that_say_nothing_clear_are_refused() {
    let tokened = Tokened::start("");
    let token = tokened.issuer.token("anna");
    let ask = async |headers: &[&str]| {
        let wire = Wire::connect_tls(&tokened.agent, tokened.certs.config(None)).await.unwrap();
        let mut request = Request::new(GetAgentRequest {});
        for header in headers {
            request.metadata_mut().append("authorization", header.parse().unwrap());
        }
        within(wire.agent().get_agent(request)).await.map(|answer| answer.into_inner().identity)
    };
    for scheme in ["Bearer", "bearer", "BEARER"] {
        assert_eq!(ask(&[&format!("{scheme} {token}")]).await.unwrap(), "corp:anna");
    }
    for (headers, why) in [
        (vec![token.clone()], "not of the form: Bearer TOKEN"),
        (vec!["Basic YTpi".to_owned()], "not of the form: Bearer TOKEN"),
        (vec![format!("Bearer {token}"), format!("Bearer {token}")], "several authorization headers"),
        (vec!["Bearer ".to_owned()], "not a signed JSON Web Token"),
        (vec![format!("Bearer {token} x")], "not a signed JSON Web Token"),
    ] {
        let headers: Vec<_> = headers.iter().map(String::as_str).collect();
        let status = ask(&headers).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(status.message().contains(why), "{headers:?}: {}", status.message());
    }
}
