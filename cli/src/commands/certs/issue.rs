//! Certificates that the CA issues, for agents and for callers.

use std::net::IpAddr;
use std::path::Path;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SanType};

use super::ca::CertificateAuthority;
use super::{FAILED, common_name, directory, failed, files, new_key, new_serial, validity};
use crate::args::CertsIssueArgs;
use crate::output::{self, Failure, exit};

pub(super) fn issue(args: &CertsIssueArgs) -> Result<(), Failure> {
    let names = subject_names(args)?;
    let directory = directory(args.dir.as_ref())?;
    let ca = CertificateAuthority::load(&directory)?;
    let out = args.out.as_deref().unwrap_or(&directory);
    let (cert, key) = (out.join(format!("{}.pem", args.name)), out.join(format!("{}.key", args.name)));
    if cert == ca.cert || key == ca.key {
        return Err(Failure::message(FAILED, "these are the files of the CA itself: choose another NAME"));
    }
    let (cert_pem, key_pem) = make(args, names, &ca)?;
    files::write_pair(&cert, &cert_pem, &key, &key_pem, args.force)?;
    output::print(next_steps(args, &ca.cert, &cert, &key).as_bytes())
}

/// Returns certificate and key as PEM.
fn make(args: &CertsIssueArgs, names: Vec<SanType>, ca: &CertificateAuthority) -> Result<(String, String), Failure> {
    let key = new_key()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(&args.name);
    params.subject_alt_names = names;
    (params.not_before, params.not_after) = validity(args.days);
    params.not_after = params.not_after.min(ca.not_after);
    params.serial_number = Some(new_serial()?);
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    if !args.usage.client {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    if !args.usage.server {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    }
    let cert = params.signed_by(&key, &ca.issuer);
    let cert = cert.map_err(|error| failed("cannot sign the certificate", &error))?;
    Ok((cert.pem(), key.serialize_pem()))
}

/// The subject alternative names: those given, or else NAME.
fn subject_names(args: &CertsIssueArgs) -> Result<Vec<SanType>, Failure> {
    let wrong = |what: &str, name: &str| Failure::message(exit::USAGE, format!("{name:?} is not {what}"));
    let name = args.name.as_str();
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@:".contains(&byte));
    if !plain || name.is_empty() || name.starts_with(['.', '-']) {
        let text =
            format!("invalid name {name:?}: use only letters, digits and . _ - @ :, and neither . nor - at the start");
        return Err(Failure::message(exit::USAGE, text));
    }
    let mut names = Vec::new();
    if args.dns.is_empty() && args.ip.is_empty() {
        names.push(match name.parse::<IpAddr>() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) if name.contains('@') => SanType::Rfc822Name(ia5(name)?),
            Err(_) if is_host(name) => SanType::DnsName(ia5(name)?),
            Err(_) => return Err(wrong("a host name: use --dns or --ip", name)),
        });
    }
    for dns in &args.dns {
        // a wildcard replaces exactly one label
        if !is_host(dns.strip_prefix("*.").unwrap_or(dns)) {
            return Err(wrong("a host name", dns));
        }
        names.push(SanType::DnsName(ia5(dns)?));
    }
    names.extend(args.ip.iter().copied().map(SanType::IpAddress));
    for uri in &args.uri {
        if !uri.contains("://") {
            return Err(wrong("a URI, such as spiffe://example.org/build", uri));
        }
        names.push(SanType::URI(ia5(uri)?));
    }
    Ok(names)
}

fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        let edges = label.starts_with('-') || label.ends_with('-');
        let bytes = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        (1..=63).contains(&label.len()) && !edges && bytes
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

fn ia5(text: &str) -> Result<rcgen::string::Ia5String, Failure> {
    text.try_into().map_err(|error: rcgen::Error| Failure::new(exit::USAGE, &error).context(text))
}

