//! Rule: a crate that needs no `unsafe` forbids it.

use crate::finding::Finding;
use crate::rust::Code;

const FORBIDS: &str = "#![forbid(unsafe_code)]";

/// Judges a crate by its sources: (path, text). Tests and benchmarks are not among them.
pub fn findings(manifest: &str, sources: &[(&str, &str)]) -> Vec<Finding> {
    let has_unsafe = |text: &str| Code::of(text).lines().any(|(_, line)| is_unsafe(line));
    if sources.iter().any(|(_, text)| has_unsafe(text)) {
        return vec![];
    }
    let is_root = |path: &str| path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
    let roots = sources.iter().filter(|(path, _)| is_root(path));
    let lax: Vec<Finding> = roots
        .clone()
        .filter(|(_, text)| !text.contains(FORBIDS))
        .map(|(path, _)| Finding::new(path, 1, "", format!("the crate has no unsafe code; write {FORBIDS}")))
        .collect();
    if roots.count() == 0 {
        return vec![Finding::new(manifest, 1, "", "neither src/lib.rs nor src/main.rs is there")];
    }
    lax
}

fn is_unsafe(line: &str) -> bool {
    line.split(|it: char| it != '_' && !it.is_alphanumeric()).any(|word| word == "unsafe")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_could_forbid_unsafe_and_does_not_is_found() {
        let lax = [("crates/a/src/lib.rs", "//! unsafe is not used\nmod b;\n"), ("crates/a/src/b.rs", "")];
        assert_eq!(findings("crates/a/Cargo.toml", &lax).len(), 1);
        let strict = [("crates/a/src/lib.rs", "#![forbid(unsafe_code)]\n")];
        assert_eq!(findings("crates/a/Cargo.toml", &strict), []);
        let needs = [("crates/a/src/lib.rs", "mod b;\n"), ("crates/a/src/b.rs", "unsafe fn c() {}\n")];
        assert_eq!(findings("crates/a/Cargo.toml", &needs), []);
    }
}
