//! The source of a connection: what distinguishes peers before they are authenticated.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use tokio::net::unix::UCred;

/// The unit of fairness among unauthenticated peers. An IPv6 /64 is one source, since one peer may have all its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// An IPv4 address, or the first 64 bits of an IPv6 address.
    Ip(IpAddr),
    /// A virtual machine, by context id.
    Cid(u32),
    /// A user of this machine; `None`: unknown to the kernel.
    Uid(Option<u32>),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "ip={address}"),
            Self::Cid(cid) => write!(f, "cid={cid}"),
            Self::Uid(Some(uid)) => write!(f, "uid={uid}"),
            Self::Uid(None) => f.write_str("uid=unknown"),
        }
    }
}

impl Source {
    pub(crate) fn of_ip(address: IpAddr) -> Self {
        const NETWORK: u128 = u128::MAX << 64;
        Self::Ip(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
            address => address,
        })
    }

    pub(crate) fn of_user(credentials: Option<&UCred>) -> Self {
        Self::Uid(credentials.map(UCred::uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_ipv6_and_addresses_of_ipv4_are_sources() {
        let source = |text: &str| Source::of_ip(text.parse().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:0:0:2"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
    }
}
