//! Rules: a file fits into a reader's head, a function on a screen.

use crate::finding::Finding;
use crate::rust::Code;

/// Without test modules. Files that are tests may be longer.
const FILE: usize = 450;
const FUNCTION: usize = 60;
/// A test is read from its beginning to its end, and is often a table.
const TEST: usize = 100;
const MEDIAN: usize = 130;

pub fn of_file(path: &str, text: &str) -> Vec<Finding> {
    let lines = lines(text);
    if is_test(path) || lines <= FILE {
        return vec![];
    }
    vec![Finding::new(path, 1, "", format!("{lines} lines without tests, at most {FILE}; split the file"))]
}

pub fn of_functions(path: &str, text: &str) -> Vec<Finding> {
    let limit = if is_test(path) { TEST } else { FUNCTION };
    let long = Code::of(text).functions().into_iter().filter(|it| it.lines() > limit);
    long.map(|it| {
        let text = format!("fn {} has {} lines, at most {limit}; split it", it.name, it.lines());
        Finding::new(path, it.first, &it.name, text)
    })
    .collect()
}

/// Over all files that are not tests: (path, text).
pub fn of_median(files: &[(&str, &str)]) -> Vec<Finding> {
    let mut lengths: Vec<usize> =
        files.iter().filter(|(path, _)| !is_test(path)).map(|(_, text)| lines(text)).collect();
    lengths.sort_unstable();
    match lengths.get(lengths.len() / 2) {
        Some(&median) if median > MEDIAN => {
            let text = format!("the median file has {median} lines, at most {MEDIAN}; split some");
            vec![Finding::new("crates", 1, "", text)]
        }
        _ => vec![],
    }
}

fn lines(text: &str) -> usize {
    let tests: usize = Code::of(text).test_modules().iter().map(|it| it.lines() + 1).sum();
    text.lines().count() - tests
}

fn is_test(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.any(|part| matches!(part, "tests" | "benches" | "tests.rs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_found_unless_it_is_a_test() {
        let long = "x\n".repeat(FILE + 1);
        assert_eq!(of_file("src/a.rs", &long).len(), 1);
        assert_eq!(of_file("src/a.rs", &"x\n".repeat(FILE)), []);
        for test in ["tests/a.rs", "src/a/tests.rs"] {
            assert_eq!(of_file(test, &long), []);
        }
    }

    #[test]
    fn a_test_module_does_not_count() {
        let text = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", "x\n".repeat(FILE), "y\n".repeat(100));
        assert_eq!(of_file("src/a.rs", &text), []);
    }

    #[test]
    fn a_long_function_is_found_at_its_line() {
        let text = format!("struct S;\nfn long() {{\n{}}}\nfn short() {{}}\n", "    x;\n".repeat(FUNCTION));
        let found = of_functions("src/a.rs", &text);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].item.as_str()), (2, "long"));
        assert_eq!(of_functions("tests/a.rs", &text), []);
    }

    #[test]
    fn the_median_is_that_of_files_that_are_no_tests() {
        let (long, short) = ("x\n".repeat(MEDIAN + 1), "x\n");
        assert_eq!(of_median(&[("a.rs", &long), ("b.rs", &long), ("c.rs", short)]).len(), 1);
        assert_eq!(of_median(&[("a.rs", &long), ("b.rs", short), ("c.rs", short)]), []);
        assert_eq!(of_median(&[("tests/a.rs", &long), ("tests/b.rs", &long), ("c.rs", short)]), []);
    }
}
