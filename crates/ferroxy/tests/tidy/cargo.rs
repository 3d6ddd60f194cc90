//! The parts of a `Cargo.toml` that the rules need: its name, and its dependencies with their lines.

#[derive(Debug, Clone)]
pub struct Manifest {
    pub path: String,
    pub name: String,
    pub dependencies: Vec<Dependency>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// From 1.
    pub line: usize,
    pub name: String,
    /// The text to the right of `=`; `.workspace = true` becomes `{ workspace = true }`.
    pub value: String,
    pub kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Workspace,
    Normal,
    Development,
}

impl Manifest {
    /// Reads tables whose entries take a line each, as ours do.
    pub fn of(path: &str, text: &str) -> Manifest {
        let mut manifest = Manifest { path: path.to_owned(), name: String::new(), dependencies: Vec::new() };
        let mut table = "";
        for (index, line) in text.lines().enumerate() {
            if let Some(header) = line.strip_prefix('[') {
                table = header.trim_end_matches(']');
                continue;
            }
            let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) else {
                continue;
            };
            let (key, value) = (key.trim(), value.trim());
            if table == "package" && key == "name" {
                manifest.name = value.trim_matches('"').to_owned();
            }
            let Some(kind) = kind(table) else { continue };
            let (name, value) = match key.strip_suffix(".workspace") {
                Some(name) => (name, format!("{{ workspace = {value} }}")),
                None => (key, value.to_owned()),
            };
            manifest.dependencies.push(Dependency { line: index + 1, name: name.to_owned(), value, kind });
        }
        manifest
    }
}

fn kind(table: &str) -> Option<Kind> {
    match table.rsplit('.').next()? {
        "dependencies" if table == "workspace.dependencies" => Some(Kind::Workspace),
        "dependencies" | "build-dependencies" => Some(Kind::Normal),
        "dev-dependencies" => Some(Kind::Development),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_of_every_kind_are_read() {
        let text = "[package]\nname = \"a\"\n[dependencies]\nb.workspace = true\n[target.'cfg(unix)'.dependencies]\n\
                    c = { workspace = true, optional = true }\n[features]\nd = [\"dep:c\"]\n[dev-dependencies]\n\
                    # e = \"1\"\nf = \"=1.0.0\"\n";
        let manifest = Manifest::of("Cargo.toml", text);
        let found: Vec<_> = manifest
            .dependencies
            .iter()
            .map(|it| (it.line, it.name.as_str(), it.value.as_str(), it.kind))
            .collect();
        assert_eq!(manifest.name, "a");
        assert_eq!(
            found,
            [
                (4, "b", "{ workspace = true }", Kind::Normal),
                (6, "c", "{ workspace = true, optional = true }", Kind::Normal),
                (11, "f", "\"=1.0.0\"", Kind::Development),
            ]
        );
    }
}
