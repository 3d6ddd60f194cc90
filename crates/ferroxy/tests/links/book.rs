//! The book: `docs/SUMMARY.md` lists every page of `docs/` once, and nothing else.

use std::collections::BTreeMap;

use crate::check::Repository;

const SUMMARY: &str = "docs/SUMMARY.md";

pub fn findings(repository: &Repository) -> Vec<String> {
    let summary = repository.document(SUMMARY).map(|it| it.links.as_slice()).unwrap_or_default();
    let mut listed: BTreeMap<String, usize> = BTreeMap::new();
    for link in summary {
        *listed.entry(format!("docs/{}", link.target)).or_default() += 1;
    }
    let is_page = |path: &&str| path.starts_with("docs/") && *path != SUMMARY;
    let missing = repository.documents().filter(is_page).filter(|it| !listed.contains_key(*it));
    let mut found: Vec<String> = missing.map(|it| format!("{it} is not listed")).collect();
    let no_pages = listed.keys().filter(|it| repository.document(it).is_none());
    found.extend(no_pages.map(|it| format!("{it} is listed and is no page")));
    found.extend(listed.iter().filter(|it| *it.1 > 1).map(|it| format!("{} is listed more than once", it.0)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(summary: &str) -> Vec<String> {
        let files = [(SUMMARY, summary), ("docs/a.md", ""), ("docs/b.md", ""), ("README.md", "")];
        let files = files.into_iter().map(|(path, text)| (path.to_owned(), Some(text.to_owned()))).collect();
        findings(&Repository::new(files))
    }

    #[test]
    fn missing_and_doubled_pages_are_found() {
        assert_eq!(of("- [A](a.md)\n  - [B](b.md)\n"), Vec::<String>::new());
        assert_eq!(of("- [A](a.md)\n"), ["docs/b.md is not listed"]);
        assert_eq!(of("- [A](a.md)\n- [B](b.md)\n- [A](a.md)\n"), ["docs/a.md is listed more than once"]);
        assert_eq!(
            of("- [A](a.md)\n- [B](b.md)\n- [C](../README.md)\n"),
            ["docs/../README.md is listed and is no page"]
        );
    }
}
