//! Many independent requests in few datagrams, and the kernel's verdict on each. Not a transaction: one that is refused
//! does not keep the others.

use std::io::IoSlice;

use rustix::io::Errno;

use crate::codec::{Encoder, Message, Messages, flag};
use crate::error::Error;
use crate::socket::{Ack, Socket};

/// What one of many requests came to, when it was not consent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Which of those that were handed in.
    pub index: usize,
    pub error: Error,
}

/// Requests in one datagram: their acknowledgements fit any receive queue.
const MOST_IN_A_DATAGRAM: usize = 128;
/// Bytes in one datagram, unless a single message is longer: fits any send buffer.
const LONGEST_DATAGRAM: usize = 64 * 1024;

/// Requests of one kind of operation, ready to be sent.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    encoder: Encoder,
    /// Where each message ends.
    ends: Vec<usize>,
}

impl Requests {
    /// Flags besides REQUEST and ACK.
    pub(crate) fn push(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Encoder)) {
        // Requests that are numbered by hand stay below the socket's own numbers, and 0 is the kernel's.
        let sequence = u32::try_from(self.ends.len() + 1).unwrap_or(u32::MAX);
        let message = self.encoder.begin_message(kind, flags | flag::REQUEST | flag::ACK, sequence);
        fill(&mut self.encoder);
        self.encoder.end_message(message);
        self.ends.push(self.encoder.position());
    }

    /// The messages from number `from` on that go into one datagram: their bytes, and the number after the last.
    fn datagram(&self, from: usize) -> (&[u8], usize) {
        let start = from.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let fits = |&&end: &&usize| end - start <= LONGEST_DATAGRAM;
        let count = self.ends[from..].iter().take(MOST_IN_A_DATAGRAM).take_while(fits).count().max(1);
        (&self.encoder.bytes()[start..self.ends[from + count - 1]], from + count)
    }
}

impl Socket {
    /// Sends them all, and hands each acknowledgement on with the number of its request, consent and refusal alike. The
    /// message is there for protocols whose acknowledgements say more. After an error some may have been carried out.
    pub(crate) fn carry_out(
        &mut self,
        operation: &'static str,
        requests: &Requests,
        each: &mut dyn FnMut(usize, Ack, &Message<'_>),
    ) -> Result<(), Error> {
        let failed = |errno| match errno {
            Errno::NOBUFS => Error::lost(operation, ""),
            errno => Error::refused(operation, "", errno),
        };
        if requests.encoder.is_oversized() {
            return Err(failed(Errno::MSGSIZE));
        }
        self.discard_pending().map_err(failed)?;
        let mut next = 0;
        while next < requests.ends.len() {
            let (bytes, after) = requests.datagram(next);
            self.send(&[IoSlice::new(bytes)]).map_err(failed)?;
            let mut answered = 0;
            // The kernel has worked through all of it inside `send`: the answers are there.
            while let Some(bytes) = self.receive().map_err(failed)? {
                answered += hand_on(bytes, next..after, each)
                    .map_err(|found| Error::malformed(operation, "", found))?;
            }
            if answered < after - next {
                return Err(Error::unanswered(operation, ""));
            }
            next = after;
        }
        Ok(())
    }
}

/// Says how many acknowledgements of these requests there were.
fn hand_on(
    bytes: &[u8],
    requests: std::ops::Range<usize>,
    each: &mut dyn FnMut(usize, Ack, &Message<'_>),
) -> Result<usize, crate::codec::Malformed> {
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

    fn requests(count: usize, size: usize) -> Requests {
        let mut requests = Requests::default();
        (0..count).for_each(|_| requests.push(18, 0, |message| message.put_raw(&vec![0; size])));
        requests
    }

    /// The numbers at which datagrams begin.
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

    /// RTM_GETLINK of links that do not exist needs no privilege, and each is refused by itself.
    #[test]
    fn every_request_has_its_own_verdict() {
        let mut socket = Socket::open(crate::socket::Protocol::Route).unwrap();
        let mut requests = Requests::default();
        for index in 0..300 {
            requests.push(libc::RTM_GETLINK, 0, |message| {
                message.put_raw(&[0; 16]);
                message.put_str(
                    libc::IFLA_IFNAME,
                    &if index % 2 == 0 { "lo".to_owned() } else { format!("no{index}") },
                );
            });
        }
        let mut refused = Vec::new();
        let mut answered = 0;
        let verdict = socket.carry_out("find links", &requests, &mut |index, ack, _| {
            answered += 1;
            refused.extend(ack.errno.map(|errno| (index, errno)));
        });
        assert_eq!((verdict, answered), (Ok(()), 300));
        let expected: Vec<_> =
            (0..300).filter(|index| index % 2 == 1).map(|index| (index, Errno::NODEV)).collect();
        assert_eq!(refused, expected);
    }
}
