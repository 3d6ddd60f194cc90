//! One netlink socket, for any netlink protocol: requests, acknowledgements, dumps, notifications. Knows no protocol's messages.
//! Linux only.
//!
//! The kernel processes a request inside `send`, so the answer is in the receive queue when `send` returns; only a long
//! dump continues while it is read. Every wait here is therefore short, and bounded.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sockopt,
};

pub use crate::ack::Ack;
use crate::codec::{Encoder, MESSAGE_HEADER, Malformed, Message, Messages, align, flag};
use crate::error::{Errno, Error};
use crate::requests::{Requests, read_acks};
pub(crate) use crate::sockopt::ignore_originator;
use crate::sockopt::set_netlink_option;

/// A netlink family of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Route,
    Netfilter,
    Generic,
}

/// One request: what it is called in errors, and what goes into the message header.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// For errors: `add address`.
    pub operation: &'static str,
    /// For errors: which one.
    pub object: &'a str,
    /// The message type.
    pub kind: u16,
    /// Besides REQUEST, ACK and DUMP, which are added as needed.
    pub flags: u16,
}

/// The messages that came back, in order, without the closing acknowledgement.
#[derive(Debug, Default)]
pub struct Answer {
    bytes: Vec<u8>,
}

impl Answer {
    pub fn messages(&self) -> Messages<'_> {
        Messages::new(&self.bytes)
    }
}

/// Room for one datagram. The kernel splits dumps into datagrams of at most 32 KiB, or less if the reader's buffer is smaller.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// Forced send buffer; the kernel doubles it. One datagram may be nearly as large. The kernel does not allocate it in advance.
const SEND_LIMIT: usize = 128 * 1024 * 1024;
/// Receive queue: room for some ten thousand small notifications or errors.
const RECEIVE_LIMIT: usize = 8 * 1024 * 1024;
/// Never reached on a working kernel: answers are there when `send` returns.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a dump that was interrupted by changes is repeated.
const DUMP_ATTEMPTS: usize = 8;
/// Sequence numbers of requests start here. Those that are numbered by their callers (nf_tables batches) are below.
const FIRST_SEQUENCE: u32 = 1 << 31;

#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    port_id: u32,
    sequence: u32,
    buffer: Vec<u8>,
    encoder: Encoder,
}

