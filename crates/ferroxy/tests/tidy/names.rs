//! Rule: a name says what a thing is. Names that fit anything are refused, and so is "backend", which some people use for
//! an endpoint and others for a mode.

use crate::finding::Finding;
use crate::rust::Code;

const REFUSED: [&str; 9] =
    ["utils", "util", "common", "helpers", "helper", "manager", "managers", "backend", "backends"];

/// Established terms that contain a refused word: systemd and the Windows SCM are service managers.
const TERMS: [[&str; 2]; 1] = [["service", "manager"]];

const WHAT_TO_DO: &str = "says too little; name the thing after what it is or does";

pub fn of_file(path: &str) -> Vec<Finding> {
    refused(path)
        .map(|word| Finding::new(path, 1, word, format!("{word:?} in a path {WHAT_TO_DO}")))
        .collect()
}

/// Modules and types.
pub fn of_items(path: &str, text: &str) -> Vec<Finding> {
    let code = Code::of(text);
    let names = ["mod", "struct", "enum", "trait", "type", "union"].into_iter().flat_map(|it| code.named(it));
    let mut found: Vec<Finding> = names
        .flat_map(|(line, name)| {
            let words: Vec<&str> = refused(&name).collect();
            let text = |word| format!("{word:?} in the name {name} {WHAT_TO_DO}");
            words.into_iter().map(|word| Finding::new(path, line, word, text(word))).collect::<Vec<_>>()
        })
        .collect();
    found.sort_by_key(|it| it.line);
    found
}

fn refused(name: &str) -> impl Iterator<Item = &'static str> {
    let words = words(name);
    let is_term = move |at: usize, words: &[String]| {
        at > 0 && TERMS.iter().any(|term| words[at - 1] == term[0] && words[at] == term[1])
    };
    let has = move |refused: &str| (0..words.len()).any(|at| words[at] == refused && !is_term(at, &words));
    REFUSED.into_iter().filter(move |it| has(it))
}

/// The words of a path, of `snake_case` and of `CamelCase`, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for it in name.chars() {
        if !it.is_alphanumeric() || it.is_uppercase() {
            words.push(String::new());
        }
        if let (true, Some(word)) = (it.is_alphanumeric(), words.last_mut()) {
            word.extend(it.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_a_refused_word_is_found() {
        for path in ["crates/a/src/utils.rs", "scripts/test-helpers", "crates/a/src/common/mod.rs"] {
            assert_eq!(of_file(path).len(), 1, "{path}");
        }
        assert_eq!(of_file("crates/a/src/commonplace.rs"), []);
    }

    #[test]
    fn a_type_with_a_refused_word_is_found_at_its_line() {
        let text = "//! A RuleManager.\nstruct RuleManager;\nmod proxy_helpers;\nenum Managed {}\n";
        let lines: Vec<usize> = of_items("a.rs", text).iter().map(|it| it.line).collect();
        assert_eq!(lines, [2, 3]);
    }

    #[test]
    fn established_terms_are_fine() {
        assert_eq!(of_items("a.rs", "struct ServiceManager;\nmod service_manager;\n"), []);
        assert_eq!(of_file("crates/a/src/service_manager.rs"), []);
        assert_eq!(of_file("crates/a/src/manager/service.rs").len(), 1);
    }
}