fn next_steps(args: &CertsIssueArgs, ca: &Path, cert: &Path, key: &Path) -> String {
    let (ca, cert, key) = (ca.display(), cert.display(), key.display());
    let mut text = format!("created {cert} and {key}\n");
    if !args.usage.client {
        text += &format!(
            "for an agent:  telexecd --listen tcp://0.0.0.0:7443 --tls-cert {cert} --tls-key {key} --client-ca {ca}\n"
        );
    }
    if !args.usage.server {
        text += &format!("for a caller:  telexec ping --cert {cert} --key {key} --ca {ca} HOST:7443\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser;
    use x509_parser::prelude::*;

    use super::*;
    use crate::args::{CertsAction, CertsArgs, Cli, Subcommand};

    fn args(line: &[&str]) -> CertsIssueArgs {
        match Cli::try_parse_from(["telexec", "certs", "issue"].iter().chain(line)).unwrap().subcommand {
            Subcommand::Certs(CertsArgs { action: CertsAction::Issue(args) }) => args,
            other => panic!("{other:?}"),
        }
    }

    fn names(line: &[&str]) -> Option<Vec<String>> {
        let names = subject_names(&args(&[line, &["--server"]].concat())).ok()?;
        Some(
            names
                .into_iter()
                .map(|name| match name {
                    SanType::DnsName(name) => format!("dns {}", name.as_str()),
                    SanType::IpAddress(ip) => format!("ip {ip}"),
                    SanType::URI(uri) => format!("uri {}", uri.as_str()),
                    SanType::Rfc822Name(name) => format!("mail {}", name.as_str()),
                    other => panic!("{other:?}"),
                })
                .collect(),
        )
    }

    #[test]
    fn the_name_stands_for_itself_unless_others_are_given() {
        for (line, expected) in [
            (&["web-1"][..], &["dns web-1"][..]),
            (&["10.0.0.7"], &["ip 10.0.0.7"]),
            (&["::1"], &["ip ::1"]),
            (&["alice@example.org"], &["mail alice@example.org"]),
            (&["x", "--uri", "spiffe://d/x"], &["dns x", "uri spiffe://d/x"]),
            (&["x", "--dns", "a.b", "--dns", "*.c", "--ip", "::1"], &["dns a.b", "dns *.c", "ip ::1"]),
        ] {
            assert_eq!(names(line).unwrap(), expected, "{line:?}");
        }
        for line in [&["../x"][..], &["a/b"], &[".x"], &["a..b"], &["x", "--dns", "a b"], &["x", "--uri", "y"]] {
            assert!(names(line).is_none(), "{line:?}");
        }
    }

    #[test]
    fn which_side_it_is_for_has_to_be_said() {
        let sides = |line: &[&str]| {
            let line = ["telexec", "certs", "issue", "a"].iter().chain(line);
            Cli::try_parse_from(line).map(drop).map_err(|error| error.to_string())
        };
        for side in ["--server", "--client", "--both"] {
            assert!(sides(&[side]).is_ok(), "{side}");
        }
        assert!(sides(&[]).unwrap_err().contains("<--server|--client|--both>"));
        assert!(sides(&["--server", "--client"]).is_err());
    }

    #[test]
    fn an_issued_certificate_is_what_was_asked_for_and_no_longer_valid_than_its_ca() {
        let (ca_cert, ca_key) = super::super::ca::make("test", 10).unwrap();
        let ca = CertificateAuthority::from_pem(&ca_cert, &ca_key, PathBuf::new(), PathBuf::new()).unwrap();
        let args = args(&["web-1", "--client", "--days", "20"]);
        let (cert, _) = make(&args, subject_names(&args).unwrap(), &ca).unwrap();
        let (_, pem) = parse_x509_pem(cert.as_bytes()).unwrap();
        let cert = pem.parse_x509().unwrap();
        assert_eq!(cert.validity().not_after.to_datetime(), ca.not_after);
        assert!(!cert.is_ca());
        let usage = cert.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth);
        assert_eq!(cert.issuer().to_string(), "CN=test");
    }
}
