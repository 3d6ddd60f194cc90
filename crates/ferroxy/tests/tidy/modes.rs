//! Rule: the binary names no dataplane, in code or in literals. The properties of a dataplane that it needs are in `MODE`.

use crate::finding::Finding;
use crate::rust::Code;

const WHERE: &str = "crates/ferroxy/src/";

/// The names of modes, of facilities that only they use, and of the crate that wraps dataplanes. ("bpf" is also in `ebpf`,
/// "userspace" in `winuserspace`.)
const WORDS: [&str; 11] = [
    "nftables",
    "iptables",
    "ipvs",
    "userspace",
    "kernelspace",
    "netlink",
    "netfilter",
    "ipset",
    "bpf",
    "hns",
    "ferroxy_sockets::",
];

/// Files and folders that may have such words, and why.
const MAY: [(&str, &str); 4] = [
    ("modes.rs", "it is the list of modes"),
    ("wrapper.rs", "it is what wraps modes"),
    ("config/gates.rs", "Kubernetes named feature gates after modes"),
    ("command/demo/", "it shows one mode, in a network that it creates"),
];

/// Tests may name modes.
pub fn findings(path: &str, text: &str) -> Vec<Finding> {
    let Some(below) = path.strip_prefix(WHERE) else { return vec![] };
    let is_test = below.ends_with("tests.rs") || below.contains("tests/");
    if is_test || MAY.iter().any(|(place, _)| below.starts_with(place)) {
        return vec![];
    }
    words_of(path, text)
}

fn words_of(path: &str, text: &str) -> Vec<Finding> {
    let tests = Code::of(text).test_modules();
    let code = Code::with_literals(text);
    let lines = code.lines().filter(|(line, _)| !tests.iter().any(|it| (it.first..=it.last).contains(line)));
    let has = lines.flat_map(|(line, code)| {
        let code = code.to_lowercase();
        WORDS.into_iter().filter(move |word| code.contains(word)).map(move |word| (line, word))
    });
    let what_to_do = "the binary must not know it; make it a field or a function of `Mode`";
    has.map(|(line, word)| Finding::new(path, line, word, format!("{word:?}: {what_to_do}"))).collect()
}

/// Places that may have such words but have none.
pub fn unused<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<&'static str> {
    let used: Vec<&str> =
        files.filter(|(path, text)| !words_of(path, text).is_empty()).map(|(path, _)| path).collect();
    let is_used =
        |place: &str| used.iter().filter_map(|it| it.strip_prefix(WHERE)).any(|it| it.starts_with(place));
    MAY.into_iter().map(|(place, _)| place).filter(|place| !is_used(place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// iptables is fine here\nfn a() {\n    if mode == \"ipvs\" {}\n    ferroxy_netlink::b();\n}\n\
                        #[cfg(test)]\nmod tests {\n    const MODE: &str = \"nftables\";\n}\n";

    #[test]
    fn names_in_code_and_literals_are_found() {
        let found = findings("crates/ferroxy/src/agent/mod.rs", TEXT);
        assert_eq!(found.iter().map(|it| it.line).collect::<Vec<_>>(), [3, 4], "{found:?}");
    }

    #[test]
    fn tests_other_crates_and_exceptions_are_fine() {
        for path in ["src/agent/tests.rs", "src/config/tests/values.rs", "src/modes.rs", "tests/serve.rs"] {
            assert_eq!(findings(&format!("crates/ferroxy/{path}"), TEXT), []);
        }
        assert_eq!(findings("crates/ferroxy-nftables/src/lib.rs", TEXT), []);
    }

    #[test]
    fn an_exception_that_nothing_needs_is_found() {
        let files = [("crates/ferroxy/src/modes.rs", TEXT), ("crates/ferroxy/src/config/gates.rs", "")];
        assert_eq!(unused(files.into_iter()), ["wrapper.rs", "config/gates.rs", "command/demo/"]);
    }
}
