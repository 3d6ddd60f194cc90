//! Many datagrams with one system call: recvmmsg and sendmmsg, with runs of equal size as one (UDP_GRO, UDP_SEGMENT).

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use socket2::{SockAddr, SockAddrStorage};

/// The largest datagram, and the largest run of coalesced ones.
const LARGEST: usize = 65_536;
const MESSAGES: usize = 32;
/// Enough for the size of segments, and for the arrival address of IPv4 or IPv6.
const CONTROL: usize = 128;
/// The most segments that one sendmsg may carry (UDP_MAX_SEGMENTS of kernels before 6.9).
const SEGMENTS: usize = 64;
/// Larger segments could exceed an MTU on the way, and the kernel does not fragment segments.
const SEGMENT: usize = 1400;

/// Control messages need the alignment of their header.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

/// Memory for one call of recvmmsg, and the messages it received. Two megabytes, of which only pages with data become
/// resident.
pub struct Batch {
    data: Box<[MaybeUninit<u8>]>,
    names: Box<[SockAddrStorage; MESSAGES]>,
    controls: Box<[Control; MESSAGES]>,
    headers: Box<[libc::mmsghdr; MESSAGES]>,
    vectors: Box<[libc::iovec; MESSAGES]>,
    received: usize,
}

/// One message: a datagram, or several of the same size (the last may be shorter) that arrived from one address.
#[derive(Debug)]
pub struct Message<'a> {
    pub from: SocketAddr,
    /// The address that the client used, if the socket reports it.
    pub to: Option<IpAddr>,
    data: &'a [u8],
    segment: usize,
}

impl<'a> Message<'a> {
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let empty: Option<&'a [u8]> = self.data.is_empty().then_some(self.data);
        empty.into_iter().chain(self.data.chunks(self.segment))
    }
}

impl Batch {
    pub fn new() -> Batch {
        // SAFETY: for these C structures, all zeroes is a valid value.
        let (headers, vectors) = unsafe { (Box::new(zeroed()), Box::new(zeroed())) };
        Batch {
            data: Box::new_uninit_slice(MESSAGES * LARGEST),
            names: Box::new(std::array::from_fn(|_| SockAddrStorage::zeroed())),
            controls: Box::new([Control([0; CONTROL]); MESSAGES]),
            headers,
            vectors,
            received: 0,
        }
    }

    /// Receives what has arrived, without waiting; returns the number of messages.
    pub fn receive(&mut self, socket: &impl AsFd) -> io::Result<usize> {
        self.received = 0;
        self.prepare();
        let (fd, count) = (socket.as_fd().as_raw_fd(), MESSAGES as libc::c_uint);
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: each header points to memory of this batch, which lives and is not used otherwise during the call.
        let received =
            unsafe { libc::recvmmsg(fd, self.headers.as_mut_ptr(), count, flags as _, ptr::null_mut()) };
        self.received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        Ok(self.received)
    }

    /// Whether more messages may be waiting.
    pub fn is_full(&self) -> bool {
        self.received == MESSAGES
    }

    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        (0..self.received).filter_map(|index| self.message(index))
    }

    fn prepare(&mut self) {
        for index in 0..MESSAGES {
            self.vectors[index] =
                libc::iovec { iov_base: self.data[index * LARGEST..].as_mut_ptr().cast(), iov_len: LARGEST };
            let header = &mut self.headers[index].msg_hdr;
            header.msg_name = (&raw mut self.names[index]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = &mut self.vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = self.controls[index].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL as _;
            header.msg_flags = 0;
        }
    }

    fn message(&self, index: usize) -> Option<Message<'_>> {
        let length = self.headers[index].msg_len as usize;
        let header = &self.headers[index].msg_hdr;
        // SAFETY: the kernel wrote the name and its length.
        let name = unsafe { SockAddr::new(ptr::read(&self.names[index]), header.msg_namelen) };
        let from = name.as_socket()?;
        // SAFETY: the kernel wrote this many bytes of this message's memory.
        let data = unsafe {
            std::slice::from_raw_parts(
                self.data[index * LARGEST..].as_ptr().cast::<u8>(),
                length.min(LARGEST),
            )
        };
        let (to, segment) = read_control(header);
        Some(Message { from, to, data, segment: segment.filter(|it| *it > 0).unwrap_or(length.max(1)) })
    }
}

