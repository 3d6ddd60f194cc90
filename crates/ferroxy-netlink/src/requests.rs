//! Many independent requests in few datagrams, and the kernel's verdict on each. Not a transaction: a refused request does
//! not affect the others. `socket` sends them.

use std::ops::Range;

use crate::ack::Ack;
use crate::codec::{Encoder, Malformed, Message, Messages, flag};
use crate::error::Error;

/// One of many requests that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Position among the requests.
    pub index: usize,
    pub error: Error,
}

/// The maximum number of requests in one datagram, so that their acknowledgements fit any receive queue.
const MOST_IN_A_DATAGRAM: usize = 128;
/// The maximum size of a datagram, unless a single message is longer: fits any send buffer.
const LONGEST_DATAGRAM: usize = 64 * 1024;

/// Requests of one kind of operation, ready to be sent.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    encoder: Encoder,
    /// Where each message ends.
    ends: Vec<usize>,
}

impl Requests {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn is_oversized(&self) -> bool {
        self.encoder.is_oversized()
    }

    /// Flags besides REQUEST and ACK.
    pub(crate) fn push(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Encoder)) {
        // These sequence numbers are below the socket's own numbers. The kernel uses 0.
        let sequence = u32::try_from(self.ends.len() + 1).unwrap_or(u32::MAX);
        let message = self.encoder.begin_message(kind, flags | flag::REQUEST | flag::ACK, sequence);
        fill(&mut self.encoder);
        self.encoder.end_message(message);
        self.ends.push(self.encoder.position());
    }

    /// The messages from number `from` on that go into one datagram: their bytes, and the number after the last.
    pub(crate) fn datagram(&self, from: usize) -> (&[u8], usize) {
        let start = from.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let fits = |&&end: &&usize| end - start <= LONGEST_DATAGRAM;
        let count = self.ends[from..].iter().take(MOST_IN_A_DATAGRAM).take_while(fits).count().max(1);
        (&self.encoder.bytes()[start..self.ends[from + count - 1]], from + count)
    }
}

/// Passes the acknowledgements of these requests to `each`, and returns their number.
pub(crate) fn read_acks(
    bytes: &[u8],
    requests: Range<usize>,
    each: &mut dyn FnMut(usize, Ack, &Message<'_>),
) -> Result<usize, Malformed> {
    let mut count = 0;
    for message in Messages::new(bytes) {
        let message = message?;
        let Some(ack) = Ack::from_message(&message) else { continue };
        let ack = ack?;
        let Some(index) = (ack.sequence as usize).checked_sub(1).filter(|index| requests.contains(index))
        else {
            continue;
        };
        count += 1;
        each(index, ack, &message);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{MESSAGE_HEADER, kind};
    use crate::error::Errno;

    fn requests(count: usize, size: usize) -> Requests {
        let mut requests = Requests::default();
        (0..count).for_each(|_| requests.push(18, 0, |message| message.put_raw(&vec![0; size])));
        requests
    }

    /// The indexes of the requests at which datagrams begin.
    fn cuts(requests: &Requests) -> Vec<usize> {
        let mut cuts = vec![0];
        while let Some(&last) = cuts.last()
            && last < requests.ends.len()
        {
            cuts.push(requests.datagram(last).1);
        }
        cuts
    }

    #[test]
    fn a_datagram_is_bounded_in_number_and_in_bytes() {
        assert_eq!(cuts(&requests(300, 16)), [0, 128, 256, 300]);
        assert_eq!(cuts(&requests(3, 40_000)), [0, 1, 2, 3]);
        assert_eq!(cuts(&requests(2, 100_000)), [0, 1, 2], "one that is too long goes alone");
        let three = requests(3, 16);
        assert_eq!(three.datagram(0).0, three.encoder.bytes());
    }

    fn acknowledgement(encoder: &mut Encoder, sequence: u32, error: i32) {
        let message = encoder.begin_message(kind::ERROR, flag::CAPPED, sequence);
        encoder.put_raw(&error.to_ne_bytes());
        encoder.put_raw(&[0; MESSAGE_HEADER]);
        encoder.end_message(message);
    }

    #[test]
    fn each_acknowledgement_belongs_to_its_request() {
        let mut encoder = Encoder::new();
        // Requests are numbered from 1. The first and the last acknowledgement are outside the range.
        for (sequence, error) in [(3, 0), (4, 0), (5, -17), (6, 0), (7, -2)] {
            acknowledgement(&mut encoder, sequence, error);
        }
        let mut found = Vec::new();
        let count =
            read_acks(encoder.bytes(), 3..6, &mut |index, ack, _| found.push((index, ack.errno))).unwrap();
        assert_eq!((count, found), (3, vec![(3, None), (4, Some(Errno::EXIST)), (5, None)]));
    }
}
