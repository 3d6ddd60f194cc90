//! Text to documents to trees of values. Knows YAML and JSON, and nothing of Kubernetes.

use serde_json::Value;
use serde_saphyr::{DefaultMessageFormatter, Error, MessageFormatter};

use super::{MAX_DEPTH, MAX_NODES};

/// One document of a text, parsed or not.
#[derive(Debug)]
pub(super) struct Document {
    /// Counted from 1.
    pub(super) number: usize,
    pub(super) content: Result<Value, Unreadable>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Unreadable {
    /// Line and column in the whole text, counted from 1, where the parser could tell.
    pub(super) at: Option<(u64, u64)>,
    pub(super) reason: String,
}

/// The documents of a YAML stream, each parsed by itself, so that a broken one does not hide the others.
pub(super) fn yaml(text: &str) -> impl Iterator<Item = Document> {
    let chunks = chunks(text).enumerate();
    chunks.map(|(i, chunk)| Document { number: i + 1, content: chunk.parse() })
}

/// The documents of a JSON text; there may be several, one after the other. What follows a broken one is lost.
pub(super) fn json(text: &str) -> impl Iterator<Item = Document> {
    // Every value but the first of a container has a comma before it: this many values there are at most.
    let nodes = text.bytes().filter(|byte| b",[{".contains(byte)).count();
    let refused = (nodes > MAX_NODES)
        .then(|| Unreadable { at: None, reason: format!("holds more than {MAX_NODES} values") });
    let allowed = if refused.is_some() { "" } else { text };
    let values = serde_json::Deserializer::from_str(allowed).into_iter::<Value>();
    let contents = refused.map(Err).into_iter().chain(values.map(|value| value.map_err(unreadable_json)));
    contents.enumerate().map(|(i, content)| Document { number: i + 1, content })
}

fn unreadable_json(error: serde_json::Error) -> Unreadable {
    let text = error.to_string();
    let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _place)| reason);
    Unreadable { at: Some((error.line() as u64, error.column() as u64)), reason: reason.to_owned() }
}

/// A stretch of YAML that holds one document.
#[derive(Debug, PartialEq)]
struct Chunk<'a> {
    /// How many lines of the text come before it.
    lines_before: usize,
    text: &'a str,
}

/// Splits at the document markers. YAML forbids `---` and `...` at the start of a line everywhere else, even inside
/// quoted or block text, so no parser is needed to find them. Chunks of nothing but comments and directives are
/// left out.
fn chunks(text: &str) -> impl Iterator<Item = Chunk<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut starts = vec![(0, 0)];
    let mut offset = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if is_marker(line, "---") {
            starts.push((offset, number));
        }
        offset += line.len();
        if is_marker(line, "...") {
            starts.push((offset, number + 1));
        }
    }
    let ends: Vec<usize> = starts.iter().skip(1).map(|(start, _)| *start).chain([text.len()]).collect();
    let chunks = starts.into_iter().zip(ends);
    chunks
        .map(|((start, lines_before), end)| Chunk { lines_before, text: text.get(start..end).unwrap_or("") })
        .filter(|chunk| chunk.has_content())
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

impl Chunk<'_> {
    fn has_content(&self) -> bool {
        self.text.lines().any(|line| {
            let line = line.strip_prefix("---").unwrap_or(line).trim();
            !(line.is_empty() || line == "..." || line.starts_with('#') || line.starts_with('%'))
        })
    }

    fn parse(&self) -> Result<Value, Unreadable> {
        let options = serde_saphyr::options! {
            with_snippet: false,
            emit_comments: false,
            budget: serde_saphyr::budget! {
                max_depth: MAX_DEPTH,
                max_nodes: MAX_NODES,
                max_events: 2 * MAX_NODES,
            },
        };
        serde_saphyr::from_str_with_options(self.text, options).map_err(|error| self.unreadable(&error))
    }

    fn unreadable(&self, error: &Error) -> Unreadable {
        let at = error.location().map(|it| (it.line() + self.lines_before as u64, it.column()));
        let reason = DefaultMessageFormatter.format_message(error.without_snippet());
        Unreadable { at, reason: reason.replace(char::is_control, " ") }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn contents(documents: impl Iterator<Item = Document>) -> Vec<Result<Value, Option<(u64, u64)>>> {
        documents.map(|document| document.content.map_err(|error| error.at)).collect()
    }

    #[test]
    fn a_stream_is_split_at_its_markers() {
        let text = "%YAML 1.2\n---\na: 1\n--- # the second\nb: |\n  x\n   --- not here\n---\n# nothing\n--- {c: 3}\n...\nd: 4\n";
        let expected = [
            Ok(json!({"a": 1})),
            Ok(json!({"b": "x\n --- not here\n"})),
            Ok(json!({"c": 3})),
            Ok(json!({"d": 4})),
        ];
        assert_eq!(contents(yaml(text)), expected);
    }

    #[test]
    fn line_endings_and_byte_order_marks_of_other_systems() {
        assert_eq!(
            contents(yaml("\u{feff}a: 1\r\n---\r\nb: 2\r\n")),
            [Ok(json!({"a": 1})), Ok(json!({"b": 2}))]
        );
        assert_eq!(contents(yaml("----\n")), [Ok(json!("----"))]);
        assert_eq!(contents(yaml("")), []);
        assert_eq!(contents(yaml("---\n---\n")), []);
    }

    #[test]
    fn a_broken_document_does_not_hide_its_neighbours() {
        let text = "a: 1\n---\nb: [1, 2\nc: }\n---\nd: 4\n";
        let documents: Vec<_> = yaml(text).collect();
        assert_eq!(documents.len(), 3);
        assert!(documents[0].content.is_ok() && documents[2].content.is_ok());
        let error = documents[1].content.as_ref().unwrap_err();
        let (line, _) = error.at.unwrap();
        assert!((3..=4).contains(&line), "{error:?}");
        assert!(!error.reason.is_empty() && !error.reason.contains('\n'), "{error:?}");
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for i in 1..12 {
            let before = format!("*a{}, ", i - 1).repeat(10);
            text.push_str(&format!("a{i}: &a{i} [{}]\n", before.trim_end_matches(", ")));
        }
        let documents: Vec<_> = yaml(&text).collect();
        assert!(documents[0].content.is_err());
    }

    #[test]
    fn nesting_without_end_is_refused() {
        let deep = "[".repeat(100_000);
        assert!(yaml(&deep).next().unwrap().content.is_err());
        assert!(json(&deep).next().unwrap().content.is_err());
    }

    #[test]
    fn a_flood_of_values_is_refused() {
        let flood = format!("[{}0]", "0,".repeat(MAX_NODES + 1));
        let documents: Vec<_> = json(&flood).collect();
        assert_eq!(documents.len(), 1);
        assert!(documents[0].content.is_err());
    }

    #[test]
    fn json_texts_may_follow_each_other() {
        assert_eq!(contents(json("{\"a\": 1}\n{\"b\": 2}")), [Ok(json!({"a": 1})), Ok(json!({"b": 2}))]);
        let broken: Vec<_> = json("{\"a\": 1}\n{\"b\" 2}").collect();
        let expected = Unreadable { at: Some((2, 6)), reason: "expected `:`".into() };
        assert_eq!(broken[1].content.as_ref().unwrap_err(), &expected);
    }
}
