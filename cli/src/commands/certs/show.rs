//! `telexec certs show`: the contents of certificates and revocation lists, for humans.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use telexec_executor::text::counted;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::{FAILED, date, failed, sha256};
use crate::output::{self, Failure};

pub(super) fn show(files: &[PathBuf]) -> Result<(), Failure> {
    let mut text = String::new();
    for path in files {
        let shown = one_file(path)?;
        if !text.is_empty() {
            text.push('\n');
        }
        text += &shown;
    }
    output::print(text.as_bytes())
}

fn one_file(path: &Path) -> Result<String, Failure> {
    let data = std::fs::read(path).map_err(|error| failed(format_args!("cannot read {}", path.display()), &error))?;
    let mut text = String::new();
    for pem in Pem::iter_from_buffer(&data) {
        let pem = pem.map_err(|error| failed(path.display(), &error))?;
        let fields = match pem.label.as_str() {
            "CERTIFICATE" => fields(&pem.parse_x509().map_err(|error| failed(path.display(), &error))?, &pem.contents),
            "X509 CRL" => {
                let parsed = CertificateRevocationList::from_der(&pem.contents);
                list_fields(&parsed.map_err(|error| failed(path.display(), &error))?.1)
            }
            _ => continue,
        };
        for (key, value) in fields {
            // text from a certificate must not contain escape sequences
            let _ = writeln!(text, "{:13}{}", format!("{key}:"), value.replace(char::is_control, " "));
        }
    }
    match text.is_empty() {
        true => {
            Err(Failure::message(FAILED, format!("{} contains no PEM certificate or revocation list", path.display())))
        }
        false => Ok(format!("{}\n{text}", path.display())),
    }
}

fn fields(cert: &X509Certificate<'_>, der: &[u8]) -> Vec<(&'static str, String)> {
    let now = x509_parser::time::ASN1Time::now();
    let state = match cert.validity() {
        validity if now < validity.not_before => "not valid yet",
        validity if now > validity.not_after => "expired",
        _ => "valid now",
    };
    let from_to = [cert.validity().not_before, cert.validity().not_after].map(|time| date(time.to_datetime().into()));
    vec![
        ("subject", cert.subject().to_string()),
        ("names", names(cert)),
        ("issuer", cert.issuer().to_string()),
        ("validity", format!("{} ({state})", from_to.join(" to "))),
        ("usages", usages(cert)),
        ("serial", colons(cert.raw_serial())),
        ("sha256", colons(&sha256(der))),
    ]
}

/// Of a revocation list: an entry for each certificate on it.
fn list_fields(list: &CertificateRevocationList<'_>) -> Vec<(&'static str, String)> {
    let time = |time: &x509_parser::time::ASN1Time| date(time.to_datetime().into());
    let next = match list.next_update() {
        Some(next) if next < x509_parser::time::ASN1Time::now() => format!("{} (out of date)", time(&next)),
        Some(next) => time(&next),
        None => "not stated".to_owned(),
    };
    let revoked: Vec<_> = list.iter_revoked_certificates().collect();
    let number = list.crl_number().map_or_else(|| "none".to_owned(), ToString::to_string);
    let mut fields = vec![
        ("list of", list.issuer().to_string()),
        ("number", number),
        ("written", time(&list.last_update())),
        ("next by", next),
        ("revoked", counted(revoked.len() as u64, "certificate")),
    ];
    fields.extend(revoked.iter().map(|revoked| {
        let reason = revoked.reason_code().map(|(_, reason)| format!(" ({reason})")).unwrap_or_default();
        ("serial", format!("{} since {}{reason}", colons(revoked.raw_serial()), time(&revoked.revocation_date)))
    }));
    fields
}

fn names(cert: &X509Certificate<'_>) -> String {
    let Ok(Some(names)) = cert.subject_alternative_name() else { return "none".to_owned() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => format!("dns {name}"),
        GeneralName::URI(uri) => format!("uri {uri}"),
        GeneralName::RFC822Name(name) => format!("mail {name}"),
        GeneralName::IPAddress(bytes) => match (<[u8; 4]>::try_from(*bytes), <[u8; 16]>::try_from(*bytes)) {
            (Ok(v4), _) => format!("ip {}", IpAddr::from(v4)),
            (_, Ok(v6)) => format!("ip {}", IpAddr::from(v6)),
            _ => "a malformed ip".to_owned(),
        },
        _ => "other".to_owned(),
    };
    names.value.general_names.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn usages(cert: &X509Certificate<'_>) -> String {
    let mut usages = Vec::new();
    if let Ok(Some(constraints)) = cert.basic_constraints()
        && constraints.value.ca
    {
        usages.push("CA".to_owned());
    }
    if let Ok(Some(usage)) = cert.key_usage() {
        usages.push(usage.value.to_string().to_lowercase());
    }
    if let Ok(Some(usage)) = cert.extended_key_usage() {
        for (set, name) in
            [(usage.value.server_auth, "server authentication"), (usage.value.client_auth, "client authentication")]
        {
            usages.extend(set.then(|| name.to_owned()));
        }
    }
    if usages.is_empty() { "unrestricted".to_owned() } else { usages.join(", ") }
}

fn colons(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}
