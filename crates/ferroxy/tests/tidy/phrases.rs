//! Rule: comments, messages and documents are plain engineering English. This finds phrases that reviewers could not
//! read; it cannot find good ones.

use crate::finding::Finding;
use crate::rust::Code;

/// Phrases to avoid, and the terms that an engineer would search for.
const PHRASES: &[(&str, &str)] = &[
    ("is told", "\"is notified\", \"is logged\" or \"is passed\""),
    ("are told", "\"are notified\", \"are logged\" or \"are passed\""),
    ("is heard", "\"is received\" or \"is watched\""),
    ("are heard", "\"are received\" or \"are watched\""),
    ("told of", "\"reported\", \"logged\" or \"notified about\": say which"),
    ("told aloud", "\"reported\" or \"printed\""),
    ("skipped aloud", "\"skipped, with a message\""),
    ("told from strangers", "\"distinguished from external traffic\""),
    ("heard of", "\"received\", \"watched\" or \"known\""),
    ("heard again", "\"reconnected\" or \"received again\""),
    ("ear closed", "\"unsubscribed\""),
    ("nobody asks", "\"stale\" or \"unused\""),
    ("nobody asked", "\"not requested\""),
    ("nobody knows", "\"unknown\""),
    ("nobody listens", "\"no listener\", \"nothing listens on it\""),
    ("nobody reads", "\"unread\" or \"unused\""),
    ("nobody is", "\"no process is\", \"nothing is\""),
    ("stands in the log", "\"is logged\""),
    ("came back and went again", "\"were recreated and removed again\""),
    ("what came of it", "\"the result\""),
    ("this went wrong", "\"internal error\", or what failed"),
    ("the log says more", "\"see the log\""),
    ("told from", "\"distinguished from\""),
    ("told apart", "\"distinguished\""),
    ("somebody", "\"another program\", \"a user\": say who"),
    ("in vain", "\"without success\", or what timed out"),
    ("all is well", "\"success\" or \"no problem found\""),
    ("hears of", "\"receives\", \"watches\" or \"learns\""),
    ("tells of", "\"reports\" or \"notifies about\""),
    ("astray", "\"is lost\" or \"is not translated\""),
    ("ordinary way", "\"packet rules translate it\", or what else serves it"),
    ("tells people", "\"writes Events and log lines\""),
    ("cannot tell more", "\"is too noisy to show more\""),
];

/// Phrases that documents and messages must not have either. Comments and names may.
const FOR_USERS: &[(&str, &str)] = &[
    ("anew", "\"again\", \"starts over\" or \"is recreated\""),
    ("at hand", "\"available\" or \"this machine's\""),
    ("nothing leads to", "\"unreferenced\""),
    ("nobody", "\"none\", \"no client\", \"no process\": say which"),
    ("nobody's", "\"no Service's\", \"of no client\": say which"),
    ("whoever", "\"the client that\", \"the program that\": say which"),
    ("who tells", "\"status\", \"Events\", \"metrics\": say which"),
    ("cannot tell", "\"limitations\" or \"cannot distinguish\""),
    ("whose it is", "\"its owner\""),
    ("its look", "\"verification\""),
    ("a look", "\"verification\" or \"a check\""),
    ("never seen", "\"not confirmed\" or \"not tested\""),
    ("is asked once", "\"is probed once\" or \"is queried once\""),
    ("says nothing", "\"has no effect\" or \"is neither success nor failure\""),
];

/// Files that people write and read. Recordings, licences and this list are not judged.
pub fn findings(path: &str, text: &str) -> Vec<Finding> {
    let skipped = ["conformance/cases/", "fuzz/seeds/", "crates/ferroxy/tests/tidy/", "LICENSE"];
    if skipped.iter().any(|it| path.starts_with(it)) || path.ends_with(".lock") {
        return vec![];
    }
    let mut found = of(PHRASES, path, text);
    if path.ends_with(".md") {
        found.extend(of(FOR_USERS, path, text));
    } else if is_product(path) {
        found.extend(of(FOR_USERS, path, &messages(text)));
    }
    found.sort_by_key(|it| it.line);
    found
}

fn is_product(path: &str) -> bool {
    let is_test =
        path.contains("/tests") || path.contains("/testing/") || path.starts_with("crates/ferroxy-lab/");
    path.starts_with("crates/") && path.ends_with(".rs") && path.contains("/src/") && !is_test
}

/// The literals that are not in tests, on the same lines.
fn messages(text: &str) -> String {
    let (code, with_literals) = (Code::of(text), Code::with_literals(text));
    let tests = code.test_modules();
    let lines = code.lines().zip(with_literals.lines()).map(|((line, code), (_, both))| {
        let is_test = tests.iter().any(|it| (it.first..=it.last).contains(&line));
        let pairs = code.bytes().zip(both.bytes());
        let literal = |(code, both): (u8, u8)| if is_test || code == both { b' ' } else { both };
        String::from_utf8_lossy(&pairs.map(literal).collect::<Vec<_>>()).into_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn of(phrases: &[(&str, &str)], path: &str, text: &str) -> Vec<Finding> {
    let words = words(text);
    let mut found = Vec::new();
    for (phrase, instead) in phrases {
        let phrase: Vec<&str> = phrase.split(' ').collect();
        for window in words.windows(phrase.len()) {
            if window.iter().map(|(_, word)| word.as_str()).eq(phrase.iter().copied()) {
                let text = format!("\"{}\" is hard to understand; write {instead}", phrase.join(" "));
                found.push(Finding::new(path, window[0].0, "", text));
            }
        }
    }
    found
}

/// The words in lower case with their lines, without punctuation: a phrase may go on in the next line of a comment.
fn words(text: &str) -> Vec<(usize, String)> {
    let words = text.lines().enumerate().flat_map(|(index, line)| {
        let parts = line.split(|it: char| !it.is_alphanumeric() && it != '\'');
        parts.filter(|it| !it.is_empty()).map(move |word| (index + 1, word.to_lowercase()))
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phrase_is_found_across_lines_of_a_comment() {
        let found = findings("a.rs", "fn a() {}\n/// Fields nobody\n/// knows are warnings.\nfn b() {}\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].line, 2);
    }

    #[test]
    fn some_phrases_are_for_comments_only() {
        let text = "// Nobody waits.\nfn a() {\n    warn!(\"nobody answers\");\n}\n\
                    #[cfg(test)]\nmod tests {\n    const NAME: &str = \"nobody\";\n}\n";
        let lines = |path| findings(path, text).iter().map(|it| it.line).collect::<Vec<_>>();
        assert_eq!(lines("crates/a/src/b.rs"), [3]);
        assert_eq!(lines("crates/a/tests/b.rs"), [0; 0]);
        assert_eq!(lines("docs/b.md"), [1, 3, 7]);
    }

    #[test]
    fn plain_words_and_recordings_are_fine() {
        assert_eq!(findings("a.md", "Unknown fields are warnings.\n"), []);
        assert_eq!(findings("conformance/cases/a/objects.yaml", "nobody knows\n"), []);
    }
}