/// The arrival address, and the size of segments.
fn read_control(header: &libc::msghdr) -> (Option<IpAddr>, Option<usize>) {
    let (mut to, mut segment) = (None, None);
    // SAFETY: the header is one that recvmmsg filled; the macros stay within its control length.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: not null, so it points to a control message; its data is read with the type that its kind has, from
        // wherever it lies.
        unsafe {
            let data = libc::CMSG_DATA(next);
            match ((*next).cmsg_level, (*next).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info: libc::in_pktinfo = ptr::read_unaligned(data.cast());
                    to = Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr))));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info: libc::in6_pktinfo = ptr::read_unaligned(data.cast());
                    to = Some(IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)));
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let size: libc::c_int = ptr::read_unaligned(data.cast());
                    segment = usize::try_from(size).ok();
                }
                _ => {}
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
    (to, segment)
}

/// Sends datagrams without waiting: to the peer of a connected socket, or to `to`, from the address `from` if there is one.
/// Returns how many were sent; fewer if the socket is full.
pub fn send(
    socket: &impl AsFd,
    to: Option<SocketAddr>,
    from: Option<IpAddr>,
    datagrams: &[&[u8]],
) -> io::Result<usize> {
    let (mut sent, mut longest) = (0, SEGMENTS);
    while sent < datagrams.len() {
        match send_runs(socket, to, from, &datagrams[sent..], longest) {
            Ok(more) => sent += more,
            // The device or the path cannot carry segments of this size. Earlier runs may have passed: theirs were smaller.
            Err(error) if longest > 1 && is_about_segments(&error) => longest = 1,
            Err(error) if sent == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(sent)
}

fn is_about_segments(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EMSGSIZE | libc::EIO))
}

/// Sends runs of at most `longest` datagrams. After an error, returns the number of datagrams that were sent before it, if any.
fn send_runs(
    socket: &impl AsFd,
    to: Option<SocketAddr>,
    from: Option<IpAddr>,
    datagrams: &[&[u8]],
    longest: usize,
) -> io::Result<usize> {
    let name = to.map(SockAddr::from);
    let vectors: Vec<libc::iovec> = datagrams
        .iter()
        .map(|it| libc::iovec { iov_base: it.as_ptr().cast_mut().cast(), iov_len: it.len() })
        .collect();
    let mut runs = [0usize; MESSAGES];
    let mut controls = [Control([0; CONTROL]); MESSAGES];
    // SAFETY: for this C structure, all zeroes is a valid value.
    let mut headers: [libc::mmsghdr; MESSAGES] = unsafe { zeroed() };
    let mut sent = 0;
    while sent < datagrams.len() {
        let (mut count, mut next) = (0, sent);
        while next < datagrams.len() && count < MESSAGES {
            let run = run_length(&datagrams[next..], longest);
            let header = &mut headers[count].msg_hdr;
            if let Some(name) = &name {
                header.msg_name = name.as_ptr().cast_mut().cast();
                header.msg_namelen = name.len();
            }
            header.msg_iov = vectors[next..].as_ptr().cast_mut();
            header.msg_iovlen = run as _;
            let segment = (run > 1).then(|| datagrams[next].len() as u16);
            write_control(header, &mut controls[count], from, segment);
            (runs[count], next, count) = (run, next + run, count + 1);
        }
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: the first `count` headers point to names, vectors, data and control messages that live during the call.
        let done = unsafe {
            libc::sendmmsg(fd, headers.as_mut_ptr(), count as libc::c_uint, libc::MSG_DONTWAIT as _)
        };
        let done = usize::try_from(done).map_err(|_| io::Error::last_os_error());
        match done {
            Ok(done) => sent += runs[..done].iter().sum::<usize>(),
            Err(error) if sent == 0 => return Err(error),
            Err(_) => return Ok(sent),
        }
    }
    Ok(sent)
}

