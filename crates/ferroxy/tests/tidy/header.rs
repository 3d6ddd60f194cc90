//! Rule: the first line of a Rust file says what the file is.

use crate::finding::Finding;

const WHAT_TO_DO: &str =
    "the first line must be `//! …` and say what the file is (and, if useful, what it is not)";

pub fn findings(path: &str, text: &str) -> Vec<Finding> {
    let first = text.lines().next().unwrap_or_default();
    let says = first.strip_prefix("//! ").is_some_and(|words| words.split_whitespace().count() >= 3);
    if says { vec![] } else { vec![Finding::new(path, 1, "", WHAT_TO_DO)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_header_is_found() {
        for text in [
            "",
            "use std::fs;\n",
            "// Reads files.\n",
            "//! Files.\n",
            "\n//! Reads the files of a folder.\n",
        ] {
            assert_eq!(findings("a.rs", text), [Finding::new("a.rs", 1, "", WHAT_TO_DO)], "{text:?}");
        }
        assert_eq!(findings("a.rs", "//! Reads the files of a folder.\n"), []);
    }
}
