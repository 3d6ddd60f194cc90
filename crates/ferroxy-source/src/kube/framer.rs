//! Splits the bytes of a response into the events of a watch: lines of JSON, or frames of protobuf behind their length.
//! It does not read their contents.

use super::encoding::Encoding;

/// No object comes near this: etcd accepts 1.5 MiB by default.
pub(super) const LONGEST_LINE: usize = 64 << 20;

/// A buffer that grew beyond this is freed when it is empty.
const KEEP: usize = 1 << 20;

/// A frame begins with its length in four bytes, the largest first.
const LENGTH: usize = 4;

/// Cuts a stream into events, which may be spread over any number of chunks. The buffer holds only bytes that have
/// arrived: an announced length reserves nothing.
#[derive(Debug, Default)]
pub(super) struct Framer {
    encoding: Encoding,
    buffer: Vec<u8>,
    /// Where the first unread event begins.
    start: usize,
    /// There is no newline between `start` and here.
    searched: usize,
}

/// A stream that cannot be cut into events.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum Unframed {
    /// Not ended and already longer than [`LONGEST_LINE`], or announced to be.
    #[error("a {} is longer than {} MiB", .0.unit(), LONGEST_LINE >> 20)]
    TooLong(Encoding),
    /// Detected at once: after a wrong length, the following events would be waited for as part of this one.
    #[error("a frame does not begin like a watch event")]
    NotAnEvent,
}

impl Framer {
    pub(super) fn new(encoding: Encoding) -> Framer {
        Framer { encoding, ..Framer::default() }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        if self.buffer.is_empty() && self.buffer.capacity() > KEEP {
            self.buffer = Vec::new();
        }
        self.buffer.extend_from_slice(chunk);
    }

    /// The next whole event, without its newline or length. `None`: more bytes are needed.
    pub(super) fn next_event(&mut self) -> Result<Option<&[u8]>, Unframed> {
        match self.encoding {
            Encoding::Json => self.next_line(),
            Encoding::Protobuf => self.next_frame(),
        }
    }

    /// An event has begun to arrive and is not complete.
    pub(super) fn is_amid_event(&self) -> bool {
        self.start < self.buffer.len()
    }

