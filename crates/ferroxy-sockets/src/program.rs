//! The programs: what the kernel does when a socket connects. They translate or do nothing, and never refuse.
//!
//! ```text
//! TCP? not bound? ─▶ frontends[address, port] ─▶ the clients meant?
//!    ─▶ a few endpoints: a random one of those that are listed there, or the only one
//!    ─▶ more: a random number below count ─▶ endpoints[pool, number]
//!    ─▶ with session affinity: sessions[client, port] ─▶ still in members, and not too long ago? ─▶ that endpoint, else as above
//!    ─▶ remember and count what must be ─▶ write address and port
//! ```
//! If an element is missing or a socket is unusual, the address stays unchanged, and packet rules translate the connection.
//! [`interpret`](crate::interpret) executes the same instructions.

use ferroxy_bpf::{
    Arithmetic, Assembler, Code, Comparison, KernelFunction, Label, Register, Size, Unresolved,
};
use ferroxy_core::Family;

use crate::entry::{Clients, FrontendValue, PoolId};

use Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};

/// The positions of maps in the list that a program is loaded with.
pub const FRONTENDS: u32 = 0;
pub const ENDPOINTS: u32 = 1;
pub const COUNTS: u32 = 2;
pub const MEMBERS: u32 = 3;
pub const SESSIONS: u32 = 4;
pub const FLOWS: u32 = 5;
pub const PEERS: u32 = 6;

/// The purpose of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purpose {
    /// The family of the socket. An IPv6 socket can connect to mapped IPv4 addresses.
    pub family: Family,
    /// The host's own sockets, or those of pods.
    pub clients: Clients,
    /// The cookie of the host's network namespace.
    pub host_namespace: u64,
    /// Remembers the frontend for [`peer_name`].
    pub remembers_peer: bool,
    /// Counts connections of each frontend and endpoint.
    pub counts_flows: bool,
}

/// Offsets in `struct bpf_sock_addr`.
pub mod context {
    pub const ADDRESS_4: i16 = 4;
    pub const ADDRESS_6: i16 = 8;
    pub const PORT: i16 = 24;
    pub const PROTOCOL: i16 = 36;
    pub const SOCKET: i16 = 64;
    pub const SIZE: usize = 72;
}

/// Offsets in `struct bpf_sock`.
pub mod socket {
    pub const BOUND_DEVICE: i16 = 0;
    pub const SOURCE_4: i16 = 24;
    pub const SOURCE_6: i16 = 28;
    pub const SIZE: usize = 80;
}

/// What is remembered of a socket: frontend and endpoint, each 16 bytes of address, 2 of port and 6 zeros.
pub const PEER_SIZE: usize = 48;
const PEER_ENDPOINT: i16 = 24;

/// A flow: frontend and endpoint, in the layout of a remembered peer.
pub const FLOW_SIZE: usize = PEER_SIZE;

// The stack. Without CAP_PERFMON, the kernel adds a barrier to the first store into each place, which takes longer than anything
// else here: keys are put together in registers and stored in whole words of eight bytes. If eight bytes are written in parts, the
// first part is written last: verifiers of several kernels treat an aligned store as a saved register, and refuse to overwrite a
// part of it if the process has no CAP_PERFMON.
const FRONTEND_KEY: i16 = -24;
const SLOT_KEY: i16 = -40;
/// Cookie of the client's network namespace, and number of the Service port.
const SESSION_KEY: i16 = -56;
/// Address 16, port 2 and 6 zeros.
const ENDPOINT: i16 = -80;
/// The pool, and the endpoint behind it.
const MEMBER_KEY: i16 = -88;
/// The time takes the place of the pool: endpoint and key are behind it already.
const SESSION_VALUE: i16 = -88;
const LAST_USED: i16 = -96;
const LONGEST: i16 = -104;
const FLOW_KEY: i16 = -152;
const FIRST: i16 = -160;

