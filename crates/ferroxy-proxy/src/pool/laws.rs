//! Laws of a pool through changes: only current endpoints, sticky clients, ejection and the panic rule.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use super::*;
use crate::config::{Affinity, Ejection, Policy, SlowStart};

const POLICIES: [Policy; 4] = [Policy::RoundRobin, Policy::Random, Policy::LeastConnections, Policy::Latency];

fn endpoint(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 244, 0, number], 8080))
}

fn client(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

fn config(endpoints: &BTreeSet<u8>) -> Config {
    Config::of(endpoints.iter().map(|it| endpoint(*it)))
}

fn choose(pool: &Pool, from: IpAddr) -> Option<SocketAddr> {
    crate::random::with(|random| pool.choose(from, &[], random)).map(|it| it.address)
}

fn eject(pool: &Pool, address: SocketAddr) {
    let snapshot = pool.snapshot();
    let endpoint = snapshot.endpoints[snapshot.find(address).unwrap()].clone();
    (0..5).for_each(|_| _ = pool.dial_failed(&endpoint));
}

proptest! {
    #[test]
    fn only_endpoints_that_are_there_are_chosen(
        changes in vec((btree_set(0u8..8, 0..6), 0usize..4), 1..12), ejected in vec(0u8..8, 0..4),
    ) {
        let pool = Pool::new("pool".into());
        for (endpoints, policy) in changes {
            pool.change(Config { policy: POLICIES[policy], ..config(&endpoints) });
            ejected.iter().filter(|it| endpoints.contains(it)).for_each(|it| eject(&pool, endpoint(*it)));
            for from in 0..20 {
                match choose(&pool, client(from)) {
                    Some(chosen) => prop_assert!(endpoints.iter().any(|it| endpoint(*it) == chosen)),
                    None => prop_assert!(endpoints.is_empty()),
                }
            }
        }
    }

    #[test]
    fn a_sticky_client_stays_until_its_endpoint_leaves(
        changes in vec(btree_set(0u8..8, 1..6), 1..12), policy in 0usize..4,
    ) {
        let pool = Pool::new("pool".into());
        let mut had: HashMap<IpAddr, SocketAddr> = HashMap::new();
        for endpoints in changes {
            let affinity = Some(Affinity::default());
            pool.change(Config { affinity, policy: POLICIES[policy], ..config(&endpoints) });
            had.retain(|_, it| endpoints.iter().any(|number| endpoint(*number) == *it));
            for from in (0..10).map(client) {
                let chosen = choose(&pool, from).unwrap();
                prop_assert_eq!(*had.entry(from).or_insert(chosen), chosen);
            }
        }
    }

    #[test]
    fn a_minority_is_left_out_and_a_majority_is_not(count in 1u8..12, ejected in btree_set(0u8..12, 0..12)) {
        let all: BTreeSet<u8> = (0..count).collect();
        let ejected: BTreeSet<u8> = ejected.into_iter().filter(|it| *it < count).collect();
        let pool = Pool::new("pool".into());
        pool.change(config(&all));
        ejected.iter().for_each(|it| eject(&pool, endpoint(*it)));
        let seen: BTreeSet<_> = (0..count).filter_map(|_| choose(&pool, client(1))).collect();
        let in_panic = (usize::from(count) - ejected.len()) * 2 < usize::from(count);
        let expected = all.iter().filter(|it| in_panic || !ejected.contains(it)).map(|it| endpoint(*it));
        prop_assert_eq!(seen, expected.collect::<BTreeSet<_>>());
        prop_assert_eq!(pool.counters().panics > 0, in_panic);
        prop_assert_eq!(pool.counters().ejections, ejected.len() as u64);
    }
}

#[test]
fn affinity_ends_with_its_time() {
    let mut sticky = Sticky::new(10);
    sticky.remember(client(1), endpoint(1), 0);
    assert_eq!(sticky.recall(client(1), 100, 99), Some(endpoint(1)));
    assert_eq!(sticky.recall(client(1), 100, 198), Some(endpoint(1)), "counted from the last use");
    assert_eq!(sticky.recall(client(1), 100, 298), None);
    assert_eq!(sticky.recall(client(1), 100, 299), None, "and it stays forgotten");
}

#[test]
fn sticky_clients_are_bounded() {
    let mut sticky = Sticky::new(2);
    (1..=3).for_each(|it| sticky.remember(client(it), endpoint(it), it.into()));
    assert_eq!(sticky.recall(client(1), 100, 4), None);
    assert_eq!(sticky.recall(client(3), 100, 4), Some(endpoint(3)));
}

#[test]
fn a_failed_dial_moves_a_sticky_client() {
    let pool = Pool::new("pool".into());
    pool.change(Config { affinity: Some(Affinity::default()), ..config(&(0..3).collect()) });
    let first = choose(&pool, client(1)).unwrap();
    let second = crate::random::with(|random| pool.choose(client(1), &[first], random)).unwrap().address;
    assert_ne!(first, second);
    assert_eq!(choose(&pool, client(1)), Some(second), "and it stays there");
}

#[test]
fn an_ejection_ends_by_itself_or_by_a_pardon() {
    let pool = Pool::new("pool".into());
    let brief = Ejection { base: Duration::from_nanos(1), ..Ejection::default() };
    pool.change(Config { ejection: Some(brief), ..config(&(0..2).collect()) });
    eject(&pool, endpoint(0));
    let seen: BTreeSet<_> = (0..2).filter_map(|_| choose(&pool, client(1))).collect();
    assert_eq!(seen.len(), 2, "it was over at once");
    pool.change(config(&(0..2).collect()));
    eject(&pool, endpoint(0));
    assert!((0..4).all(|_| choose(&pool, client(1)) == Some(endpoint(1))));
    assert!(pool.counters().endpoints[&endpoint(0)].ejected);
    pool.pardon(endpoint(0));
    let seen: BTreeSet<_> = (0..2).filter_map(|_| choose(&pool, client(1))).collect();
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_retry_does_not_lead_the_next_client_to_the_failed_one() {
    let pool = Pool::new("pool".into());
    pool.change(config(&(0..2).collect()));
    let dead = endpoint(0);
    let mut waits = 0;
    for _ in 0..10 {
        if choose(&pool, client(1)) == Some(dead) {
            waits += 1;
            crate::random::with(|random| pool.choose(client(1), &[dead], random)).unwrap();
        }
    }
    assert_eq!(waits, 5, "every second client meets it, not every one");
}

#[test]
fn what_an_endpoint_counted_stays_with_the_pool() {
    let pool = Pool::new("pool".into());
    pool.change(config(&(0..2).collect()));
    let chosen = crate::random::with(|random| pool.choose(client(1), &[], random)).unwrap();
    chosen.tally.bytes_in.fetch_add(7, Relaxed);
    pool.change(config(&BTreeSet::new()));
    assert!(chosen.has_left());
    chosen.tally.bytes_in.fetch_add(5, Relaxed);
    assert_eq!(pool.counters().bytes_in, 12, "also what it counts afterwards");
    drop(chosen);
    assert_eq!((pool.counters().bytes_in, pool.counters().endpoints.len()), (12, 0));
}

#[test]
fn an_endpoint_that_joins_others_starts_slowly_and_those_of_an_empty_pool_do_not() {
    let pool = Pool::new("pool".into());
    // So long that no share grows during the test.
    let slow_start = Some(SlowStart { window: Duration::from_secs(100_000) });
    let change = |endpoints| pool.change(Config { slow_start, policy: Policy::Random, ..config(&endpoints) });
    let times = |number| (0..4_000).filter(|_| choose(&pool, client(1)) == Some(endpoint(number))).count();
    change((0..2).collect());
    assert!((1_600..2_400).contains(&times(1)), "an endpoint of an empty pool has its full share");
    change((0..3).collect());
    let (joined, before) = (times(2), times(1));
    assert!(joined > 0 && 4 * joined < before, "{joined} of the new endpoint, {before} of another");
}
