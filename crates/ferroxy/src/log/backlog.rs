//! Lines that wait to be written: a bounded queue. Lines beyond the bound are dropped and counted. No I/O, no clock.

use std::collections::VecDeque;

/// How many bytes of lines may wait. Most lines have a few hundred bytes.
const MOST_BYTES: usize = 1 << 20;

/// The memory of a line besides its text.
const OVERHEAD: usize = 64;

/// The most bytes of one write.
const BATCH: usize = 64 << 10;

/// Where a line goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    Stderr,
    Stdout,
}

impl To {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            To::Stderr => "stderr",
            To::Stdout => "stdout",
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Backlog {
    pieces: VecDeque<(To, Box<[u8]>)>,
    bytes: usize,
    /// `infoBufferSize`: lines for standard output may wait until they have this many bytes.
    hold: usize,
    /// The waiting lines must be written now.
    pub(super) is_urgent: bool,
    /// The number of lines dropped since the last report, and the stream of the last one.
    dropped: Option<(u64, To)>,
}

impl Backlog {
    /// Lines for standard output may wait up to `hold` bytes.
    pub(super) fn holding(hold: usize) -> Backlog {
        Backlog { hold, ..Backlog::default() }
    }

    /// Returns whether there was room. Pieces of a long line are at most `piece` bytes each.
    pub(super) fn push(&mut self, to: To, line: &[u8], piece: usize) -> bool {
        let most = MOST_BYTES.max(self.hold.saturating_mul(2));
        let cost = line.len() + OVERHEAD;
        // After the first dropped line no other line is taken until the drop is reported: the report is then written where the
        // lines are missing.
        if self.dropped.is_some() || self.bytes + cost > most {
            let (so_far, _) = self.dropped.unwrap_or((0, to));
            self.dropped = Some((so_far + 1, to));
            self.is_urgent = true;
            return false;
        }
        for piece in line.chunks(piece.max(1)) {
            self.bytes += piece.len() + OVERHEAD;
            self.pieces.push_back((to, piece.into()));
        }
        // An error may be the last line of the process: the lines before it are written first.
        self.is_urgent |= to == To::Stderr || self.bytes >= self.hold;
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn first(&self) -> Option<(To, &[u8])> {
        self.pieces.front().map(|(to, piece)| (*to, &**piece))
    }

    pub(super) fn remove_first(&mut self) -> Option<(To, Box<[u8]>)> {
        let first = self.pieces.pop_front();
        self.bytes -= first.as_ref().map_or(0, |(_, piece)| piece.len() + OVERHEAD);
        if self.pieces.is_empty() {
            self.is_urgent = false;
            self.pieces.shrink_to(1024);
        }
        first
    }

    /// The next pieces for one stream, at most as many as one write takes.
    pub(super) fn take(&mut self) -> Option<(To, Vec<u8>)> {
        let (to, first) = self.remove_first()?;
        let mut batch = first.into_vec();
        while self.first().is_some_and(|(next, piece)| next == to && batch.len() + piece.len() <= BATCH) {
            batch.extend(self.remove_first().into_iter().flat_map(|(_, piece)| piece));
        }
        Some((to, batch))
    }

    /// How many lines were dropped since the last call, and the stream that did not take them.
    pub(super) fn take_dropped(&mut self) -> Option<(u64, To)> {
        self.dropped.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 4096;

    fn all(backlog: &mut Backlog) -> Vec<(To, Vec<u8>)> {
        std::iter::from_fn(|| backlog.take()).collect()
    }

    #[test]
    fn lines_come_out_in_order_together_and_by_stream() {
        let mut backlog = Backlog::default();
        for (to, line) in [(To::Stdout, "a\n"), (To::Stdout, "b\n"), (To::Stderr, "c\n"), (To::Stdout, "d\n")]
        {
            assert!(backlog.push(to, line.as_bytes(), PIECE));
        }
        let expected = [(To::Stdout, &b"a\nb\n"[..]), (To::Stderr, b"c\n"), (To::Stdout, b"d\n")]
            .map(|(to, text)| (to, text.to_vec()));
        assert_eq!(all(&mut backlog), expected);
        assert!(backlog.is_empty() && backlog.bytes == 0 && !backlog.is_urgent);
    }

    #[test]
    fn beyond_the_bound_lines_are_dropped_until_that_is_reported() {
        let mut backlog = Backlog::default();
        let line = [b'x'; 10_000];
        let taken = (0..1000).filter(|_| backlog.push(To::Stderr, &line, PIECE)).count();
        assert!(taken >= MOST_BYTES / 11_000 && backlog.bytes <= MOST_BYTES, "{taken}");
        assert_eq!(all(&mut backlog).iter().map(|(_, text)| text.len()).sum::<usize>(), taken * line.len());
        assert!(!backlog.push(To::Stderr, b"there is room, but the gap is not reported", PIECE));
        assert_eq!(backlog.take_dropped(), Some((1000 - taken as u64 + 1, To::Stderr)));
        assert_eq!(backlog.take_dropped(), None);
        assert!(backlog.push(To::Stderr, b"again", PIECE));
    }

    #[test]
    fn a_long_line_comes_in_pieces_that_make_it_whole() {
        let mut backlog = Backlog::default();
        let line: Vec<u8> = (0..200_000_u32).map(|number| number as u8).collect();
        assert!(backlog.push(To::Stderr, &line, PIECE));
        assert!(backlog.first().is_some_and(|(_, piece)| piece.len() == PIECE));
        let batches = all(&mut backlog);
        assert!(batches.len() > 1 && batches.iter().all(|(_, batch)| batch.len() <= BATCH));
        assert_eq!(batches.into_iter().flat_map(|(_, batch)| batch).collect::<Vec<u8>>(), line);
    }

    #[test]
    fn what_may_wait_waits_until_there_is_enough_or_an_error() {
        let mut backlog = Backlog::holding(1000);
        backlog.push(To::Stdout, b"a line", PIECE);
        assert!(!backlog.is_urgent);
        backlog.push(To::Stderr, b"an error", PIECE);
        assert!(backlog.is_urgent);
        all(&mut backlog);
        let lines = (0..100).take_while(|_| !backlog.is_urgent && backlog.push(To::Stdout, b"a line", PIECE));
        assert_eq!(lines.count(), 1000_usize.div_ceil(6 + OVERHEAD));
    }
}
