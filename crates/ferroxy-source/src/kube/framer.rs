//! Splits the bytes of a response into lines. Knows nothing of their contents.

/// No object comes near this: etcd accepts 1.5 MiB by default.
pub(super) const LONGEST_LINE: usize = 64 << 20;

/// A buffer that grew beyond this is freed when it is empty.
const KEEP: usize = 1 << 20;

/// Cuts a stream at its newlines. Lines may be spread over any number of chunks.
#[derive(Debug, Default)]
pub(super) struct Framer {
    buffer: Vec<u8>,
    /// Where the first unread line begins.
    start: usize,
    /// There is no newline between `start` and here.
    searched: usize,
}

/// A line that is not ended and already longer than [`LONGEST_LINE`].
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("a line is longer than {} MiB", LONGEST_LINE >> 20)]
pub(super) struct TooLong;

impl Framer {
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        if self.buffer.is_empty() && self.buffer.capacity() > KEEP {
            self.buffer = Vec::new();
        }
        self.buffer.extend_from_slice(chunk);
    }

    /// The next whole line, without its end. Empty lines are passed over. `None`: more bytes are needed.
    pub(super) fn next_line(&mut self) -> Result<Option<&[u8]>, TooLong> {
        while let Some(length) = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') {
            let (from, to) = (self.start, self.searched + length);
            self.start = to + 1;
            self.searched = self.start;
            if self.buffer[from..to].iter().any(|byte| !byte.is_ascii_whitespace()) {
                return Ok(Some(&self.buffer[from..to]));
            }
        }
        self.searched = self.buffer.len();
        if self.buffer.len() - self.start > LONGEST_LINE { Err(TooLong) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let mut framer = Framer::default();
        let mut lines = Vec::new();
        for chunk in chunks {
            framer.push(chunk);
            while let Some(line) = framer.next_line().unwrap() {
                lines.push(String::from_utf8(line.to_vec()).unwrap());
            }
        }
        lines
    }

    #[test]
    fn lines_come_out_however_the_chunks_are_cut() {
        let text = b"{\"a\":1}\n\n{\"b\":2}\r\n  \nrest\nunfinished";
        let expected = ["{\"a\":1}", "{\"b\":2}\r", "rest"];
        assert_eq!(lines(&[text]), expected);
        for size in 1..text.len() {
            assert_eq!(lines(&text.chunks(size).collect::<Vec<_>>()), expected, "chunks of {size}");
        }
    }

    #[test]
    fn a_line_is_there_before_the_next_chunk() {
        let mut framer = Framer::default();
        framer.push(b"one\ntwo\nthr");
        assert_eq!(framer.next_line(), Ok(Some(&b"one"[..])));
        framer.push(b"ee\n");
        assert_eq!(framer.next_line(), Ok(Some(&b"two"[..])));
        assert_eq!(framer.next_line(), Ok(Some(&b"three"[..])));
        assert_eq!(framer.next_line(), Ok(None));
    }

    #[test]
    fn an_endless_line_is_refused_and_a_long_one_is_not_kept() {
        let mut framer = Framer::default();
        framer.push(&vec![b'x'; LONGEST_LINE]);
        assert_eq!(framer.next_line(), Ok(None));
        framer.push(b"\nshort\n");
        assert_eq!(framer.next_line().unwrap().map(<[u8]>::len), Some(LONGEST_LINE));
        assert_eq!(framer.next_line(), Ok(Some(&b"short"[..])));
        framer.push(b"");
        assert!(framer.buffer.capacity() <= KEEP);
        framer.push(&vec![b'x'; LONGEST_LINE + 1]);
        assert_eq!(framer.next_line(), Err(TooLong));
    }
}
