//! A finding of a rule, and how findings become the failure of a test.

use std::fmt;

use crate::exceptions::{EXCEPTIONS, Exception};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub file: String,
    /// From 1.
    pub line: usize,
    /// The function or the word that an exception must name besides the file. Empty if the finding is about the whole file.
    pub item: String,
    /// What is wrong, and what to do.
    pub text: String,
}

impl Finding {
    pub fn new(file: &str, line: usize, item: &str, text: impl Into<String>) -> Finding {
        Finding { file: file.to_owned(), line, item: item.to_owned(), text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.text)
    }
}

/// Fails with every finding that has no exception, and with every exception that has no finding.
pub fn judge(rule: &str, findings: Vec<Finding>) {
    let exceptions: Vec<&Exception> = EXCEPTIONS.iter().filter(|it| it.rule == rule).collect();
    let wrong = report(&findings, &exceptions);
    assert!(wrong.is_empty(), "house rule \"{rule}\":\n{}\n{} in all", wrong.join("\n"), wrong.len());
}

fn report(findings: &[Finding], exceptions: &[&Exception]) -> Vec<String> {
    let covers = |it: &Exception, found: &Finding| it.file == found.file && it.item == found.item;
    let wrong = findings.iter().filter(|found| !exceptions.iter().any(|it| covers(it, found)));
    let stale = exceptions.iter().filter(|it| !findings.iter().any(|found| covers(it, found)));
    let stale = stale.map(|it| {
        let item = if it.item.is_empty() { "the file" } else { it.item };
        format!("{}: {item} keeps the rule now; remove its line from tests/tidy/exceptions.rs", it.file)
    });
    wrong.map(ToString::to_string).chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Exception = Exception { rule: "any", file: "a.rs", item: "long", reason: "a table" };

    #[test]
    fn a_finding_is_reported_with_its_place_unless_it_is_an_exception() {
        let found =
            [Finding::new("a.rs", 7, "long", "too long"), Finding::new("b.rs", 1, "long", "too long")];
        assert_eq!(report(&found, &[&LONG]), ["b.rs:1: too long"]);
    }

    #[test]
    fn a_stale_exception_is_reported() {
        let wrong = report(&[], &[&LONG]);
        assert_eq!(wrong.len(), 1);
        assert!(wrong[0].starts_with("a.rs: long keeps the rule now"), "{wrong:?}");
    }
}
