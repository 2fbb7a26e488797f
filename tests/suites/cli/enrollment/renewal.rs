//! Certificates and CAs that are renewed.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_renews_itself_until_it_is_revoked() {
    let place = Place::new().await;
    let service = place.serve("ca", &[]).await;
    let (web1, old) = (place.token("ca", &WEB1).await, place.token("ca", &["alice", "--client"]).await);
    place.enroll(&service.address, "web1", &["--token-file", &web1]).await.answer();
    place.enroll(&service.address, "alice", &["--token-file", &old]).await.answer();
    let (key, cert) = (place.read("web1/web1.key"), place.read("web1/web1.pem"));

    // not due, but what was revoked meanwhile is known afterwards
    let agent = place.agent("web1", "web1");
    place.exec(&agent, "alice", "alice").await.answer();
    place.certs(&["revoke", "alice"], "ca").await.answer();
    let said = place.enroll(&service.address, "web1", &["--renew"]).await;
    assert!(said.answer().contains("not due"), "{said:?}");
    assert_eq!(place.read("web1/crl.pem"), place.read("ca/crl.pem"));
    telexec_tests::until("the agent refuses her", async || place.exec(&agent, "alice", "alice").await.code == 255)
        .await;

    place.enroll(&service.address, "web1", &["--renew", "--force"]).await.answer();
    assert!(place.read("web1/web1.key") == key && place.read("web1/web1.pem") != cert);
    place.agent("web1", "web1");

    place.certs(&["revoke", "web1"], "ca").await.answer();
    let said = place.enroll(&service.address, "web1", &["--renew", "--force"]).await;
    assert!(said.code == 1 && said.stderr().contains("is revoked"), "{said:?}");
    // one that another CA issued for the same name
    place.certs(&["init"], "other").await.answer();
    place.certs(&[&["issue"], &WEB1[..]].concat(), "other").await.answer();
    std::fs::create_dir(place.path("forged")).unwrap();
    for (from, to) in [("other/web1.pem", "web1.pem"), ("other/web1.key", "web1.key"), ("ca/ca.pem", "ca.pem")] {
        std::fs::copy(place.path(from), place.path("forged").join(to)).unwrap();
    }
    let said = place.enroll(&service.address, "forged", &["--renew", "--force"]).await;
    assert!(said.code == 1 && said.stderr().contains("not issued by this CA"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_ca_takes_over_from_the_old_one() {
    let place = Place::new().await;
    place.certs(&["init", "--name", "the next CA"], "next").await.answer();
    let (before, next) = (place.text("ca"), place.text("next"));
    let service = place.serve("ca", &["--trust", &next]).await;
    let token = place.token("ca", &WEB1).await;
    place.enroll(&service.address, "web1", &["--token-file", &token]).await.answer();
    // everybody trusts both
    assert_eq!(place.read("web1/ca.pem"), place.read("ca/ca.pem") + &place.read("next/ca.pem"));
    place.agent("web1", "web1");

    let service = place.serve("next", &["--trust", &before]).await;
    let issuer = async || {
        let said = say(&["certs", "show", &place.text("web1/web1.pem")]).await;
        said.answer().lines().find(|line| line.starts_with("issuer:")).unwrap().to_owned()
    };
    assert!(!issuer().await.contains("the next CA"));
    place.enroll(&service.address, "web1", &["--renew"]).await.answer();
    assert!(issuer().await.contains("the next CA"));
    place.agent("web1", "web1");
    // the old one may go
    let service = place.serve("next", &[]).await;
    let said = place.enroll(&service.address, "web1", &["--renew"]).await;
    assert!(said.answer().contains("not due"), "{said:?}");
    assert_eq!(place.read("web1/ca.pem"), place.read("next/ca.pem"));
    place.agent("web1", "web1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ca_that_is_renewed_meanwhile_is_still_the_ca_of_its_tokens() {
    let place = Place::new().await;
    let service = place.serve("ca", &[]).await;
    let before = place.token("ca", &WEB1).await;
    let ca = place.read("ca/ca.pem");
    place.certs(&["renew", "--ca"], "ca").await.answer();
    assert_ne!(place.read("ca/ca.pem"), ca);
    let after = place.token("ca", &["web2", "--server"]).await;
    for (machine, token) in [("web1", before), ("web2", after)] {
        place.enroll(&service.address, machine, &["--token-file", &token]).await.answer();
        assert_eq!(place.read(&format!("{machine}/ca.pem")), place.read("ca/ca.pem"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_by_force_are_limited_by_name() {
    let place = Place::new().await;
    let service = place.serve("ca", &[]).await;
    for name in ["web1", "web2"] {
        let token = place.token("ca", &[name, "--server"]).await;
        place.enroll(&service.address, name, &["--token-file", &token]).await.answer();
    }
    let mut renewed = 0;
    let refused = loop {
        let said = place.enroll(&service.address, "web1", &["--renew", "--force"]).await;
        if said.code != 0 {
            break said;
        }
        renewed += 1;
        assert!(renewed < 50, "nothing limits it");
    };
    assert!(refused.stderr().contains("web1 has been renewed too often"), "{refused:?}");
    // what is not due costs nothing, and others have their own
    place.enroll(&service.address, "web1", &["--renew"]).await.answer();
    place.enroll(&service.address, "web2", &["--renew", "--force"]).await.answer();
}
