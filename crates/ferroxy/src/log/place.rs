//! Where in the program a line comes from: its short name, and whether a pattern of `vmodule` matches it.

/// `crates/ferroxy/src/agent/sweep.rs` → `sweep.rs`. There are many `mod.rs`, so those keep their folder.
pub(super) fn short(file: &str) -> &str {
    let parts = if file.ends_with("/mod.rs") { 2 } else { 1 };
    let start = file.rmatch_indices('/').nth(parts - 1).map_or(0, |(slash, _)| slash + 1);
    file.get(start..).unwrap_or(file)
}

/// Without a slash, the pattern is for the module (`sweep`, and `agent` for `agent/mod.rs`), else for the whole path. `*`
/// stands for any text and `?` for a character.
pub(super) fn matches(pattern: &str, file: &str) -> bool {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    if pattern.contains('/') {
        return glob(pattern.as_bytes(), path.as_bytes());
    }
    let module = path.strip_suffix("/mod").unwrap_or(path);
    let module = module.rsplit('/').next().unwrap_or(module);
    glob(pattern.as_bytes(), module.as_bytes())
}

fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|taken| glob(rest, &text[taken..])),
        ([b'?', pattern @ ..], [_, text @ ..]) => glob(pattern, text),
        ([expected, pattern @ ..], [byte, text @ ..]) => expected == byte && glob(pattern, text),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names() {
        for (file, expected) in [
            ("crates/ferroxy/src/agent/sweep.rs", "sweep.rs"),
            ("crates/ferroxy/src/agent/mod.rs", "agent/mod.rs"),
            ("main.rs", "main.rs"),
            ("", ""),
        ] {
            assert_eq!(short(file), expected);
        }
    }

    #[test]
    fn patterns() {
        let (agent, sweep) = ("crates/ferroxy/src/agent/mod.rs", "crates/ferroxy/src/agent/sweep.rs");
        for (pattern, file) in [
            ("agent", agent),
            ("sweep", sweep),
            ("sw*", sweep),
            ("*", agent),
            ("?weep", sweep),
            ("*/agent/*", sweep),
        ] {
            assert!(matches(pattern, file), "{pattern} {file}");
        }
        for (pattern, file) in
            [("agent", sweep), ("mod", agent), ("swee", sweep), ("?", sweep), ("agent/sweep", sweep)]
        {
            assert!(!matches(pattern, file), "{pattern} {file}");
        }
    }
}
