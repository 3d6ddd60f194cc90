//! Calls with a deadline over a service in memory that hangs.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "the functions that tests share are tests too; clippy does not know")]

use std::time::Duration;

use ferroxy_hcn::testing::Fake;
use ferroxy_hcn::{Api, Code, ErrorKind, Guid, Handle, Kind, Patience, Version};

/// For calls that must return.
const LONG: Duration = Duration::from_secs(600);

/// For calls that do not.
const SHORT: Duration = Duration::from_millis(1);

fn patient(fake: &Fake) -> Patience {
    Patience::with(Box::new(fake.clone()), LONG).unwrap()
}

#[test]
fn answers_and_errors_pass_through() {
    let fake = Fake::of(Version::NEWEST);
    let network = fake.add_network("cbr0", "L2Bridge");
    let mut api = patient(&fake);
    assert!(api.enumerate(Kind::Network, "{}").unwrap().contains(&network.to_string()));
    let handle = api.open(Kind::Network, network).unwrap();
    assert!(api.query(Kind::Network, handle, "{}").unwrap().contains("cbr0"));
    api.close(Kind::Network, handle);
    let error = api.open(Kind::LoadBalancer, Guid::ZERO).unwrap_err();
    assert_eq!((error.kind(), error.call.as_str()), (ErrorKind::NotFound, "HcnOpenLoadBalancer"));
    assert_eq!(fake.service().open_handles(), 0);
}

#[test]
fn a_call_that_hangs_fails_as_silence_and_nothing_overtakes_it() {
    let fake = Fake::of(Version::NEWEST);
    let network = fake.add_network("cbr0", "L2Bridge");
    let mut api = patient(&fake);
    fake.hang(true);
    api.deadline = SHORT;
    let error = api.open(Kind::Network, network).unwrap_err();
    assert_eq!((error.code, error.kind()), (Code::TIMEOUT, ErrorKind::Unknown), "{error}");
    api.deadline = LONG;
    // Not sent, so it returns at once.
    let error = api.delete(Kind::Network, network).unwrap_err();
    assert!(error.to_string().contains("HcnOpenNetwork has not returned yet"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Unknown);
    api.close(Kind::Network, Handle(7));
    fake.hang(false);
    // The hanging call returns at some time, and its handle, for which no caller waits, is closed.
    while let Err(error) = api.enumerate(Kind::Network, "{}") {
        assert_eq!(error.kind(), ErrorKind::Unknown);
        std::thread::yield_now();
    }
    assert!(fake.service().document(Kind::Network, network).is_some(), "nothing was deleted");
    assert_eq!(fake.service().open_handles(), 0);
}

/// The value can be dropped while a call hangs: nobody waits for the thread.
#[test]
fn a_hanging_call_does_not_keep_its_caller() {
    let fake = Fake::of(Version::NEWEST);
    let mut api = patient(&fake);
    fake.hang(true);
    api.deadline = SHORT;
    assert!(api.call_v1("GET", "/globals/version").is_err());
    drop(api);
    fake.hang(false);
}
