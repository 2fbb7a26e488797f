//! Hosts from DNS: all addresses of a name, all targets of a service.

use std::time::Duration;

use domain::base::{Name, Rtype};
use domain::rdata::Srv;
use domain::resolv::StubResolver;
use tokio::net::lookup_host;

/// For one lookup.
const DNS_TIMEOUT: Duration = Duration::from_secs(10);

/// Addresses with ports.
#[derive(Debug, PartialEq)]
pub(super) struct DnsHosts {
    pub(super) addresses: Vec<String>,
    /// The name in their certificates, if it is not the address.
    pub(super) server_name: Option<String>,
}

/// Looks up `dns:NAME:PORT` and `srv:NAME`; `None` for other hosts.
pub(super) async fn lookup(host: &str) -> Option<Result<DnsHosts, String>> {
    let found = async {
        if let Some(name) = host.strip_prefix("dns:") {
            return Some(addresses(name).await);
        }
        Some(services(host.strip_prefix("srv:")?, &StubResolver::new()).await)
    };
    match tokio::time::timeout(DNS_TIMEOUT, found).await {
        Ok(found) => found,
        Err(_) => Some(Err(format!("no answer within {DNS_TIMEOUT:?}"))),
    }
}

async fn addresses(text: &str) -> Result<DnsHosts, String> {
    let (name, port) = text.rsplit_once(':').ok_or("missing port: expected dns:NAME:PORT")?;
    let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or("missing port: expected dns:NAME:PORT")?;
    let found = lookup_host((name, port)).await.map_err(|error| error.to_string())?;
    let mut addresses: Vec<_> = found.collect();
    // DNS answers are in no particular order
    addresses.sort();
    Ok(DnsHosts { addresses: addresses.iter().map(ToString::to_string).collect(), server_name: Some(name.to_owned()) })
}

async fn services(text: &str, resolver: &StubResolver) -> Result<DnsHosts, String> {
    let name: Name<Vec<u8>> = text.parse().map_err(|error| format!("not a valid name: {error}"))?;
    let answer = resolver.query((name, Rtype::SRV)).await.map_err(|error| error.to_string())?;
    let records = answer.answer().map_err(|error| error.to_string())?;
    let mut addresses = Vec::new();
    for record in records.limit_to_in::<Srv<_>>() {
        let record = record.map_err(|error| error.to_string())?;
        let target = record.data().target().to_string();
        addresses.push(format!("{}:{}", target.trim_end_matches('.'), record.data().port()));
    }
    addresses.sort();
    addresses.dedup();
    match addresses.is_empty() {
        true => Err("no such service".to_owned()),
        false => Ok(DnsHosts { addresses, server_name: None }),
    }
}

#[cfg(test)]
mod tests {
    use domain::base::iana::Rcode;
    use domain::base::{Message, MessageBuilder, Ttl};
    use domain::resolv::stub::conf::{ResolvConf, ServerConf, Transport};
    use tokio::net::UdpSocket;

    use super::*;

    /// A DNS server that answers every question with these targets.
    async fn resolver(targets: &'static [(&'static str, u16)]) -> StubResolver {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut conf = ResolvConf::new();
        conf.servers.push(ServerConf::new(socket.local_addr().unwrap(), Transport::UdpTcp));
        conf.finalize();
        tokio::spawn(async move {
            let mut buffer = vec![0; 1500];
            loop {
                let (length, peer) = socket.recv_from(&mut buffer).await.unwrap();
                let question = Message::from_octets(buffer[..length].to_vec()).unwrap();
                let mut answer = MessageBuilder::new_vec().start_answer(&question, Rcode::NOERROR).unwrap();
                let asked = question.first_question().unwrap();
                for (target, port) in targets {
                    let target: Name<Vec<u8>> = target.parse().unwrap();
                    answer.push((asked.qname(), Ttl::from_secs(1), Srv::new(1, 1, *port, target))).unwrap();
                }
                socket.send_to(answer.finish().as_slice(), peer).await.unwrap();
            }
        });
        StubResolver::from_conf(conf)
    }

    #[tokio::test]
    async fn a_service_is_all_its_targets() {
        let resolver = resolver(&[("web2.example.org", 7443), ("web1.example.org", 17443)]).await;
        let found = services("_telexec._tcp.example.org", &resolver).await.unwrap();
        assert_eq!(found.addresses, ["web1.example.org:17443", "web2.example.org:7443"]);
    }

    #[tokio::test]
    async fn a_missing_service_is_an_error() {
        let resolver = resolver(&[]).await;
        assert!(services("_telexec._tcp.example.org", &resolver).await.unwrap_err().contains("no such service"));
        assert!(services("..", &resolver).await.unwrap_err().contains("not a valid name"));
    }

    #[tokio::test]
    async fn addresses_keep_the_name_for_their_certificates() {
        let found = lookup("dns:localhost:7443").await.unwrap().unwrap();
        assert!(found.addresses.iter().all(|address| address.ends_with(":7443")) && !found.addresses.is_empty());
        assert_eq!(found.server_name.as_deref(), Some("localhost"));
        for text in ["dns:localhost", "dns:localhost:0", "dns:localhost:x"] {
            assert!(lookup(text).await.unwrap().unwrap_err().contains("dns:NAME:PORT"), "{text}");
        }
        assert_eq!(lookup("localhost:1").await, None);
    }
}
