//! One netlink socket, for any netlink protocol: requests, acknowledgements, listings, notifications. Knows no protocol's messages.
//!
//! The kernel works through a request inside `send`, so its answer waits in our queue when `send` returns; only a long
//! listing is continued while we read. All waiting here is therefore short, and bounded.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sockopt,
};

use crate::codec::{Attributes, Encoder, MESSAGE_HEADER, Malformed, Message, Messages, align, flag, kind};
use crate::error::Error;

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

/// An acknowledgement: the kernel's verdict on one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    pub sequence: u32,
    pub errno: Option<Errno>,
    /// Where in the refused message the offending attribute starts.
    pub offset: Option<u32>,
    /// The kernel's words.
    pub words: Option<String>,
}

/// Room for one datagram. The kernel cuts listings to at most 32 KiB when the reader's buffer allows as much.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// Forced send buffer; the kernel doubles it. One datagram may be nearly as large. No memory is set aside for it.
const SEND_LIMIT: usize = 128 * 1024 * 1024;
/// Receive queue: room for some ten thousand small notifications or errors.
const RECEIVE_LIMIT: usize = 8 * 1024 * 1024;
/// Never reached on a working kernel: answers are there when `send` returns.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a listing that changed under us is asked for again.
const DUMP_ATTEMPTS: usize = 8;
/// Requests count from here. Whoever numbers messages himself (nf_tables batches) stays below.
const FIRST_SEQUENCE: u32 = 1 << 31;

const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_OFFS: u16 = 2;

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
        // netlink_sendmsg keeps 32 bytes for itself.
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

    /// Sends one request and waits for the kernel's consent.
    pub fn request(&mut self, request: Request<'_>, fill: impl FnOnce(&mut Encoder)) -> Result<(), Error> {
        self.query(request, fill).map(|_| ())
    }

    /// Sends one request and collects what comes back before the acknowledgement.
    pub fn query(&mut self, request: Request<'_>, fill: impl FnOnce(&mut Encoder)) -> Result<Answer, Error> {
        let sequence = self.prepare(request, flag::ACK, fill)?;
        self.exchange(request, sequence).map(|(answer, _)| answer)
    }

    /// Lists. A listing that was cut short by changes is asked for again, so what comes back is consistent.
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

    /// Lists, and hands each message on as it comes, keeping none: for listings that may be larger than our memory should
    /// be. True when changes cut the listing short; what was handed on is then not all there is.
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

    /// The next datagram that is already there, or `None`. ENOBUFS means that messages before it were lost;
    /// EMSGSIZE that this one was larger than our buffer, which has grown for the next.
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
            // Privileged processes can write to our port too; only the kernel, port 0, is listened to.
            let sender = sender.and_then(|address| SocketAddrNetlink::try_from(address).ok());
            if sender.is_some_and(|address| address.pid() == 0) {
                return Ok(self.buffer.get(..length));
            }
        }
    }

    /// Throws away whatever still waits from an exchange that ended early.
    pub fn discard_pending(&mut self) -> Result<(), Errno> {
        loop {
            match self.receive() {
                Ok(None) => return Ok(()),
                Ok(Some(_)) | Err(Errno::NOBUFS | Errno::MSGSIZE) => {}
                Err(errno) => return Err(errno),
            }
        }
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

    /// Collects the answer to `sequence` up to its end; true when the kernel says that it was interrupted.
    fn exchange(&mut self, request: Request<'_>, sequence: u32) -> Result<(Answer, bool), Error> {
        let mut answer = Answer::default();
        let interrupted = self.follow(request, sequence, &mut |message| {
            keep(&mut answer.bytes, message);
            Ok(())
        })?;
        Ok((answer, interrupted))
    }

    /// Hands on each message of the answer to `sequence`; true when the kernel says that it was interrupted.
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
                        return ack.map_err(malformed)?.into_result(request).map(|()| interrupted);
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
            if !self.wait(Some(PATIENCE)).map_err(failed)? {
                return Err(Error::unanswered(request.operation, request.object));
            }
            // Readiness without a datagram happens when it came from someone else than the kernel.
            let Some(length) = self.receive().map_err(failed)?.map(<[u8]>::len) else { continue };
            return Ok(&self.buffer[..length]);
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Ack {
    /// Reads an acknowledgement, or the end of a listing; `None` when the message is neither.
    pub fn from_message(message: &Message<'_>) -> Option<Result<Self, Malformed>> {
        match message.kind {
            kind::ERROR => Some(Self::from_error(message)),
            kind::DONE => Some(Self::from_done(message)),
            _ => None,
        }
    }

    fn into_result(self, request: Request<'_>) -> Result<(), Error> {
        match self.errno {
            None => Ok(()),
            Some(errno) => {
                Err(Error::refused(request.operation, request.object, errno).explained(self.words))
            }
        }
    }

    /// An errno, the header of the refused message, the rest of it unless capped, then attributes.
    fn from_error(message: &Message<'_>) -> Result<Self, Malformed> {
        const FIXED: usize = 4 + MESSAGE_HEADER;
        let payload = message.payload;
        let fixed = payload
            .first_chunk::<FIXED>()
            .ok_or(Malformed::Size { expected: FIXED, found: payload.len() })?;
        let echoed = if message.flags & flag::CAPPED != 0 || errno(fixed).is_none() {
            MESSAGE_HEADER
        } else {
            u32::from_ne_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]) as usize
        };
        let attributes = payload.get(4 + align(echoed)..).unwrap_or_default();
        Self::with_attributes(message, errno(fixed), attributes)
    }

    /// An errno, then attributes. Old kernels leave out the errno of an undisturbed listing.
    fn from_done(message: &Message<'_>) -> Result<Self, Malformed> {
        let attributes = message.payload.get(4..).unwrap_or_default();
        Self::with_attributes(message, errno(message.payload), attributes)
    }

    fn with_attributes(
        message: &Message<'_>,
        errno: Option<Errno>,
        attributes: &[u8],
    ) -> Result<Self, Malformed> {
        let mut ack = Self { sequence: message.sequence, errno, offset: None, words: None };
        if message.flags & flag::ACK_TLVS == 0 {
            return Ok(ack);
        }
        for attribute in Attributes::new(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                NLMSGERR_ATTR_MSG => ack.words = Some(attribute.str()?.to_owned()),
                NLMSGERR_ATTR_OFFS => ack.offset = Some(attribute.u32()?),
                _ => {}
            }
        }
        Ok(ack)
    }
}

