//! Settings of issuers that cannot be used.

use telexec_tests::{Agent, Certs, TokenIssuer};

use super::ISSUER;

#[test]
fn what_is_wrong_is_named() {
    let (certs, issuer) = (Certs::new(), TokenIssuer::new(ISSUER));
    let keys = certs.ca.directory().join("keys.json");
    let good = issuer.table("corp", &keys, "");
    let replaced = |from: &str, to: &str| {
        assert!(good.contains(from), "{good}");
        good.replace(from, to)
    };
    let file = format!("{keys:?}");
    let empty = certs.ca.directory().join("empty.json");
    std::fs::write(&empty, "{\"keys\": [{\"kty\": \"oct\", \"k\": \"AAAA\"}]}").unwrap();
    let many = certs.ca.directory().join("many.json");
    std::fs::write(&many, serde_json::json!({ "keys": vec![issuer.public_key(); 65] }).to_string()).unwrap();
    for (config, why) in [
        (replaced(&file, &format!("{many:?}")), "has more than 64 keys for signatures"),
        (
            replaced("token_issuers.corp", "token_issuers.unix"),
            "token_issuers.unix: the name of the table begins the identities of callers",
        ),
        (replaced("token_issuers.corp", "token_issuers.\"a:b\""), "token_issuers.a:b: the name of the table begins"),
        (replaced("names = [\"**\"]", "names = []"), "token_issuers.corp.names is empty: no token would be accepted"),
        (replaced("names = [\"**\"]", ""), "missing field `names`"),
        (replaced("names = [\"**\"]", "names = [\"a**\"]"), "token_issuers.corp.names: \"a**\": "),
        (replaced("audiences = [\"telexec-tests\"]", "audiences = []"), "token_issuers.corp.audiences is empty"),
        (replaced(&file, "\"/no/such/file\""), "token_issuers.corp.keys_file: cannot read /no/such/file"),
        (replaced(&file, &format!("{empty:?}")), "has no public key for signatures: RSA, P-256, P-384 or Ed25519"),
        (
            replaced(&format!("keys_file = {file}"), "keys_url = \"http://example.org/keys\""),
            "token_issuers.corp.keys_url: \"http://example.org/keys\": expected https://",
        ),
        (replaced(&format!("keys_file = {file}"), "keys_ca = \"/no/such.pem\""), "token_issuers.corp.keys_ca: "),
        (
            format!("{good}keys_url = \"https://example.org/keys\""),
            "keys_file: keys_url and keys_ca are for keys that are fetched",
        ),
        (format!("{good}claims.a = []"), "token_issuers.corp.claims.a is empty: nothing would match"),
        (format!("{good}roles.r.a = [\"**x\"]"), "token_issuers.corp.roles.r.a: "),
        (format!("{good}presented_by = [\"[\"]"), "token_issuers.corp.presented_by: "),
        (format!("{good}presented_by = []"), "token_issuers.corp.presented_by is empty: no token would be accepted"),
        (format!("{good}roles.r = {{}}"), "token_issuers.corp.roles.r is empty: every caller would have it"),
        (format!("{good}max_lifetime = \"0s\""), "token_issuers.corp.max_lifetime is 0: no token would be accepted"),
        (format!("{good}name_claim = \"\""), "token_issuers.corp.name_claim: expected a text that is not empty"),
        (format!("{good}leeway = 1"), "unknown field `leeway`"),
        (
            format!("{good}{}", good.replace("corp", "other")),
            "token_issuers.other.issuer: another table has the same one",
        ),
    ] {
        let refused =
            Agent::builder().config(config.clone()).tls(&certs).try_start().err().unwrap_or_else(|| panic!("{config}"));
        assert_eq!(refused.status.code(), Some(78), "{refused}");
        assert!(refused.log.contains(why), "{config}\n{}", refused.log);
    }
    // without TLS nobody could present any
    let refused = Agent::builder().config(good.clone()).try_start().err().unwrap();
    assert!(refused.log.contains("token_issuers.corp needs tls_cert and tls_key"), "{}", refused.log);
    let refused =
        Agent::builder().config(format!("{good}presented_by = [\"x\"]")).tls(&certs).try_start().err().unwrap();
    assert!(refused.log.contains("must be given together"), "{}", refused.log);
}

#[test]
fn a_role_that_tokens_alone_give_is_known_to_the_policy() {
    let (certs, issuer) = (Certs::new(), TokenIssuer::new(ISSUER));
    let keys = certs.ca.directory().join("keys.json");
    let table = issuer.table("corp", &keys, "roles.operator.groups = [\"ops\"]");
    let policy = |role: &str| format!("permit(principal in Role::\"{role}\", action, resource);");
    let builder = || Agent::builder().config(table.clone()).tls(&certs);
    let _ = builder().policy(policy("operator")).start();
    let refused = builder().policy(policy("operater")).try_start().err().unwrap();
    assert!(refused.log.contains("operater"), "{}", refused.log);
}
