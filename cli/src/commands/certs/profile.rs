//! What a certificate is for: its subject, its names, and the side that may use it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use rcgen::SanType;
use rcgen::string::Ia5String;
use serde::{Deserialize, Serialize};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::X509Certificate;

use crate::args::{CertsNames, CertsUsage};

/// The domain of names that only the CA itself uses: nobody else has it (RFC 6761).
const RESERVED_DOMAIN: &str = "telexec.invalid";

/// What is in a certificate apart from its key, serial number and validity.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Profile {
    /// The common name, and the base name of files.
    pub(super) name: String,
    pub(super) usage: Usage,
    /// Subject alternative names.
    pub(super) names: Vec<SubjectName>,
}

/// Extended key usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Usage {
    Server,
    Client,
    Both,
}

/// A subject alternative name, written as its kind, a space and the name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(super) enum SubjectName {
    Dns(String),
    Ip(IpAddr),
    Uri(String),
    Mail(String),
}

impl Profile {
    /// # Errors
    /// A name is malformed or reserved.
    pub(super) fn new(names: &CertsNames, usage: &CertsUsage) -> Result<Self, String> {
        let profile = Self { name: names.name.clone(), usage: usage.into(), names: subject_names(names)? };
        match profile.names.iter().find(|name| name.is_reserved()) {
            Some(name) => Err(format!("{name}: names in {RESERVED_DOMAIN} are for the CA itself")),
            None => Ok(profile),
        }
    }

    /// Of the CA's own service for enrolments: no issued certificate has this name.
    pub(super) fn enrollment_server() -> Self {
        let name = telexec_enrollment::SERVER_NAME.to_owned();
        Self { names: vec![SubjectName::Dns(name.clone())], name, usage: Usage::Server }
    }

    /// `None`: it has no common name, or says what [`Profile`] cannot.
    pub(super) fn of(certificate: &X509Certificate<'_>) -> Option<Self> {
        let name = certificate.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
        let extended = certificate.extended_key_usage().ok()??.value;
        let usage = match (extended.server_auth, extended.client_auth) {
            (true, true) => Usage::Both,
            (true, false) => Usage::Server,
            (false, true) => Usage::Client,
            (false, false) => return None,
        };
        let names = match certificate.subject_alternative_name().ok()? {
            Some(names) => names.value.general_names.iter().map(SubjectName::of).collect::<Option<_>>()?,
            None => Vec::new(),
        };
        Some(Self { name, usage, names })
    }

    /// The names, separated by commas.
    pub(super) fn listed_names(&self) -> String {
        self.names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl Usage {
    pub(super) fn is_server(self) -> bool {
        self != Self::Client
    }

    pub(super) fn is_client(self) -> bool {
        self != Self::Server
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
            Self::Both => "both",
        }
    }
}

impl From<&CertsUsage> for Usage {
    fn from(usage: &CertsUsage) -> Self {
        match (usage.server, usage.client) {
            (true, _) => Self::Server,
            (_, true) => Self::Client,
            _ => Self::Both,
        }
    }
}

impl SubjectName {
    /// `None`: of another kind, or malformed.
    fn of(name: &GeneralName<'_>) -> Option<Self> {
        match name {
            GeneralName::DNSName(name) => Some(Self::Dns((*name).to_owned())),
            GeneralName::URI(uri) => Some(Self::Uri((*uri).to_owned())),
            GeneralName::RFC822Name(name) => Some(Self::Mail((*name).to_owned())),
            GeneralName::IPAddress(bytes) => {
                let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok().map(Self::Ip)
            }
            _ => None,
        }
    }