// Of a frontend's value.
const CLIENTS: i16 = FrontendValue::CLIENTS as i16;
const FORM: i16 = FrontendValue::FORM as i16;
const STAMP: i16 = FrontendValue::STAMP as i16;
const COUNT: i16 = FrontendValue::COUNT as i16;
const POOL: i16 = FrontendValue::POOL as i16;
const ENDPOINTS_AT: i16 = FrontendValue::ENDPOINTS as i16;

/// A flag to add an element only if it does not exist.
const NEW_ONLY: i32 = 1;

/// The first half of a mapped IPv4 address ends with these bytes.
const MAPPED: i32 = i32::from_ne_bytes([0, 0, 0xff, 0xff]);
const TCP: i32 = 6;

/// For `connect(2)`.
pub fn connect(purpose: &Purpose) -> Result<Code, Unresolved> {
    let mut program = Assembler::new();
    let (pass, chosen, on_stack) = (program.label(), program.label(), program.label());
    let (pooled, sticky) = (program.label(), program.label());
    let needs_stack = purpose.remembers_peer || purpose.counts_flows;
    program.set(R6, R1);
    program.load(Size::Word, R7, R6, context::PROTOCOL).jump_if(R7, Comparison::NotEqual, TCP, pass);
    // The host's program also runs for every socket of a pod: it checks the client first, to look up nothing for pods. The pods'
    // program runs for few other clients: it checks last, so that connections to no Service skip the check.
    if purpose.clients == Clients::HOST {
        check_clients(&mut program, purpose, pass);
    }
    check_unbound(&mut program, purpose.family, pass);
    find_frontend(&mut program, purpose, pass);
    if purpose.clients != Clients::HOST {
        check_clients(&mut program, purpose, pass);
    }
    find_counts(&mut program, pass);
    program.jump_if(R8, Comparison::Equal, 0, pooled);
    program.jump_if(R8, Comparison::Greater, FrontendValue::MOST as i32, sticky);
    choose_listed(&mut program, purpose, pass);
    program.jump(chosen).place(sticky);
    choose_sticky(&mut program, purpose.clients, pass);
    if needs_stack {
        program.jump(on_stack);
    } else {
        read_endpoint(&mut program, purpose.family, (R10, ENDPOINT));
        program.jump(chosen);
    }
    program.place(pooled);
    choose_pooled(&mut program, purpose, pass);
    program.place(chosen);
    if needs_stack {
        store_endpoint(&mut program, purpose.family);
        program.place(on_stack);
        remember(&mut program, purpose, pass);
    }
    translate(&mut program, purpose.family);
    program.set(R1, 1).atomic_add(Size::Double, R9, count_offset(purpose.clients), R1);
    program.place(pass).set(R0, 1).exit();
    program.finish()
}

/// Stores the peer and counts the flow, if required. The endpoint is on the stack.
fn remember(program: &mut Assembler, purpose: &Purpose, pass: Label) {
    if purpose.remembers_peer {
        remember_peer(program, pass);
    }
    if purpose.counts_flows {
        count_flow(program);
    }
    read_endpoint(program, purpose.family, (R10, ENDPOINT));
}

/// For `getpeername(2)`: the frontend, as long as the socket is connected to the endpoint that was chosen for it.
pub fn peer_name(family: Family) -> Result<Code, Unresolved> {
    let mut program = Assembler::new();
    let pass = program.label();
    program.set(R6, R1);
    program.load(Size::Double, R2, R6, context::SOCKET);
    program.set_map(R1, PEERS).set(R3, 0).set(R4, 0).call(KernelFunction::SocketStorageGet);
    program.jump_if(R0, Comparison::Equal, 0, pass);
    for (in_context, at) in words(family) {
        program.load(Size::Word, R1, R6, in_context).load(Size::Word, R2, R0, PEER_ENDPOINT + at);
        program.jump_if(R1, Comparison::NotEqual, R2, pass);
    }
    program.load(Size::Word, R1, R6, context::PORT).load(Size::Half, R2, R0, PEER_ENDPOINT + 16);
    program.jump_if(R1, Comparison::NotEqual, R2, pass);
    for (in_context, at) in words(family) {
        program.load(Size::Word, R1, R0, at).store(Size::Word, R6, in_context, R1);
    }
    program.load(Size::Half, R1, R0, 16).store(Size::Word, R6, context::PORT, R1);
    program.place(pass).set(R0, 1).exit();
    program.finish()
}

