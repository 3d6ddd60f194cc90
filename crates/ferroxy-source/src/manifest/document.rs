//! Text to documents, and documents to values. Knows YAML and JSON, but not Kubernetes.

use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, IgnoredAny};
use serde_saphyr::{DefaultMessageFormatter, Error, MessageFormatter, Options};

use super::{LARGE_BYTES, MAX_DEPTH, MAX_NODES};

/// One document of a text, not yet parsed.
#[derive(Debug)]
pub(super) struct Document<'a> {
    /// Counted from 1.
    pub(super) number: usize,
    format: Format,
    chunk: Chunk<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Format {
    Yaml,
    Json,
}

#[derive(Debug, PartialEq)]
pub(super) struct Unreadable {
    /// Line and column in the whole text, counted from 1, where the parser could tell.
    pub(super) at: Option<(u64, u64)>,
    pub(super) reason: String,
}

/// The documents of a YAML stream: each stands by itself, so that a broken one does not hide the others.
pub(super) fn yaml(text: &str) -> impl Iterator<Item = Document<'_>> {
    let numbered = (1..).zip(chunks(text));
    numbered.map(|(number, chunk)| Document { number, format: Format::Yaml, chunk })
}

/// The documents of a JSON text; there may be several, one after the other. The end of a document is found only by
/// parsing it: text after a broken document is lost. Its error, with the number of the broken document, comes last.
pub(super) fn json(text: &str) -> impl Iterator<Item = Result<Document<'_>, (usize, Unreadable)>> {
    // Every value but the first of a container has a comma before it: this is an upper bound on the number of values.
    let nodes = text.bytes().filter(|byte| b",[{".contains(byte)).count();
    let refused = (nodes > MAX_NODES)
        .then(|| Unreadable { at: None, reason: format!("holds more than {MAX_NODES} values") });
    let allowed = if refused.is_some() { "" } else { text };
    let refused = refused.map(|unreadable| Err((1, unreadable))).into_iter();
    refused.chain((1..).zip(json_chunks(allowed)).map(|(number, chunk)| match chunk {
        Ok(chunk) => Ok(Document { number, format: Format::Json, chunk }),
        Err(unreadable) => Err((number, unreadable)),
    }))
}

impl<'a> Document<'a> {
    /// Too large to be held as one tree of values, which takes many times the size of its text.
    pub(super) fn is_large(&self) -> bool {
        self.chunk.text.len() > LARGE_BYTES
    }

    pub(super) fn parse<T: Deserialize<'a>>(&self) -> Result<T, Unreadable> {
        self.parse_with(PhantomData)
    }

    pub(super) fn parse_with<S: DeserializeSeed<'a>>(&self, seed: S) -> Result<S::Value, Unreadable> {
        match self.format {
            Format::Yaml => {
                let parse = |from: serde_saphyr::Deserializer<'a, '_>| seed.deserialize(from);
                serde_saphyr::with_deserializer_from_str_with_options(self.chunk.text, yaml_options(), parse)
                    .map_err(|error| self.chunk.unreadable_yaml(&error))
            }
            Format::Json => seed
                .deserialize(&mut serde_json::Deserializer::from_str(self.chunk.text))
                .map_err(|error| self.chunk.unreadable_json(&error)),
        }
    }
}

fn yaml_options() -> Options {
    serde_saphyr::options! {
        with_snippet: false,
        emit_comments: false,
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
        },
    }
}

fn json_chunks(text: &str) -> impl Iterator<Item = Result<Chunk<'_>, Unreadable>> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let mut before = Chunk { lines_before: 0, columns_before: 0, text: "" };
    let mut start = 0;
    std::iter::from_fn(move || {
        let whole = Chunk { lines_before: 0, columns_before: 0, text };
        let value = values.next()?;
        Some(value.map_err(|error| whole.unreadable_json(&error)).map(|IgnoredAny| {
            let end = values.byte_offset();
            before = before.next(text.get(start..end).unwrap_or(""));
            start = end;
            before
        }))
    })
}

/// A stretch of text that holds one document.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Chunk<'a> {
    /// How many lines of the text come before it.
    lines_before: usize,
    /// How much of its first line comes before it.
    columns_before: usize,
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
        .map(|((start, lines_before), end)| Chunk {
            lines_before,
            columns_before: 0,
            text: text.get(start..end).unwrap_or(""),
        })
        .filter(|chunk| chunk.has_content())
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

