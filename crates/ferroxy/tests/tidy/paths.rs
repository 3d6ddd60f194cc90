//! Rule: a file or folder that a document names exists. `agent/start.rs` may leave out the folders above it.

use crate::finding::Finding;

const ENDINGS: &[&str] = &[".rs", ".md", ".yaml", ".json", ".txt", ".svg", "/"];

/// `files`: the paths of all files.
pub fn findings(path: &str, text: &str, files: &[&str]) -> Vec<Finding> {
    if !path.ends_with(".md") || path.starts_with("conformance/") {
        return vec![];
    }
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let missing = named(line).filter(|name| !exists(name, files));
        found.extend(missing.map(|name| {
            let text = format!("`{name}` does not exist; write its present path");
            Finding::new(path, index + 1, name, text)
        }));
    }
    found
}

/// Paths in backticks. Patterns and placeholders are not paths.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    let plain = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || "._-/".contains(it);
    quoted.filter(move |it| {
        it.chars().all(plain) && !it.starts_with(['/', '.']) && ENDINGS.iter().any(|end| it.ends_with(end))
    })
}

fn exists(name: &str, files: &[&str]) -> bool {
    if name.ends_with('/') {
        return files.iter().any(|file| file.starts_with(name) || file.contains(&format!("/{name}")));
    }
    files.iter().any(|file| *file == name || file.ends_with(&format!("/{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_found_and_what_is_there_is_not() {
        let files = ["crates/a/src/agent/start.rs", "docs/limits.md"];
        let fine = "`agent/start.rs`, `docs/`, `docs/limits.md`, `FERROXY.md`, `tests/*.rs`, `/metrics/`";
        assert_eq!(findings("README.md", fine, &files), []);
        for wrong in ["`start/agent.rs`", "`doc/`", "words `limit.md`"] {
            assert_eq!(findings("README.md", wrong, &files).len(), 1, "{wrong}");
        }
    }
}