impl Socket {
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        open(protocol).map_err(|errno| Error::refused("open netlink socket", "", errno))
    }

    /// The address the kernel gave this socket; notifications carry it as their originator.
    pub fn port_id(&self) -> u32 {
        self.port_id
    }

    /// The largest datagram that can be sent. Small (wmem_max) where SO_SNDBUFFORCE is not permitted, as in user namespaces.
    pub fn send_limit(&self) -> usize {
        // netlink_sendmsg reserves 32 bytes.
        sockopt::socket_send_buffer_size(&self.fd).unwrap_or(0).saturating_sub(32)
    }

    /// Starts receiving the notifications of a multicast group.
    pub fn join(&self, group: u32) -> Result<(), Error> {
        join(&self.fd, group)
    }

    /// See [`ignore_originator`].
    pub fn ignore_originator(&self, port_id: u32) -> Result<(), Errno> {
        ignore_originator(&self.fd, port_id)
    }

    /// Another handle to the same socket.
    pub fn duplicate(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)
    }

    /// Sends one request and waits for the acknowledgement.
    pub fn request(&mut self, request: Request<'_>, fill: impl FnOnce(&mut Encoder)) -> Result<(), Error> {
        self.query(request, fill).map(|_| ())
    }

    /// Sends one request and collects what comes back before the acknowledgement.
    pub fn query(&mut self, request: Request<'_>, fill: impl FnOnce(&mut Encoder)) -> Result<Answer, Error> {
        let sequence = self.prepare(request, flag::ACK, fill)?;
        self.exchange(request, sequence).map(|(answer, _)| answer)
    }

    /// Dumps. A dump that was interrupted by changes is repeated, so the answer is consistent.
    pub fn dump(&mut self, request: Request<'_>, fill: impl Fn(&mut Encoder)) -> Result<Answer, Error> {
        for _ in 0..DUMP_ATTEMPTS {
            let sequence = self.prepare(request, flag::DUMP, &fill)?;
            let (answer, interrupted) = self.exchange(request, sequence)?;
            if !interrupted {
                return Ok(answer);
            }
        }
        Err(Error::unstable(request.operation, request.object))
    }

    /// Dumps, and passes each message to `each` as it arrives, for dumps that are too large to keep in memory. True when changes
    /// interrupted the dump, which is incomplete then.
    pub fn stream(
        &mut self,
        request: Request<'_>,
        fill: impl FnOnce(&mut Encoder),
        each: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<bool, Error> {
        let sequence = self.prepare(request, flag::DUMP, fill)?;
        self.follow(request, sequence, each)
    }

    /// Sends bytes as one datagram.
    pub fn send(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        let kernel = SocketAddrNetlink::new(0, 0);
        let mut control = SendAncillaryBuffer::default();
        retry_on_intr(|| net::sendmsg_addr(&self.fd, &kernel, parts, &mut control, SendFlags::empty()))?;
        Ok(())
    }

    /// Waits until something can be received: false when time ran out first. `None` waits for ever.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, Errno> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], left.as_ref()) {
                Err(Errno::INTR) => {}
                other => return other.map(|ready| ready > 0),
            }
        }
    }

    /// The next datagram in the receive queue, or `None` if the queue is empty. ENOBUFS means that earlier messages were
    /// lost; EMSGSIZE that this datagram was larger than our buffer, which has grown for the next.
    pub fn receive(&mut self) -> Result<Option<&[u8]>, Errno> {
        loop {
            let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
            let received = retry_on_intr(|| net::recvfrom(&self.fd, &mut self.buffer[..], flags));
            let (kept, length, sender) = match received {
                Err(Errno::AGAIN) => return Ok(None),
                other => other?,
            };
            if length > kept {
                self.buffer.resize(length.next_power_of_two(), 0);
                return Err(Errno::MSGSIZE);
            }
            // Privileged processes can send to our port, too; only messages of the kernel, port 0, are read.
            let sender = sender.and_then(|address| SocketAddrNetlink::try_from(address).ok());
            if sender.is_some_and(|address| address.pid() == 0) {
                return Ok(self.buffer.get(..length));
            }
        }
    }

    /// Discards answers to an earlier request that ended with an error.
    pub fn discard_pending(&mut self) -> Result<(), Errno> {
        loop {
            match self.receive() {
                Ok(None) => return Ok(()),
                Ok(Some(_)) | Err(Errno::NOBUFS | Errno::MSGSIZE) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Sends all requests, and passes each acknowledgement to `each` with the position of its request, whether it was refused or
    /// not. The message is for protocols whose acknowledgements contain more. After an error some requests may have taken effect.
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
        if requests.is_oversized() {
            return Err(failed(Errno::MSGSIZE));
        }
        self.discard_pending().map_err(failed)?;
        let mut next = 0;
        while next < requests.len() {
            let (bytes, after) = requests.datagram(next);
            self.send(&[IoSlice::new(bytes)]).map_err(failed)?;
            let mut answered = 0;
            // The kernel has processed the datagram inside `send`: all answers are in the queue.
            while let Some(bytes) = self.receive().map_err(failed)? {
                answered += read_acks(bytes, next..after, each)
                    .map_err(|found| Error::malformed(operation, "", found))?;
            }
            if answered < after - next {
                return Err(Error::unanswered(operation, ""));
            }
            next = after;
        }
        Ok(())
    }

    /// Encodes and sends one message, and returns the sequence number its answer will have.
    fn prepare(
        &mut self,
        request: Request<'_>,
        flags: u16,
        fill: impl FnOnce(&mut Encoder),
    ) -> Result<u32, Error> {
        let failed = |errno| Error::refused(request.operation, request.object, errno);
        self.sequence = self.sequence.wrapping_add(1) | FIRST_SEQUENCE;
        self.encoder.clear();
        let message =
            self.encoder.begin_message(request.kind, request.flags | flags | flag::REQUEST, self.sequence);
        fill(&mut self.encoder);
        self.encoder.end_message(message);
        if self.encoder.is_oversized() {
            return Err(failed(Errno::MSGSIZE));
        }
        self.send(&[IoSlice::new(self.encoder.bytes())]).map_err(failed)?;
        Ok(self.sequence)
    }

    /// Collects the answer to `sequence` up to its end; true when the kernel marks the dump as interrupted.
    fn exchange(&mut self, request: Request<'_>, sequence: u32) -> Result<(Answer, bool), Error> {
        let mut answer = Answer::default();
        let interrupted = self.follow(request, sequence, &mut |message| {
            keep(&mut answer.bytes, message);
            Ok(())
        })?;
        Ok((answer, interrupted))
    }

    /// Passes on each message of the answer to `sequence`; true when the kernel marks the dump as interrupted.
    fn follow(
        &mut self,
        request: Request<'_>,
        sequence: u32,
        each: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<bool, Error> {
        let malformed = |found| Error::malformed(request.operation, request.object, found);
        let mut interrupted = false;
        let port_id = self.port_id;
        loop {
            let bytes = self.receive_answer(request)?;
            for message in Messages::new(bytes) {
                let message = message.map_err(malformed)?;
                if message.sequence != sequence || message.port_id != port_id {
                    continue; // A notification, or left over from an exchange that failed.
                }
                interrupted |= message.flags & flag::DUMP_INTR != 0;
                match Ack::from_message(&message) {
                    None => each(&message).map_err(malformed)?,
                    Some(ack) => {
                        return conclude(ack.map_err(malformed)?, request).map(|()| interrupted);
                    }
                }
            }
        }
    }

    fn receive_answer(&mut self, request: Request<'_>) -> Result<&[u8], Error> {
        let failed = |errno| match errno {
            Errno::NOBUFS => Error::lost(request.operation, request.object),
            errno => Error::refused(request.operation, request.object, errno),
        };
        loop {
            // The answer is usually in the queue already. Waiting for it would be another system call.
            if let Some(length) = self.receive().map_err(failed)?.map(<[u8]>::len) {
                return Ok(&self.buffer[..length]);
            }
            if !self.wait(Some(PATIENCE)).map_err(failed)? {
                return Err(Error::unanswered(request.operation, request.object));
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn conclude(ack: Ack, request: Request<'_>) -> Result<(), Error> {
    match ack.errno {
        None => Ok(()),
        Some(errno) => Err(Error::refused(request.operation, request.object, errno).explained(ack.words)),
    }
}

fn keep(bytes: &mut Vec<u8>, message: &Message<'_>) {
    let length = MESSAGE_HEADER + message.payload.len();
    bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    bytes.extend_from_slice(&message.kind.to_ne_bytes());
    bytes.extend_from_slice(&message.flags.to_ne_bytes());
    bytes.extend_from_slice(&message.sequence.to_ne_bytes());
    bytes.extend_from_slice(&message.port_id.to_ne_bytes());
    bytes.extend_from_slice(message.payload);
    bytes.resize(align(bytes.len()), 0);
}

fn open(protocol: Protocol) -> Result<Socket, Errno> {
    let family = match protocol {
        Protocol::Route => None, // NETLINK_ROUTE is 0.
        Protocol::Netfilter => Some(netlink::NETFILTER),
        Protocol::Generic => Some(netlink::GENERIC),
    };
    let fd = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, family)?;
    net::bind(&fd, &SocketAddrNetlink::new(0, 0))?;
    let address = SocketAddrNetlink::try_from(net::getsockname(&fd)?)?;

    // Refusals contain a message, and the offset of the attribute that is wrong.
    set_netlink_option(&fd, libc::NETLINK_EXT_ACK, 1)?;
    // Refusals do not contain the refused message: one of megabytes would overflow the queue.
    set_netlink_option(&fd, libc::NETLINK_CAP_ACK, 1)?;
    if protocol == Protocol::Route {
        // The kernel filters dumps by the fields of the request's header. Kernels before 4.20 lack the option and ignore these fields.
        match set_netlink_option(&fd, libc::NETLINK_GET_STRICT_CHK, 1) {
            Ok(()) | Err(Errno::NOPROTOOPT) => {}
            Err(errno) => return Err(errno),
        }
    }
    if sockopt::set_socket_send_buffer_size_force(&fd, SEND_LIMIT).is_err() {
        sockopt::set_socket_send_buffer_size(&fd, SEND_LIMIT)?;
    }
    if sockopt::set_socket_recv_buffer_size_force(&fd, RECEIVE_LIMIT).is_err() {
        sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_LIMIT)?;
    }
    Ok(Socket {
        fd,
        port_id: address.pid(),
        sequence: FIRST_SEQUENCE,
        buffer: vec![0; RECEIVE_BUFFER],
        encoder: Encoder::new(),
    })
}

/// Starts receiving the notifications of a multicast group.
pub(crate) fn join(fd: &OwnedFd, group: u32) -> Result<(), Error> {
    set_netlink_option(fd, libc::NETLINK_ADD_MEMBERSHIP, group)
        .map_err(|errno| Error::refused("join netlink group", group.to_string(), errno))
}

/// Stops receiving the notifications of a multicast group. Notifications in the queue stay there.
pub(crate) fn leave(fd: &OwnedFd, group: u32) -> Result<(), Error> {
    set_netlink_option(fd, libc::NETLINK_DROP_MEMBERSHIP, group)
        .map_err(|errno| Error::refused("leave netlink group", group.to_string(), errno))
}
