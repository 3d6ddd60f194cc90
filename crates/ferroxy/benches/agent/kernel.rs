//! nf_tables notifications: the kernel announces every change in a namespace, whichever program made it. They show when a
//! change arrives in the kernel. The figures "messages" and "bytes" count them: one notification for each rule, element,
//! chain, set or map that was added or deleted.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferroxy_lab::Namespace;
use ferroxy_netlink::codec::{MESSAGE_HEADER, Messages};
use ferroxy_netlink::socket::{Protocol, Socket};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use super::Result;

/// `NFNLGRP_NFTABLES`.
const GROUP: u32 = 7;
/// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_NEWGEN`: the end of a transaction, not a change.
const NEW_GENERATION: u16 = (10 << 8) | 15;
/// A proxy that rewrites all rules causes a million notifications at once. The kernel does not allocate this memory in advance.
const QUEUE: usize = 1 << 30;
/// How long the thread sleeps at most before it checks whether it must stop.
const PAUSE: Duration = Duration::from_millis(100);
/// The range of addresses that the harness moves endpoints to: 10.192.0.0/10.
const MOVED: (u32, u32) = (0x0ac0_0000, 0xffc0_0000);

/// Listens until dropped.
#[derive(Debug)]
pub struct Listener {
    received: Arc<Received>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<ferroxy_lab::Result<Result<()>>>>,
}

/// How much was announced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Announced {
    pub transactions: usize,
    pub messages: usize,
    pub bytes: usize,
    /// The queue overflowed: the numbers above are too small.
    pub lost: bool,
}

#[derive(Debug, Default)]
struct Received {
    state: Mutex<State>,
    grew: Condvar,
}

#[derive(Debug, Default)]
struct State {
    announced: Announced,
    /// When each address was first announced.
    arrivals: HashMap<Ipv4Addr, Instant>,
}

impl Listener {
    pub fn open(node: &Namespace) -> Result<Listener> {
        let socket = node.run(|| Socket::open(Protocol::Netfilter))??;
        match set_socket_recv_buffer_size_force(&socket, QUEUE) {
            // Not permitted in a user namespace: the queue stays at its default size, and losses are reported.
            Ok(()) | Err(Errno::PERM) => {}
            Err(errno) => return Err(format!("a queue for announcements: {errno}").into()),
        }
        socket.join(GROUP)?;
        let (received, stop) = (Arc::new(Received::default()), Arc::new(AtomicBool::new(false)));
        let (its_received, its_stop) = (Arc::clone(&received), Arc::clone(&stop));
        let thread = Some(node.spawn(move || listen(socket, &its_received, &its_stop))?);
        Ok(Listener { received, stop, thread })
    }

    /// The counts since the listener was opened.
    pub fn announced(&self) -> Announced {
        self.received.lock().announced
    }

    /// When this address was announced, or None if the wait timed out.
    pub fn wait_for(&self, address: Ipv4Addr, patience: Duration) -> Option<Instant> {
        let state = self.received.lock();
        let missing = |state: &mut State| !state.arrivals.contains_key(&address);
        let waited = self.received.grew.wait_timeout_while(state, patience, missing);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.arrivals.get(&address).copied()
    }

    pub fn arrival(&self, address: Ipv4Addr) -> Option<Instant> {
        self.received.lock().arrivals.get(&address).copied()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(Ok(())))) => {}
            Some(Ok(Ok(Err(error)))) => eprintln!("bench-agent: listening to the kernel has failed: {error}"),
            Some(Ok(Err(error))) => eprintln!("bench-agent: listening to the kernel has failed: {error}"),
            Some(Err(_)) => eprintln!("bench-agent: the thread that listens to the kernel has panicked"),
        }
    }
}

impl Announced {
    pub fn since(self, before: Announced) -> Announced {
        Announced {
            transactions: self.transactions - before.transactions,
            messages: self.messages - before.messages,
            bytes: self.bytes - before.bytes,
            lost: self.lost,
        }
    }
}

impl Received {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn listen(mut socket: Socket, received: &Received, stop: &AtomicBool) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        if !socket.wait(Some(PAUSE))? {
            continue;
        }
        let message = socket.receive();
        let now = Instant::now();
        let mut state = received.lock();
        match message {
            Ok(Some(bytes)) => state.take_in(bytes, now)?,
            Ok(None) => {}
            Err(Errno::NOBUFS | Errno::MSGSIZE) => state.announced.lost = true,
            Err(errno) => return Err(errno.into()),
        }
        received.grew.notify_all();
    }
    Ok(())
}

impl State {
    fn take_in(&mut self, bytes: &[u8], now: Instant) -> Result<()> {
        for message in Messages::new(bytes) {
            let message = message.map_err(|found| format!("an announcement of the kernel: {found}"))?;
            if message.kind == NEW_GENERATION {
                self.announced.transactions += 1;
                continue;
            }
            self.announced.messages += 1;
            self.announced.bytes += MESSAGE_HEADER + message.payload.len();
            moved_addresses(message.payload).for_each(|address| {
                self.arrivals.entry(address).or_insert(now);
            });
        }
        Ok(())
    }
}

/// Finds addresses anywhere in a message: as (part of) an element's key or data, or as an operand of a rule. Netlink
/// aligns attributes, and nf_tables the parts of a concatenation, to four bytes.
fn moved_addresses(payload: &[u8]) -> impl Iterator<Item = Ipv4Addr> {
    let (network, mask) = MOVED;
    let words = payload.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word));
    words.filter(move |word| word & mask == network).map(Ipv4Addr::from_bits)
}