    /// # Errors
    /// It is not ASCII.
    pub(super) fn to_san(&self) -> Result<SanType, rcgen::Error> {
        let ia5 = |text: &str| Ia5String::try_from(text);
        Ok(match self {
            Self::Dns(name) => SanType::DnsName(ia5(name)?),
            Self::Ip(ip) => SanType::IpAddress(*ip),
            Self::Uri(uri) => SanType::URI(ia5(uri)?),
            Self::Mail(name) => SanType::Rfc822Name(ia5(name)?),
        })
    }
}

impl SubjectName {
    fn is_reserved(&self) -> bool {
        let Self::Dns(name) = self else { return false };
        let name = name.to_ascii_lowercase();
        name.strip_suffix(RESERVED_DOMAIN).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    }
}

impl fmt::Display for SubjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => write!(f, "dns {name}"),
            Self::Ip(ip) => write!(f, "ip {ip}"),
            Self::Uri(uri) => write!(f, "uri {uri}"),
            Self::Mail(name) => write!(f, "mail {name}"),
        }
    }
}

impl From<SubjectName> for String {
    fn from(name: SubjectName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for SubjectName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for SubjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a subject alternative name");
        let (kind, name) = text.split_once(' ').ok_or_else(wrong)?;
        match kind {
            "dns" => Ok(Self::Dns(name.to_owned())),
            "ip" => name.parse().map(Self::Ip).map_err(|_| wrong()),
            "uri" => Ok(Self::Uri(name.to_owned())),
            "mail" => Ok(Self::Mail(name.to_owned())),
            _ => Err(wrong()),
        }
    }
}

/// The subject alternative names: those given, or else NAME.
fn subject_names(args: &CertsNames) -> Result<Vec<SubjectName>, String> {
    let wrong = |what: &str, name: &str| format!("{name:?} is not {what}");
    let name = args.name.as_str();
    if !telexec_enrollment::is_name(name) {
        return Err(format!(
            "invalid name {name:?}: use only letters, digits and . _ - @ :, and neither . nor - at the start"
        ));
    }
    let mut names = Vec::new();
    if args.dns.is_empty() && args.ip.is_empty() {
        names.push(match name.parse::<IpAddr>() {
            Ok(ip) => SubjectName::Ip(ip),
            Err(_) if name.contains('@') => SubjectName::Mail(name.to_owned()),
            Err(_) if is_host(name) => SubjectName::Dns(name.to_owned()),
            Err(_) => return Err(wrong("a host name: use --dns or --ip", name)),
        });
    }
    for dns in &args.dns {
        // a wildcard replaces exactly one label
        if !is_host(dns.strip_prefix("*.").unwrap_or(dns)) {
            return Err(wrong("a host name", dns));
        }
        names.push(SubjectName::Dns(dns.clone()));
    }
    names.extend(args.ip.iter().copied().map(SubjectName::Ip));
    for uri in &args.uri {
        if !uri.contains("://") || !uri.is_ascii() {
            return Err(wrong("a URI, such as spiffe://example.org/build", uri));
        }
        names.push(SubjectName::Uri(uri.clone()));
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{CertsAction, CertsArgs, Cli, Subcommand};

    fn names(line: &[&str]) -> Option<Vec<String>> {
        let line = ["telexec", "certs", "issue", "--server"].iter().chain(line);
        let Subcommand::Certs(CertsArgs { action: CertsAction::Issue(args) }) =
            Cli::try_parse_from(line).unwrap().subcommand
        else {
            panic!("not certs issue")
        };
        let profile = Profile::new(&args.names, &args.usage).ok()?;
        Some(profile.names.iter().map(ToString::to_string).collect())
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
    fn the_names_of_the_ca_are_for_nobody_else() {
        assert!(Profile::enrollment_server().names.iter().all(SubjectName::is_reserved));
        for name in ["enrollment.telexec.invalid", "*.telexec.invalid", "telexec.invalid", "x.Telexec.INVALID"] {
            assert!(names(&["x", "--dns", name]).is_none() && names(&[name]).is_none(), "{name}");
        }
        assert!(names(&["x", "--dns", "nottelexec.invalid"]).is_some());
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in ["dns *.example.org", "ip ::1", "uri spiffe://a/b c", "mail a@b"] {
            assert_eq!(text.parse::<SubjectName>().unwrap().to_string(), text);
        }
        assert!("web1".parse::<SubjectName>().is_err() && "ip web1".parse::<SubjectName>().is_err());
    }
}