/// The offsets of the words of an address: in the context, and in sixteen bytes.
fn words(family: Family) -> impl Iterator<Item = (i16, i16)> {
    let v4 = (family == Family::V4).then_some((context::ADDRESS_4, 12));
    let v6 =
        (0..4).filter(move |_| family == Family::V6).map(|word| (context::ADDRESS_6 + word * 4, word * 4));
    v4.into_iter().chain(v6)
}

/// Checks the socket's network namespace: a pod on the host's network counts as the host.
fn check_clients(program: &mut Assembler, purpose: &Purpose, pass: Label) {
    program.set(R1, R6).call(KernelFunction::NamespaceCookie).set_long(R1, purpose.host_namespace);
    let other = if purpose.clients == Clients::HOST { Comparison::NotEqual } else { Comparison::Equal };
    program.jump_if(R0, other, R1, pass);
}

/// A socket with a source address or a device of its own is left alone.
fn check_unbound(program: &mut Assembler, family: Family, pass: Label) {
    program.load(Size::Double, R1, R6, context::SOCKET);
    program.load(Size::Word, R2, R1, socket::BOUND_DEVICE).jump_if(R2, Comparison::NotEqual, 0, pass);
    let sources: &[i16] = match family {
        Family::V4 => &[socket::SOURCE_4],
        Family::V6 => &[0, 4, 8, 12],
    };
    for offset in sources {
        let at = if family == Family::V4 { *offset } else { socket::SOURCE_6 + offset };
        program.load(Size::Word, R2, R1, at).jump_if(R2, Comparison::NotEqual, 0, pass);
    }
}

/// R7: the address of the frontend's value, R8: its form. Jumps to `pass` unless the frontend is for this program's clients.
fn find_frontend(program: &mut Assembler, purpose: &Purpose, pass: Label) {
    match purpose.family {
        Family::V4 => {
            program.store_constant(Size::Double, R10, FRONTEND_KEY, 0);
            program.load(Size::Word, R1, R6, context::ADDRESS_4);
            program.arithmetic(Arithmetic::ShiftLeft, R1, place_of(Size::Word, 4));
            program.set_long(R2, u64::from(MAPPED as u32) << place_of(Size::Word, 0));
            program.arithmetic(Arithmetic::Or, R1, R2).store(Size::Double, R10, FRONTEND_KEY + 8, R1);
        }
        Family::V6 => {
            for half in [0, 8] {
                program.load(Size::Double, R1, R6, context::ADDRESS_6 + half);
                program.store(Size::Double, R10, FRONTEND_KEY + half, R1);
            }
        }
    }
    program.load(Size::Word, R1, R6, context::PORT);
    program.arithmetic(Arithmetic::ShiftLeft, R1, place_of(Size::Half, 0));
    program.set_long(R2, (TCP as u64) << place_of(Size::Byte, 2));
    program.arithmetic(Arithmetic::Or, R1, R2).store(Size::Double, R10, FRONTEND_KEY + 16, R1);
    look_up(program, FRONTENDS, FRONTEND_KEY, pass);
    program.set(R7, R0).load(Size::Byte, R1, R7, CLIENTS).load(Size::Byte, R8, R7, FORM);
    program.arithmetic(Arithmetic::And, R1, i32::from(purpose.clients.0));
    program.jump_if(R1, Comparison::Equal, 0, pass);
}

/// The left shift that puts a number at this offset of the eight bytes that a register stores.
fn place_of(size: Size, offset: i32) -> i32 {
    if cfg!(target_endian = "big") { (8 - offset - size.bytes() as i32) * 8 } else { offset * 8 }
}

