//! Where connections come from.

use std::net::{IpAddr, Ipv6Addr};

/// The unit of fairness: an IPv6 /64 is one source, since one peer may have all its addresses.
pub(super) fn source(address: IpAddr) -> IpAddr {
    const NETWORK: u128 = u128::MAX << 64;
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
        address => address,
    }
}
