//! Flows: how many connections each frontend and endpoint had. The programs count them; endpoints that left stay known for an
//! hour, so that every reader of metrics sees their last count.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::entry::socket_address;
use crate::state::State;

/// Frontend and endpoint of a key: each is an address of 16 bytes, a port of two, and six more.
pub fn flow_of(key: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (frontend, endpoint) = key.split_at_checked(24)?;
    Some((socket_address(frontend.get(..18)?), socket_address(endpoint.get(..18)?)))
}

const KNOWN_FOR: Duration = Duration::from_secs(3600);

/// Flows whose frontend no longer has their endpoint, and since when.
#[derive(Debug, Default)]
pub struct Departed(BTreeMap<Vec<u8>, Instant>);

impl Departed {
    /// Returns the flows that can be forgotten. Call it from time to time, with all flows in the kernel.
    pub fn forget(&mut self, flows: &[Vec<u8>], in_force: &State, now: Instant) -> Vec<Vec<u8>> {
        let current = pairs(in_force);
        let gone = |key: &&Vec<u8>| flow_of(key).is_none_or(|flow| !current.contains(&flow));
        let gone: BTreeSet<&Vec<u8>> = flows.iter().filter(gone).collect();
        self.0.retain(|key, _| gone.contains(key));
        gone.iter().for_each(|key| _ = self.0.entry((*key).clone()).or_insert(now));
        let is_old = |since: &Instant| now.saturating_duration_since(*since) >= KNOWN_FOR;
        self.0.iter().filter(|(_, since)| is_old(since)).map(|(key, _)| key.clone()).collect()
    }
}

/// Every frontend with each of its endpoints.
fn pairs(state: &State) -> BTreeSet<(SocketAddr, SocketAddr)> {
    let all = state.frontends.iter();
    all.flat_map(|(key, value)| state.endpoints_of(value).map(|endpoint| (key.address(), endpoint))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Clients, FrontendKey, FrontendValue};
    use crate::state::Entry;

    fn key(frontend: &str, endpoint: &str) -> Vec<u8> {
        let part = |text: &str| {
            let address: SocketAddr = text.parse().unwrap();
            FrontendKey::new(address.ip(), address.port()).0
        };
        [part(frontend), part(endpoint)].concat()
    }

    #[test]
    fn a_flow_is_forgotten_an_hour_after_its_endpoint_left() {
        let frontend = FrontendKey::new([10, 96, 0, 1].into(), 80);
        let value = FrontendValue::listed(&frontend, Clients::ALL, &["10.244.0.1:80".parse().unwrap()]);
        let state: State = [Entry::Frontend(frontend, value)].into_iter().collect();
        let [here, left] = ["10.244.0.1:80", "10.244.0.2:80"].map(|it| key("10.96.0.1:80", it));
        assert_eq!(flow_of(&left).unwrap().1, "10.244.0.2:80".parse().unwrap());
        assert_eq!(flow_of(&left[..30]), None);
        let (mut departed, start) = (Departed::default(), Instant::now());
        let both = [here.clone(), left.clone()];
        let minutes = |minutes: u64| start + Duration::from_secs(minutes * 60);
        assert_eq!(departed.forget(&both, &state, minutes(0)), [[0_u8; 0]; 0]);
        assert_eq!(departed.forget(&both, &state, minutes(59)), [[0_u8; 0]; 0]);
        assert_eq!(departed.forget(&both, &state, minutes(60)), [left]);
        // It is back, and leaves again.
        departed.forget(&[here], &state, minutes(61));
        assert_eq!(departed.forget(&both, &state, minutes(62)), [[0_u8; 0]; 0]);
    }
}