/// Compares the key in the frontend's value with the key on the stack, after everything else was read from the value. If they
/// differ, the kernel has reused the memory.
fn check_key(program: &mut Assembler, (left, right): (Register, Register), pass: Label) {
    program.load(Size::Double, left, R7, 0).load(Size::Double, right, R10, FRONTEND_KEY + 8);
    program.jump_if(left, Comparison::NotEqual, right, pass);
    program.load(Size::Half, left, R7, 8).load(Size::Half, right, R10, FRONTEND_KEY + 16);
    program.jump_if(left, Comparison::NotEqual, right, pass);
}

/// The words of an endpoint's address, and its port in R1.
const WORDS: [Register; 4] = [R2, R3, R4, R5];

/// WORDS and R1: the endpoint at this address.
fn read_endpoint(program: &mut Assembler, family: Family, (base, at): (Register, i16)) {
    for ((_, part), word) in words(family).zip(WORDS) {
        program.load(Size::Word, word, base, at + part);
    }
    program.load(Size::Half, R1, base, at + 16);
}

/// Factors that make a random number of a count: the upper half of a product, twice. Both are odd, with irregular bits.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

/// The number below `below` that [`draw`] makes of a count.
pub fn drawn(count: u64, below: u64) -> u64 {
    let random = FACTORS.iter().fold(count, |number, factor| number.wrapping_mul(*factor) >> 32);
    random.wrapping_mul(below) >> 32
}

/// R0: a random number below R8, made of the number of connections so far, which is counted anyway: the kernel's own random numbers
/// take 0.2 µs of a connection. The upper half of a product is as evenly distributed as a remainder, without a division.
fn draw(program: &mut Assembler, clients: Clients) {
    program.load(Size::Double, R0, R9, count_offset(clients));
    for factor in FACTORS {
        program.set_long(R1, factor).arithmetic(Arithmetic::Multiply, R0, R1);
        program.arithmetic(Arithmetic::ShiftRight, R0, 32);
    }
    program.arithmetic(Arithmetic::Multiply, R0, R8).arithmetic(Arithmetic::ShiftRight, R0, 32);
}

/// WORDS and R1: one of the R8 endpoints in the value. Every place has its own instructions: without CAP_PERFMON, the kernel
/// would add more instructions than these for a calculated address.
fn choose_listed(program: &mut Assembler, purpose: &Purpose, pass: Label) {
    let (only, read) = (program.label(), program.label());
    let places = [only, program.label(), program.label(), program.label()];
    program.jump_if(R8, Comparison::Equal, 1, only);
    draw(program, purpose.clients);
    for (number, place) in (0..).zip(places).skip(1) {
        program.jump_if(R0, Comparison::Equal, number, place);
    }
    for (at, place) in (ENDPOINTS_AT..).step_by(FrontendValue::ENDPOINT_SIZE).zip(places) {
        program.place(place).load(Size::Word, R8, R7, at + FrontendValue::ENDPOINT_STAMP as i16);
        read_endpoint(program, purpose.family, (R7, at));
        program.jump(read);
    }
    program.place(read).load(Size::Word, R0, R7, STAMP).jump_if(R8, Comparison::NotEqual, R0, pass);
    check_key(program, (R8, R0), pass);
}

/// R7: the pool, R8: the number of endpoints in it, which is not zero.
fn enter_pool(program: &mut Assembler, pass: Label) {
    program.load(Size::Word, R8, R7, COUNT).load(Size::Double, R3, R7, POOL);
    check_key(program, (R1, R2), pass);
    program.set(R7, R3).jump_if(R8, Comparison::Equal, 0, pass);
}

/// R0: the address of a random slot of the pool.
fn find_slot(program: &mut Assembler, clients: Clients, pass: Label) {
    draw(program, clients);
    program.store(Size::Double, R10, SLOT_KEY, R7).store_constant(Size::Word, R10, SLOT_KEY + 12, 0);
    program.store(Size::Word, R10, SLOT_KEY + 8, R0);
    look_up(program, ENDPOINTS, SLOT_KEY, pass);
}

