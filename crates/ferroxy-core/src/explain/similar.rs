//! Suggestions for a misspelled Service name.

use crate::facts::Facts;
use crate::name::ServiceName;

/// The maximum number of suggestions.
const MOST: usize = 3;

/// Services of the same name in other namespaces, and Services of nearly the same name.
pub(super) fn services(facts: &Facts, wanted: &ServiceName) -> (Vec<ServiceName>, Vec<ServiceName>) {
    let elsewhere = facts.service_names().filter(|name| name.name() == wanted.name()).cloned().collect();
    let furthest = 1 + wanted.name().chars().count() / 4;
    let near = facts.service_names().filter_map(|name| {
        let distance = distance(name.as_str(), wanted.as_str());
        let other_name = name.name() != wanted.name();
        (other_name && distance <= furthest).then_some((distance, name))
    });
    let mut near: Vec<_> = near.collect();
    near.sort();
    (elsewhere, near.into_iter().take(MOST).map(|(_, name)| name.clone()).collect())
}

/// Edits (insert, delete, replace a character) that turn one text into the other.
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        for (a, b, expected) in
            [("", "", 0), ("web", "web", 0), ("web", "wbe", 2), ("api", "apis", 1), ("", "abc", 3)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }
}