impl<'a> Chunk<'a> {
    /// The chunk with this text, which follows this one.
    fn next(&self, text: &'a str) -> Chunk<'a> {
        let (lines, last_line) = match self.text.rsplit_once('\n') {
            Some((lines, last_line)) => (lines.matches('\n').count() + 1, last_line.len()),
            None => (0, self.columns_before + self.text.len()),
        };
        Chunk { lines_before: self.lines_before + lines, columns_before: last_line, text }
    }

    fn has_content(&self) -> bool {
        self.text.lines().any(|line| {
            let line = line.strip_prefix("---").unwrap_or(line).trim();
            !(line.is_empty() || line == "..." || line.starts_with('#') || line.starts_with('%'))
        })
    }

    fn unreadable_yaml(&self, error: &Error) -> Unreadable {
        let at = error.location().map(|it| self.place(it.line(), it.column()));
        let reason = DefaultMessageFormatter.format_message(error.without_snippet());
        Unreadable { at, reason: reason.replace(char::is_control, " ") }
    }

    fn unreadable_json(&self, error: &serde_json::Error) -> Unreadable {
        let text = error.to_string();
        let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _place)| reason);
        let at = self.place(error.line() as u64, error.column() as u64);
        Unreadable { at: Some(at), reason: reason.to_owned() }
    }

    /// A place in this chunk as a place in the whole text.
    fn place(&self, line: u64, column: u64) -> (u64, u64) {
        let columns_before = if line == 1 { self.columns_before as u64 } else { 0 };
        (line + self.lines_before as u64, column + columns_before)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn contents(text: &str) -> Vec<Result<Value, Unreadable>> {
        yaml(text).map(|document| document.parse()).collect()
    }

    fn json_contents(text: &str) -> Vec<Result<Value, Unreadable>> {
        json(text).map(|document| document.map_err(|(_, error)| error)?.parse()).collect()
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
        assert_eq!(contents(text), expected);
    }

    #[test]
    fn line_endings_and_byte_order_marks_of_other_systems() {
        let text = "\u{feff}a: 1\r\n---\r\nb: 2\r\n";
        assert_eq!(contents(text), [Ok(json!({"a": 1})), Ok(json!({"b": 2}))]);
        assert_eq!(contents("----\n"), [Ok(json!("----"))]);
        assert_eq!(contents(""), []);
        assert_eq!(contents("---\n---\n"), []);
    }

    #[test]
    fn a_broken_document_does_not_hide_its_neighbours() {
        let text = "a: 1\n---\nb: [1, 2\nc: }\n---\nd: 4\n";
        let documents = contents(text);
        assert_eq!(documents.len(), 3);
        assert!(documents[0].is_ok() && documents[2].is_ok());
        let error = documents[1].as_ref().unwrap_err();
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
        assert!(contents(&text)[0].is_err());
        assert!(yaml(&text).next().unwrap().parse::<IgnoredAny>().is_err());
    }

    #[test]
    fn nesting_without_end_is_refused() {
        let deep = "[".repeat(100_000);
        assert!(contents(&deep)[0].is_err());
        assert!(json_contents(&deep)[0].is_err());
        let closed = deep.clone() + &"]".repeat(100_000);
        assert!(json_contents(&closed)[0].is_err());
    }

    #[test]
    fn a_flood_of_values_is_refused() {
        let flood = format!("[{}0]", "0,".repeat(MAX_NODES + 1));
        let documents = json_contents(&flood);
        assert_eq!(documents.len(), 1);
        assert!(documents[0].is_err());
    }

    #[test]
    fn json_texts_may_follow_each_other() {
        assert_eq!(json_contents("{\"a\": 1}\n{\"b\": 2}"), [Ok(json!({"a": 1})), Ok(json!({"b": 2}))]);
        let expected = Unreadable { at: Some((2, 6)), reason: "expected `:`".into() };
        assert_eq!(json_contents("{\"a\": 1}\n{\"b\" 2}"), [Ok(json!({"a": 1})), Err(expected)]);
    }

    #[test]
    fn places_in_json_are_places_in_the_whole_text() {
        // While the document is skipped, this number is no error: it is found when the second document is parsed by
        // itself.
        for (text, at) in [("{} [1e999]", (1, 9)), ("{}\n{}\n[1e999]", (3, 6)), ("{} {\n} [\n1e999]", (3, 5))]
        {
            let error = json_contents(text).pop().unwrap().unwrap_err();
            assert_eq!(error, Unreadable { at: Some(at), reason: "number out of range".into() }, "{text}");
        }
    }
}