/// How many datagrams, from the first, one message can carry: all are as large as the first, and the last may be
/// shorter.
fn run_length(datagrams: &[&[u8]], longest: usize) -> usize {
    let size = datagrams[0].len();
    if size == 0 || size > SEGMENT {
        return 1;
    }
    let most = longest.min(65_000 / size);
    let equal = datagrams.iter().take(most).take_while(|it| it.len() == size).count();
    let shorter = datagrams.get(equal).is_some_and(|it| equal < most && !it.is_empty() && it.len() < size);
    equal + usize::from(shorter)
}

fn write_control(
    header: &mut libc::msghdr,
    control: &mut Control,
    from: Option<IpAddr>,
    segment: Option<u16>,
) {
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL as _;
    let mut used = 0;
    // SAFETY: the control memory is aligned and larger than both messages together; the macros stay within it.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        if let Some(segment) = segment {
            used += put(next, libc::SOL_UDP, libc::UDP_SEGMENT, segment);
            next = next.byte_add(used);
        }
        match from {
            Some(IpAddr::V4(address)) => {
                let spec = libc::in_addr { s_addr: u32::from(address).to_be() };
                let any = libc::in_addr { s_addr: 0 };
                let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: spec, ipi_addr: any };
                used += put(next, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
            }
            Some(IpAddr::V6(address)) => {
                let address = libc::in6_addr { s6_addr: address.octets() };
                let info = libc::in6_pktinfo { ipi6_addr: address, ipi6_ifindex: 0 };
                used += put(next, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
            }
            None => {}
        }
    }
    header.msg_controllen = used as _;
    if used == 0 {
        header.msg_control = ptr::null_mut();
    }
}

/// Writes one control message; returns the space it takes.
///
/// # Safety
/// `at` points to memory for a control message with this data.
unsafe fn put<T>(at: *mut libc::cmsghdr, level: libc::c_int, kind: libc::c_int, value: T) -> usize {
    // SAFETY: the caller provides the memory.
    unsafe {
        (*at).cmsg_level = level;
        (*at).cmsg_type = kind;
        (*at).cmsg_len = libc::CMSG_LEN(size_of::<T>() as libc::c_uint) as _;
        ptr::write_unaligned(libc::CMSG_DATA(at).cast(), value);
        libc::CMSG_SPACE(size_of::<T>() as libc::c_uint) as usize
    }
}

// SAFETY: the pointers in the headers are only used during `receive`, which sets them first, to memory of this batch.
unsafe impl Send for Batch {}

impl std::fmt::Debug for Batch {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Batch").field("received", &self.received).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::process::Command;
    use std::time::Duration;

    use ferroxy_lab::{Capability, Namespace, require};

    use super::*;

    /// The kernel sends the first run and refuses the second, whose segments are larger than the MTU.
    #[test]
    fn runs_that_a_small_mtu_refuses_are_sent_one_by_one() {
        if !require(&[Capability::NetworkNamespaces]) {
            return;
        }
        let namespace = Namespace::new("small-mtu").unwrap();
        let through = |address: &str| {
            let set_mtu = Command::new("ip").args(["link", "set", "lo", "mtu", "1280", "up"]).status();
            assert!(set_mtu.unwrap().success());
            let (sender, receiver) = (UdpSocket::bind(address).unwrap(), UdpSocket::bind(address).unwrap());
            sender.connect(receiver.local_addr().unwrap()).unwrap();
            receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let sizes = [100, 100, 100, 1_390, 1_390, 1_390, 50, 1_400, 1_400];
            let datagrams: Vec<Vec<u8>> =
                (0u8..).zip(sizes).map(|(number, size)| vec![number; size]).collect();
            let slices: Vec<&[u8]> = datagrams.iter().map(Vec::as_slice).collect();
            let sent = send(&sender, None, None, &slices).unwrap();
            let mut buffer = [0; 65_536];
            let received: Vec<Vec<u8>> = (0..sent)
                .map(|_| {
                    let length = receiver.recv(&mut buffer).unwrap();
                    buffer[..length].to_vec()
                })
                .collect();
            (sent == sizes.len(), received == datagrams)
        };
        for address in ["127.0.0.1:0", "[::1]:0"] {
            assert_eq!(namespace.run(|| through(address)).unwrap(), (true, true), "{address}");
        }
    }
}
