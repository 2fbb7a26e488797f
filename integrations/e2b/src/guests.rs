//! Connections of callers that are not known yet: by no key, and no token of a sandbox.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// Of one peer.
const MAX_CONNECTIONS: usize = 256;
/// Networks of IPv6 are given out as a whole: the rest of an address is for its owner to choose.
const NETWORK_BITS: u32 = 64;

#[derive(Clone, Default)]
pub(crate) struct Guests(Arc<Mutex<HashMap<Option<IpAddr>, usize>>>);

impl Guests {
    /// `None`: the peer has too many. Those without an address are one peer: whoever may use a socket of this machine.
    pub(crate) fn enter(&self, peer: Option<SocketAddr>) -> Option<Guest> {
        let peer = peer.map(|peer| network(peer.ip()));
        let mut guests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = guests.entry(peer).or_default();
        if *count >= MAX_CONNECTIONS {
            return None;
        }
        *count += 1;
        Some(Guest { guests: self.clone(), peer })
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> NETWORK_BITS << NETWORK_BITS;
            Ipv6Addr::from(network).into()
        }
        address => address,
    }
}

/// One of them; dropped when its caller is known, or it ends.
pub(crate) struct Guest {
    guests: Guests,
    peer: Option<IpAddr>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut guests = self.guests.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = guests.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                guests.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_so_many() {
        let guests = Guests::default();
        let peer = |text: &str| Some(SocketAddr::new(text.parse().unwrap(), 1));
        let mut inside: Vec<_> = (0..MAX_CONNECTIONS).map(|_| guests.enter(peer("10.0.0.1")).unwrap()).collect();
        assert!(guests.enter(peer("10.0.0.1")).is_none() && guests.enter(peer("::ffff:10.0.0.1")).is_none());
        assert!(guests.enter(peer("10.0.0.2")).is_some() && guests.enter(None).is_some());
        inside.pop();
        assert!(guests.enter(peer("10.0.0.1")).is_some());
        inside.clear();
        assert!(guests.0.lock().unwrap().is_empty());
        assert_eq!(network("2001:db8::1:2:3:4".parse().unwrap()), network("2001:db8::9".parse::<IpAddr>().unwrap()));
    }
}
