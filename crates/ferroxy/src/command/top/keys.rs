//! Keys, from the bytes that a terminal in raw mode sends.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C
    Interrupt,
}

/// Skips bytes that stand for no key.
pub fn keys(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((&first, rest)) = bytes.split_first() {
        let (key, length) = match first {
            0x1b => sequence(rest),
            b'\r' | b'\n' => (Some(Key::Enter), 0),
            0x7f | 0x08 => (Some(Key::Backspace), 0),
            0x03 => (Some(Key::Interrupt), 0),
            b' '..=b'~' => (Some(Key::Char(first.into())), 0),
            _ => (None, 0),
        };
        keys.extend(key);
        bytes = rest.get(length..).unwrap_or_default();
    }
    keys
}

/// The key of an escape sequence, and the length of the sequence after the escape byte.
fn sequence(rest: &[u8]) -> (Option<Key>, usize) {
    let body = match rest {
        [b'[' | b'O', body @ ..] => body,
        _ => return (Some(Key::Escape), 0),
    };
    let is_end = |byte: &u8| (0x40..=0x7e).contains(byte);
    let Some(end) = body.iter().position(is_end) else { return (None, rest.len()) };
    let key = match (&body[..end], body[end]) {
        (b"", b'A') => Some(Key::Up),
        (b"", b'B') => Some(Key::Down),
        (b"", b'H') | (b"1" | b"7", b'~') => Some(Key::Home),
        (b"", b'F') | (b"4" | b"8", b'~') => Some(Key::End),
        (b"5", b'~') => Some(Key::PageUp),
        (b"6", b'~') => Some(Key::PageDown),
        _ => None,
    };
    (key, end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_keys() {
        let all = keys(b"q/\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~\r\x7f\x03\x1b[1;5Ax\xc3\xbc\x1b");
        let expected = [
            Key::Char('q'),
            Key::Char('/'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Enter,
            Key::Backspace,
            Key::Interrupt,
            Key::Char('x'),
            Key::Escape,
        ];
        assert_eq!(all, expected);
        assert_eq!(keys(b"\x1b[1"), [], "cut short");
    }
}
