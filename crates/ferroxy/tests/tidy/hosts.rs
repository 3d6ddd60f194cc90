//! Rules: no file names a folder of a developer's machine or an image registry, and every package comes from crates.io.

use crate::finding::Finding;

const FOLDERS: [&str; 4] = ["/work/", "/root/", "/home/", "/Users/"];
const REGISTRIES: [&str; 6] =
    ["docker.io", "gcr.io", "ghcr.io", "quay.io", "registry.k8s.io", "mcr.microsoft.com"];
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub fn findings(path: &str, text: &str) -> Vec<Finding> {
    // These rules and their exceptions name what they look for.
    if path.starts_with("crates/ferroxy/tests/tidy/") {
        return vec![];
    }
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    lines.flat_map(|(line, text)| of_line(path, line, text)).collect()
}

pub fn of_lock_file(path: &str, text: &str) -> Vec<Finding> {
    if !path.ends_with("Cargo.lock") {
        return vec![];
    }
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    lines
        .filter_map(|(line, text)| Some((line, text.strip_prefix("source = ")?.trim_matches('"'))))
        .filter(|(_, source)| *source != CRATES_IO)
        .map(|(line, source)| Finding::new(path, line, source, format!("{source} is not crates.io")))
        .collect()
}

fn of_line(path: &str, line: usize, text: &str) -> Vec<Finding> {
    let folders = FOLDERS.iter().filter(|it| has_folder(text, it));
    let folders = folders.map(|it| (it, "is a folder of one machine; use a path relative to the repository"));
    let registries = REGISTRIES.iter().filter(|it| text.contains(**it));
    let registries = registries.map(|it| (it, "is a registry; name the image only, or make it a setting"));
    folders
        .chain(registries)
        .map(|(item, what)| Finding::new(path, line, item, format!("{item} {what}")))
        .collect()
}

/// At the beginning of a path, not in the middle of one.
fn has_folder(text: &str, folder: &str) -> bool {
    let begins = |at: usize| !text[..at].ends_with(|it: char| it.is_alphanumeric() || "._-}".contains(it));
    text.match_indices(folder).any(|(at, _)| begins(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_one_machine_is_found_at_its_line() {
        let found = findings("a.md", "see\n`/home/me/ferroxy`\n");
        assert_eq!(found.iter().map(|it| (it.line, it.item.as_str())).collect::<Vec<_>>(), [(2, "/home/")]);
        assert_eq!(findings("a.md", "crates/ferroxy/tests/cost/work/a.rs"), []);
    }

    #[test]
    fn a_registry_is_found() {
        assert_eq!(findings("a.yaml", "image: ghcr.io/someone/ferroxy:0.1\n").len(), 1);
        assert_eq!(findings("a.yaml", "image: ferroxy:0.1\n"), []);
    }

    #[test]
    fn a_package_from_elsewhere_is_found() {
        let text = format!("source = \"{CRATES_IO}\"\nsource = \"git+https://example.com/a\"\n");
        assert_eq!(of_lock_file("Cargo.lock", &text).iter().map(|it| it.line).collect::<Vec<_>>(), [2]);
    }
}
