//! Arbitrary text as output of `iptables-save`: accepted text round-trips through printing, and diffs from and to it are
//! Plans.

#![no_main]

use ferroxy_core::Family;
use ferroxy_iptables::text::parse;
use ferroxy_iptables::{State, diff};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for family in Family::ALL {
        let state = parse(family, text);
        assert_eq!(parse(family, &state.to_string()), state, "it prints as something else");
        assert!(diff(&state, &state).is_empty(), "it differs from itself");
        let there = diff(&State::default(), &state);
        assert_eq!(there.is_empty(), state.is_empty());
        drop((there.to_string(), diff(&state, &State::default()).to_string()));
    }
});