    /// Empty lines are passed over.
    fn next_line(&mut self) -> Result<Option<&[u8]>, Unframed> {
        while let Some(length) = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') {
            let (from, to) = (self.start, self.searched + length);
            self.start = to + 1;
            self.searched = self.start;
            if self.buffer[from..to].iter().any(|byte| !byte.is_ascii_whitespace()) {
                return Ok(Some(&self.buffer[from..to]));
            }
        }
        self.searched = self.buffer.len();
        if self.buffer.len() - self.start > LONGEST_LINE {
            return Err(Unframed::TooLong(Encoding::Json));
        }
        Ok(None)
    }

    fn next_frame(&mut self) -> Result<Option<&[u8]>, Unframed> {
        let Some((length, rest)) = self.buffer[self.start..].split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        // A length that does not fit into usize is too long, too.
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > LONGEST_LINE {
            return Err(Unframed::TooLong(Encoding::Protobuf));
        }
        // The tag of the type or of the object.
        if length == 0 || rest.first().is_some_and(|tag| !matches!(tag, 0x0a | 0x12)) {
            return Err(Unframed::NotAnEvent);
        }
        if rest.len() < length {
            return Ok(None);
        }
        let from = self.start + LENGTH;
        self.start = from + length;
        self.searched = self.start;
        Ok(Some(&self.buffer[from..from + length]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(encoding: Encoding, chunks: &[&[u8]]) -> Vec<String> {
        let mut framer = Framer::new(encoding);
        let mut events = Vec::new();
        for chunk in chunks {
            framer.push(chunk);
            while let Some(event) = framer.next_event().unwrap() {
                events.push(String::from_utf8(event.to_vec()).unwrap());
            }
        }
        events
    }

    #[test]
    fn lines_come_out_however_the_chunks_are_cut() {
        let text = b"{\"a\":1}\n\n{\"b\":2}\r\n  \nrest\nunfinished";
        let expected = ["{\"a\":1}", "{\"b\":2}\r", "rest"];
        assert_eq!(events(Encoding::Json, &[text]), expected);
        for size in 1..text.len() {
            let chunks: Vec<&[u8]> = text.chunks(size).collect();
            assert_eq!(events(Encoding::Json, &chunks), expected, "chunks of {size}");
        }
    }

    #[test]
    fn frames_come_out_however_the_chunks_are_cut() {
        let bytes = b"\0\0\0\x02\x0a\n\0\0\0\x01\x12\0\0\0\x05\x0abcde\0\0\0\x09\x0aunfin";
        let expected = ["\n\n", "\x12", "\nbcde"];
        assert_eq!(events(Encoding::Protobuf, &[bytes]), expected);
        for size in 1..bytes.len() {
            let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
            assert_eq!(events(Encoding::Protobuf, &chunks), expected, "chunks of {size}");
        }
    }

    #[test]
    fn an_event_is_there_before_the_next_chunk() {
        let mut framer = Framer::new(Encoding::Json);
        framer.push(b"one\ntwo\nthr");
        assert_eq!(framer.next_event(), Ok(Some(&b"one"[..])));
        framer.push(b"ee\n");
        assert_eq!(framer.next_event(), Ok(Some(&b"two"[..])));
        assert_eq!(framer.next_event(), Ok(Some(&b"three"[..])));
        assert_eq!(framer.next_event(), Ok(None));
        assert!(!framer.is_amid_event());
        let mut framer = Framer::new(Encoding::Protobuf);
        framer.push(b"\0\0\0\x01\x0a\0\0");
        assert_eq!(framer.next_event(), Ok(Some(&b"\n"[..])));
        assert_eq!(framer.next_event(), Ok(None));
        assert!(framer.is_amid_event());
    }

    #[test]
    fn an_endless_line_is_refused_and_a_long_one_is_not_kept() {
        let mut framer = Framer::new(Encoding::Json);
        framer.push(&vec![b'x'; LONGEST_LINE]);
        assert_eq!(framer.next_event(), Ok(None));
        framer.push(b"\nshort\n");
        assert_eq!(framer.next_event().unwrap().map(<[u8]>::len), Some(LONGEST_LINE));
        assert_eq!(framer.next_event(), Ok(Some(&b"short"[..])));
        framer.push(b"");
        assert!(framer.buffer.capacity() <= KEEP);
        framer.push(&vec![b'x'; LONGEST_LINE + 1]);
        assert_eq!(framer.next_event(), Err(Unframed::TooLong(Encoding::Json)));
    }

    #[test]
    fn a_frame_reserves_nothing_and_is_refused_as_soon_as_it_is_wrong() {
        let first = |bytes: &[u8]| {
            let mut framer = Framer::new(Encoding::Protobuf);
            framer.push(bytes);
            let event = framer.next_event().map(|it| it.map(<[u8]>::len));
            (event, framer.buffer.capacity())
        };
        let longest = u32::try_from(LONGEST_LINE).unwrap().to_be_bytes();
        let (event, capacity) = first(&[&longest[..], b"\x0a"].concat());
        assert_eq!(event, Ok(None));
        assert!(capacity < 1024, "{capacity} bytes for a frame of which five have arrived");
        let longer = u32::try_from(LONGEST_LINE + 1).unwrap().to_be_bytes();
        for absurd in [longer, [0xff; 4]] {
            assert_eq!(first(&absurd).0, Err(Unframed::TooLong(Encoding::Protobuf)));
        }
        for wrong in [&b"\0\0\0\0"[..], b"\0\0\x10\0{", b"\0\xff<html>"] {
            assert_eq!(first(wrong).0, Err(Unframed::NotAnEvent), "{wrong:?}");
        }
    }
}