/// The negative errno at the start of `payload`; zero means consent.
fn errno(payload: &[u8]) -> Option<Errno> {
    let raw = i32::from_ne_bytes(*payload.first_chunk()?);
    match raw.checked_neg() {
        Some(0) => None,
        Some(code @ 1..=4095) => Some(Errno::from_raw_os_error(code)),
        // No such number exists: still a refusal.
        _ => Some(Errno::IO),
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

    // The reason for a refusal in words, and where in the message it lies.
    set_flag(&fd, libc::NETLINK_EXT_ACK, 1)?;
    // Do not echo our whole message back with a refusal: a batch of megabytes would drown our queue.
    set_flag(&fd, libc::NETLINK_CAP_ACK, 1)?;
    if protocol == Protocol::Route {
        // Listings are filtered by what the request's header says. Kernels before 4.20 do not know it and ignore the filter.
        match set_flag(&fd, libc::NETLINK_GET_STRICT_CHK, 1) {
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
    set_flag(fd, libc::NETLINK_ADD_MEMBERSHIP, group)
        .map_err(|errno| Error::refused("join netlink group", group.to_string(), errno))
}

/// Stops receiving them. What is in the queue stays there.
pub(crate) fn leave(fd: &OwnedFd, group: u32) -> Result<(), Error> {
    set_flag(fd, libc::NETLINK_DROP_MEMBERSHIP, group)
        .map_err(|errno| Error::refused("leave netlink group", group.to_string(), errno))
}

/// Drops, inside the kernel, what is said to a socket about changes made by the one with this port, and answers to it. The
/// last one named counts.
pub(crate) fn ignore_originator(fd: &OwnedFd, port_id: u32) -> Result<(), Errno> {
    // Offset of nlmsg_pid. All messages of one datagram have one originator. The program loads words as if they
    // were big endian, while the header is in host byte order.
    const PORT_OFFSET: u32 = 12;
    let port_id = u32::from_be_bytes(port_id.to_ne_bytes());
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let compare = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let finish = (libc::BPF_RET | libc::BPF_K) as u16;
    let mut program = [
        libc::sock_filter { code: load, jt: 0, jf: 0, k: PORT_OFFSET },
        libc::sock_filter { code: compare, jt: 0, jf: 1, k: port_id },
        libc::sock_filter { code: finish, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: finish, jt: 0, jf: 0, k: u32::MAX },
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// An option of netlink sockets.
fn set_flag(fd: &OwnedFd, option: libc::c_int, value: u32) -> Result<(), Errno> {
    set_option(fd, libc::SOL_NETLINK, option, &value)
}

/// `setsockopt`, for the options that rustix does not cover.
fn set_option<T>(fd: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> Result<(), Errno> {
    let (pointer, length) = (ptr::from_ref(value), size_of::<T>() as libc::socklen_t);
    // SAFETY: pointer and length are of one live value, which the kernel only reads.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, pointer.cast(), length) };
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An NLMSG_ERROR as the kernel writes it for a refused message.
    fn refusal(flags: u16, error: i32, echoed: &[u8], attributes: &[u8]) -> Vec<u8> {
        let mut payload = error.to_ne_bytes().to_vec();
        let mut header = [0u8; MESSAGE_HEADER];
        header[..4].copy_from_slice(&((MESSAGE_HEADER + echoed.len()) as u32).to_ne_bytes());
        payload.extend_from_slice(&header);
        payload.extend_from_slice(echoed);
        payload.extend_from_slice(attributes);
        let mut encoder = Encoder::new();
        let message = encoder.begin_message(kind::ERROR, flags, 5);
        encoder.put_raw(&payload);
        encoder.end_message(message);
        encoder.bytes().to_vec()
    }

    fn parse(bytes: &[u8]) -> Ack {
        let message = Messages::new(bytes).next().unwrap().unwrap();
        Ack::from_message(&message).unwrap().unwrap()
    }

    #[test]
    fn a_refusal_carries_errno_place_and_words() {
        let mut words = Encoder::new();
        words.put_str(NLMSGERR_ATTR_MSG, "no such chain");
        words.put_u32(NLMSGERR_ATTR_OFFS, 48);
        let expected = Ack {
            sequence: 5,
            errno: Some(Errno::NOENT),
            offset: Some(48),
            words: Some("no such chain".to_owned()),
        };
        let capped = refusal(flag::CAPPED | flag::ACK_TLVS, -2, &[], words.bytes());
        assert_eq!(parse(&capped), expected);
        // Without the cap our own message comes first, and must not be taken for words.
        let echoed = refusal(flag::ACK_TLVS, -2, &[9; 24], words.bytes());
        assert_eq!(parse(&echoed), expected);
    }

    #[test]
    fn consent_has_no_errno_and_nonsense_is_still_a_refusal() {
        assert_eq!(parse(&refusal(flag::CAPPED, 0, &[], &[])).errno, None);
        assert_eq!(parse(&refusal(flag::CAPPED, i32::MIN, &[], &[])).errno, Some(Errno::IO));
        assert_eq!(parse(&refusal(flag::CAPPED, 7, &[], &[])).errno, Some(Errno::IO));
    }

    #[test]
    fn a_cut_acknowledgement_is_an_error() {
        let bytes = refusal(flag::CAPPED, -2, &[], &[]);
        let whole = Messages::new(&bytes).next().unwrap().unwrap();
        let cut = Message { payload: &whole.payload[..10], ..whole };
        assert!(Ack::from_message(&cut).unwrap().is_err());
    }

    #[test]
    fn the_kernel_refuses_with_words() {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        // RTM_GETLINK for a device that does not exist: needs no privilege.
        let request = Request { operation: "find link", object: "nosuch", kind: 18, flags: 0 };
        let error = socket
            .query(request, |message| {
                message.put_raw(&[0; 16]);
                message.put_str(3, "nosuch");
            })
            .unwrap_err();
        assert_eq!(error.errno, Errno::NODEV);
        assert_eq!(error.to_string(), "cannot find link nosuch: No such device");
    }

    #[test]
    fn a_listing_has_an_end() {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let request = Request { operation: "list links", object: "", kind: 18, flags: 0 };
        let answer = socket.dump(request, |message| message.put_raw(&[0; 16])).unwrap();
        assert!(answer.messages().count() >= 1, "every namespace has a loopback device");
        assert!(!socket.wait(Some(Duration::ZERO)).unwrap(), "nothing may be left in the queue");
    }
}