/// WORDS and R1: a random endpoint of the pool.
fn choose_pooled(program: &mut Assembler, purpose: &Purpose, pass: Label) {
    enter_pool(program, pass);
    find_slot(program, purpose.clients, pass);
    read_endpoint(program, purpose.family, (R0, 8));
    program.load(Size::Double, R8, R0, 0).jump_if(R8, Comparison::NotEqual, R7, pass);
}

/// ENDPOINT: that of the client's session, if it is still valid, or a random one of the pool. The network namespace identifies
/// the client: a pod has one, as it has one address.
fn choose_sticky(program: &mut Assembler, clients: Clients, pass: Label) {
    let (pick, found) = (program.label(), program.label());
    enter_pool(program, pass);
    program.set(R1, R6).call(KernelFunction::NamespaceCookie).store(Size::Double, R10, SESSION_KEY, R0);
    program.set(R1, R7).arithmetic(Arithmetic::And, R1, PoolId::PORT as i32);
    program.store(Size::Double, R10, SESSION_KEY + 8, R1);
    recall_session(program, pick);
    program.jump(found).place(pick);
    find_slot(program, clients, pass);
    copy(program, (R10, ENDPOINT), (R0, 8));
    program.load(Size::Double, R1, R0, 0).jump_if(R1, Comparison::NotEqual, R7, pass).place(found);
    // If the session cannot be stored, the connection is left to packet rules, which have session affinity as well.
    program.call(KernelFunction::MonotonicTime).store(Size::Double, R10, SESSION_VALUE, R0);
    update(program, SESSIONS, SESSION_KEY, SESSION_VALUE, 0);
    program.jump_if(R0, Comparison::NotEqual, 0, pass);
}

/// ENDPOINT: that of the client's session. It must still be in the pool, and the client's last connection must not be too old.
fn recall_session(program: &mut Assembler, otherwise: Label) {
    look_up(program, SESSIONS, SESSION_KEY, otherwise);
    program.load(Size::Double, R1, R0, 0).store(Size::Double, R10, LAST_USED, R1);
    copy(program, (R10, ENDPOINT), (R0, 8));
    for part in [0, 8] {
        program.load(Size::Double, R1, R0, 32 + part).load(Size::Double, R2, R10, SESSION_KEY + part);
        program.jump_if(R1, Comparison::NotEqual, R2, otherwise);
    }
    program.store(Size::Double, R10, MEMBER_KEY, R7);
    look_up(program, MEMBERS, MEMBER_KEY, otherwise);
    program.load(Size::Double, R1, R0, 8).store(Size::Double, R10, LONGEST, R1);
    program.load(Size::Double, R1, R0, 0).jump_if(R1, Comparison::NotEqual, R7, otherwise);
    program.call(KernelFunction::MonotonicTime).load(Size::Double, R1, R10, LAST_USED);
    program.arithmetic(Arithmetic::Subtract, R0, R1).load(Size::Double, R1, R10, LONGEST);
    program.jump_if(R0, Comparison::Greater, R1, otherwise);
}

fn look_up(program: &mut Assembler, map: u32, key: i16, missing: Label) {
    program.set_map(R1, map).set(R2, R10).add(R2, i32::from(key)).call(KernelFunction::MapLookup);
    program.jump_if(R0, Comparison::Equal, 0, missing);
}

/// R0: zero on success.
fn update(program: &mut Assembler, map: u32, key: i16, value: i16, flags: i32) {
    program.set_map(R1, map).set(R2, R10).add(R2, i32::from(key)).set(R3, R10).add(R3, i32::from(value));
    program.set(R4, flags).call(KernelFunction::MapUpdate);
}

/// The 24 bytes of a frontend or an endpoint.
fn copy(program: &mut Assembler, to: (Register, i16), from: (Register, i16)) {
    for part in [0, 8, 16] {
        program.load(Size::Double, R1, from.0, from.1 + part).store(Size::Double, to.0, to.1 + part, R1);
    }
}

