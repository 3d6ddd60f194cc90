//! Rule: every dependency has one exact version, in one place.

use crate::cargo::{Dependency, Manifest};
use crate::finding::Finding;

pub fn findings(path: &str, text: &str) -> Vec<Finding> {
    let manifest = Manifest::of(path, text);
    let is_member = path.starts_with("crates/");
    let wrong = manifest.dependencies.iter().filter_map(|it| Some((it, what_is_wrong(it, is_member)?)));
    wrong.map(|(it, text)| Finding::new(path, it.line, &it.name, format!("{}: {text}", it.name))).collect()
}

/// A member of the workspace refers to the workspace. The workspace has the version, and so does `fuzz/`, a separate workspace.
fn what_is_wrong(it: &Dependency, is_member: bool) -> Option<&'static str> {
    let is_ours = it.name.starts_with("ferroxy");
    // A path of our own is allowed where the workspace's entry does not fit: for the crate itself, or without default features.
    if is_ours && it.value.contains("path = ") {
        return None;
    }
    if is_member {
        let refers = it.value.contains("workspace = true");
        return (!refers)
            .then_some("write `workspace = true`, and its version in the Cargo.toml of the workspace");
    }
    let version = it.value.strip_prefix("{ version = ").unwrap_or(&it.value);
    (!version.starts_with("\"=")).then_some("pin it to one version: \"=x.y.z\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_versions_is_found() {
        let text = "[workspace.dependencies]\na = \"=1.0.0\"\nb = \"1\"\nc = { version = \"^2\", features = [] }\n\
                    d = { version = \"=2.0.0\" }\nferroxy-core = { path = \"crates/ferroxy-core\" }\n";
        let found: Vec<String> = findings("Cargo.toml", text).into_iter().map(|it| it.item).collect();
        assert_eq!(found, ["b", "c"]);
    }

    #[test]
    fn a_version_in_a_crate_of_the_workspace_is_found() {
        let text = "[dependencies]\na.workspace = true\nb = \"=1.0.0\"\nc = { workspace = true, optional = true }\n\
                    [dev-dependencies]\nferroxy-lab = { path = \".\", features = [\"api\"] }\n";
        let found: Vec<String> =
            findings("crates/a/Cargo.toml", text).into_iter().map(|it| it.item).collect();
        assert_eq!(found, ["b"]);
    }
}
