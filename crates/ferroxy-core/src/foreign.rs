//! Untrusted text from API objects: how much of it is stored, and how it is printed. Tenants write names, zones,
//! annotations and much more; none of it may cost much memory, end a line, or move the cursor of a terminal.

use std::borrow::Cow;

/// The most bytes of a text that are stored. The longest valid value is the name of an object, 253 characters.
pub const LONGEST: usize = 256;

/// The beginning of a text, as much of it as is stored.
pub fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST)]
}

/// The form in which text is stored: cut, and safe to print. So no output has to remember to escape it.
pub fn kept(text: &str) -> Box<str> {
    printable(cut(text)).into()
}

/// Like [`kept`], but consumes the text. Nearly always the text is unchanged and keeps its allocation.
pub fn kept_whole(text: String) -> Box<str> {
    if text.len() <= LONGEST && is_plain(&text) { text.into() } else { kept(&text) }
}

/// Escapes characters that do not print as themselves: control characters (also of C1), line breaks, and characters
/// that change the direction of the text. They are written as in Rust: `\u{1b}`. Escaping twice changes nothing.
pub fn printable(text: &str) -> Cow<'_, str> {
    match is_plain(text) || text.chars().all(prints_as_itself) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(text.chars().map(escaped).collect()),
    }
}

/// For a sentence: in quotes, printable, and not longer than a few words.
pub fn quoted(text: &str) -> String {
    const LONGEST: usize = 64;
    let shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    let more = if text.chars().nth(LONGEST).is_some() { "…" } else { "" };
    format!("`{shown}{more}`")
}

/// A fast check for the usual case: nearly all text is ASCII.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

fn prints_as_itself(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1
}

fn escaped(c: char) -> String {
    if prints_as_itself(c) { c.to_string() } else { c.escape_debug().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A colour, a new line, a C1 control, right-to-left, an invisible character, a bell.
    const HOSTILE: &str = "web\u{1b}[31m\r\n\u{9b}2J\u{202e}\u{2066}\u{200b}\u{7}";

    #[test]
    fn what_does_not_print_as_itself_is_escaped() {
        let safe = printable(HOSTILE);
        assert_eq!(safe, r"web\u{1b}[31m\r\n\u{9b}2J\u{202e}\u{2066}\u{200b}\u{7}");
        assert_eq!(printable(&safe), safe);
        assert!((' '..='~').all(prints_as_itself));
        for plain in ["web-1", "say \"hello\"", r"C:\config", "Zürich 東京"] {
            assert_eq!(printable(plain), plain);
        }
        assert!(quoted(HOSTILE).chars().all(prints_as_itself));
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(kept(&"a".repeat(200_000)).len(), LONGEST);
        assert_eq!(kept(&"é".repeat(200_000)).chars().count(), LONGEST / 2);
        assert_eq!(cut(&format!("{}é", "a".repeat(LONGEST - 1))).len(), LONGEST - 1);
        assert!(kept(&"\u{1b}".repeat(200_000)).len() < 10 * LONGEST);
        for text in [HOSTILE, "web-1", "", &"a".repeat(200_000)] {
            assert_eq!(kept_whole(text.to_owned()), kept(text));
        }
    }
}