/// ENDPOINT: the endpoint of WORDS and R1.
fn store_endpoint(program: &mut Assembler, family: Family) {
    match family {
        Family::V4 => {
            program.store_constant(Size::Double, R10, ENDPOINT, 0);
            program.store(Size::Word, R10, ENDPOINT + 12, R2);
            program.store_constant(Size::Word, R10, ENDPOINT + 8, MAPPED);
        }
        Family::V6 => {
            for (at, word) in [(4, R3), (0, R2), (12, R5), (8, R4)] {
                program.store(Size::Word, R10, ENDPOINT + at, word);
            }
        }
    }
    program.store_constant(Size::Word, R10, ENDPOINT + 20, 0);
    program.store_constant(Size::Half, R10, ENDPOINT + 18, 0).store(Size::Half, R10, ENDPOINT + 16, R1);
}

/// Writes the endpoint of WORDS and R1 to the context.
fn translate(program: &mut Assembler, family: Family) {
    for ((in_context, _), word) in words(family).zip(WORDS) {
        program.store(Size::Word, R6, in_context, word);
    }
    program.store(Size::Word, R6, context::PORT, R1);
}

/// A socket whose peer cannot be stored is not translated: `getpeername(2)` would return the endpoint.
fn remember_peer(program: &mut Assembler, pass: Label) {
    program.set_map(R1, PEERS).load(Size::Double, R2, R6, context::SOCKET).set(R3, 0).set(R4, 1);
    program.call(KernelFunction::SocketStorageGet).jump_if(R0, Comparison::Equal, 0, pass);
    copy(program, (R0, 0), (R10, FRONTEND_KEY));
    copy(program, (R0, PEER_ENDPOINT), (R10, ENDPOINT));
}

/// If there are too many flows to count another one, the connection is translated all the same.
fn count_flow(program: &mut Assembler) {
    let (first, done) = (program.label(), program.label());
    copy(program, (R10, FLOW_KEY), (R10, FRONTEND_KEY));
    copy(program, (R10, FLOW_KEY + PEER_ENDPOINT), (R10, ENDPOINT));
    look_up(program, FLOWS, FLOW_KEY, first);
    program.set(R1, 1).atomic_add(Size::Double, R0, 0, R1).jump(done).place(first);
    program.store_constant(Size::Double, R10, FIRST, 1);
    update(program, FLOWS, FLOW_KEY, FIRST, NEW_ONLY);
    program.place(done);
}

/// R9: the address of the numbers of connections. The only key of that map is zero, which the last word of every frontend's key
/// is, too.
fn find_counts(program: &mut Assembler, pass: Label) {
    look_up(program, COUNTS, FRONTEND_KEY + 20, pass);
    program.set(R9, R0);
}

/// The offset of the number of connections of these clients.
pub fn count_offset(clients: Clients) -> i16 {
    if clients == Clients::HOST { 0 } else { 8 }
}

/// The size of the numbers of connections of all clients.
pub const COUNTS_SIZE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Also if a Service gets only every second connection of the node, or one of any other number.
    #[test]
    fn every_endpoint_is_drawn_equally_often() {
        for below in [2, 3, 4, 8, 100] {
            for step in [1, 2, 3, 64, 1000, 2584, 1 << 32] {
                let mut times = vec![0; below as usize];
                (0..below * 1000).for_each(|number| times[drawn(7 + number * step, below) as usize] += 1);
                let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
                assert!(
                    (850..=1150).contains(least) && (850..=1150).contains(most),
                    "{below}, {step}: {times:?}"
                );
            }
        }
    }

    /// Far below the limit of every kernel's verifier, and a reminder: the program runs for every connection.
    #[test]
    fn every_variant_is_short() {
        for family in Family::ALL {
            assert!(peer_name(family).unwrap().slots() <= 40);
            for clients in [Clients::HOST, Clients::PODS] {
                for (remembers_peer, counts_flows, most) in [(false, false, 250), (true, true, 310)] {
                    let purpose =
                        Purpose { family, clients, host_namespace: 3, remembers_peer, counts_flows };
                    let code = connect(&purpose).unwrap();
                    assert!(code.slots() <= most, "{} slots:\n{code}", code.slots());
                }
            }
        }
    }
}
