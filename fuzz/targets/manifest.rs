//! Arbitrary text as a manifest, as YAML and as JSON. Reading is deterministic.

#![no_main]

use ferroxy_source::manifest::read_str;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for name in ["fuzz.yaml", "fuzz.json"] {
        let (objects, diagnostics) = read_str(name, text);
        let (again, same) = read_str(name, text);
        assert!(objects == again && diagnostics == same, "{name} was read in two ways");
    }
});
