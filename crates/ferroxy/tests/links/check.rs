//! Finds links that lead nowhere. Pure: the files are a value.

use std::collections::{BTreeMap, BTreeSet};

use crate::markdown::{Document, Link};

#[derive(Debug)]
pub struct Repository {
    /// The paths of all files and folders, from the root, with `/`.
    paths: BTreeSet<String>,
    documents: BTreeMap<String, Document>,
}

impl Repository {
    /// Paths, and the text of those that are Markdown.
    pub fn new(files: BTreeMap<String, Option<String>>) -> Repository {
        let parents =
            |path: &String| path.match_indices('/').map(|it| path[..it.0].to_owned()).collect::<Vec<_>>();
        let mut paths: BTreeSet<String> = files.keys().flat_map(parents).collect();
        paths.extend(files.keys().cloned());
        paths.insert(String::new());
        let documents =
            files.into_iter().filter_map(|(path, text)| Some((path, Document::of(&text?)))).collect();
        Repository { paths, documents }
    }

    pub fn document(&self, path: &str) -> Option<&Document> {
        self.documents.get(path)
    }

    pub fn documents(&self) -> impl Iterator<Item = &str> {
        self.documents.keys().map(String::as_str)
    }

    pub fn links(&self) -> usize {
        self.documents.values().map(|it| it.links.len()).sum()
    }

    /// `file:line: target: what is wrong`.
    pub fn findings(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (path, document) in &self.documents {
            let mut say = |link: &Link, wrong: &str| {
                found.push(format!("{path}:{}: {}: {wrong}", link.line, link.target));
            };
            for link in &document.undefined {
                say(link, "no line defines this reference");
            }
            for link in &document.links {
                if let Err(wrong) = self.check(path, &link.target) {
                    say(link, &wrong);
                }
            }
        }
        found
    }

    fn check(&self, from: &str, target: &str) -> Result<(), String> {
        if ["http://", "https://", "mailto:"].iter().any(|it| target.starts_with(it)) {
            return Ok(());
        }
        if target.is_empty() {
            return Err("the link is empty".to_owned());
        }
        if target.starts_with(['/', '\\']) || target.split('#').next().is_some_and(|it| it.contains(':')) {
            return Err("a place on one machine; write a path relative to this file".to_owned());
        }
        let (file, anchor) =
            target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
        let path = if file.is_empty() { from.to_owned() } else { resolve(from, file)? };
        if !self.paths.contains(&path) {
            return Err("no such file or folder".to_owned());
        }
        match (anchor, self.documents.get(&path)) {
            (None, _) => Ok(()),
            (Some(_), None) => Err("only headings of Markdown files can be linked to".to_owned()),
            (Some(anchor), Some(document)) => check_anchor(&path, document, anchor),
        }
    }
}

fn check_anchor(path: &str, document: &Document, anchor: &str) -> Result<(), String> {
    let has = |slug: fn(&str) -> String| {
        document.ids.iter().any(|it| it == anchor) || anchors(document, slug).any(|it| it == anchor)
    };
    if !has(github) {
        return Err(format!("{path} has no such heading"));
    }
    if path.starts_with("docs/") && !has(mdbook) {
        return Err(format!(
            "{path} has this heading on GitHub, but under another name in the book; write it in ASCII"
        ));
    }
    Ok(())
}

/// The second heading with a name gets a number.
fn anchors(document: &Document, slug: fn(&str) -> String) -> impl Iterator<Item = String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    document.headings.iter().map(move |heading| {
        let name = slug(heading);
        let before = seen.entry(name.clone()).and_modify(|it| *it += 1).or_default();
        if *before == 0 { name } else { format!("{name}-{before}") }
    })
}

/// Letters and digits of any language in lower case, `-` and `_`; spaces become `-`.
fn github(heading: &str) -> String {
    heading.trim().to_lowercase().chars().filter_map(slug_character).collect()
}

/// The same, but only ASCII becomes lower case.
fn mdbook(heading: &str) -> String {
    heading.trim().to_ascii_lowercase().chars().filter_map(slug_character).collect()
}

fn slug_character(it: char) -> Option<char> {
    match it {
        ' ' => Some('-'),
        '-' | '_' => Some(it),
        it => it.is_alphanumeric().then_some(it),
    }
}

/// A path from the root. `from` is the file with the link.
fn resolve(from: &str, target: &str) -> Result<String, String> {
    let target = target.replace("%20", " ");
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop().ok_or("leads out of the repository")?;
            }
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings about a link in `docs/a.md`.
    fn said(target: &str) -> Vec<String> {
        let files = [
            ("docs/a.md", Some(format!("# Top\n## Same\n## Same\n## `run`: Über *all*\n[x]({target})\n"))),
            ("docs/b c.md", Some("# Straße `x_y`, z\n<a id=\"here\"></a>\n".to_owned())),
            ("README.md", Some("# Über uns\n".to_owned())),
            ("deploy/Containerfile", None),
        ];
        Repository::new(files.into_iter().map(|(path, text)| (path.to_owned(), text)).collect()).findings()
    }

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        for target in [
            "https://example.com/x",
            "#top",
            "#same-1",
            "a.md#same",
            "b%20c.md#straße-x_y-z",
            "b%20c.md#here",
            "../README.md#über-uns",
            "../deploy/Containerfile",
            "../deploy/",
            "..",
        ] {
            assert_eq!(said(target), Vec::<String>::new(), "{target}");
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_found_at_their_line() {
        for (target, wrong) in [
            ("c.md", "no such file"),
            ("B%20c.md", "no such file"),
            ("../docs/a.md/x", "no such file"),
            ("#none", "has no such heading"),
            ("#same-2", "has no such heading"),
            ("../README.md#uber-uns", "has no such heading"),
            ("../deploy/Containerfile#L3", "only headings"),
            ("../../other/x.md", "out of the repository"),
            ("/etc/passwd", "one machine"),
            ("file:///etc/passwd", "one machine"),
            ("C:/x.md", "one machine"),
            ("", "is empty"),
            ("#run-über-all", "another name in the book"),
        ] {
            let said = said(target);
            assert_eq!(said.len(), 1, "{target}: {said:?}");
            assert!(said[0].starts_with("docs/a.md:5: ") && said[0].contains(wrong), "{said:?}");
        }
    }
}
