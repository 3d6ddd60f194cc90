//! The tables of legacy iptables (`iptables-legacy`). They are no netlink objects: the kernel hands out a table as one
//! block of bytes, and takes one back, through socket options. What a rule matches and does is not looked into.

mod table;

use std::ffi::c_void;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::codec::Malformed;
use crate::error::Error;
pub use crate::nftables::Family;

use table::{COUNTER, ENTRIES_HEADER, INFO, named_header};
pub use table::{Jump, Replacement, Table};

/// The options' numbers: to ask (`GET_`) and to tell (`SET_`) they overlap. They are the same for IPv6.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
const SET_REPLACE: i32 = 64;
const SET_ADD_COUNTERS: i32 = 65;

#[derive(Debug)]
pub struct Connection {
    family: Family,
    /// Any socket of the family will do; an unconnected UDP one needs no privilege to open. The kernel asks for
    /// CAP_NET_ADMIN when the options are used.
    socket: OwnedFd,
}

/// How large a table is: its rules, and what begins chains and ends them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub entries: usize,
    pub bytes: usize,
}

/// The tables that exist in this network namespace. Asking for one that does not would create it.
pub fn tables(family: Family) -> Result<Vec<String>, Error> {
    let name = match family {
        Family::Ip => "ip_tables_names",
        Family::Ip6 => "ip6_tables_names",
    };
    // Of the calling thread: `/proc/net` is that of the process' first one.
    match fs::read_to_string(format!("/proc/thread-self/net/{name}")) {
        Ok(names) => Ok(names.lines().map(str::to_owned).collect()),
        // The kernel has no legacy iptables, or has not loaded it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::refused("read", name, Errno::from_io_error(&error).unwrap_or(Errno::IO))),
    }
}

impl Connection {
    pub fn open(family: Family) -> Result<Connection, Error> {
        let address_family = match family {
            Family::Ip => AddressFamily::INET,
            Family::Ip6 => AddressFamily::INET6,
        };
        let socket = socket_with(address_family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|errno| Error::refused("open a socket for", "legacy iptables", errno))?;
        Ok(Connection { family, socket })
    }

    /// How large a table is, which costs nothing to ask.
    pub fn size(&self, name: &str) -> Result<Size, Error> {
        let malformed = |found: Malformed| Error::malformed("ask about table", self.describe(name), found);
        let mut info = named_header(name, INFO).map_err(malformed)?;
        self.ask(GET_INFO, &mut info)
            .map_err(|errno| Error::refused("ask about table", self.describe(name), errno))?;
        Ok(Size { entries: table::count_in(&info), bytes: table::size_in(&info) })
    }

    pub fn read(&self, name: &str) -> Result<Table, Error> {
        let refused = |errno| Error::refused("read table", self.describe(name), errno);
        let malformed = |found: Malformed| Error::malformed("read table", self.describe(name), found);
        let mut info = named_header(name, INFO).map_err(malformed)?;
        self.ask(GET_INFO, &mut info).map_err(refused)?;
        let size = table::size_in(&info);
        let mut answer = named_header(name, ENTRIES_HEADER).map_err(malformed)?;
        answer[table::ENTRIES_SIZE].copy_from_slice(&(size as u32).to_ne_bytes());
        answer.resize(ENTRIES_HEADER + size, 0);
        self.ask(GET_ENTRIES, &mut answer).map_err(refused)?;
        // In place: a table can have a hundred megabytes.
        answer.drain(..ENTRIES_HEADER);
        Table::parse(self.family, &info, answer).map_err(malformed)
    }

    /// Puts a table in the place of the one it was made from. What its rules have counted stays. `EAGAIN` says that the
    /// table has another number of rules by now than when it was read; a change that keeps their number is not noticed,
    /// which is what iptables' own lock is for.
    pub fn replace(&self, replacement: &Replacement) -> Result<(), Error> {
        let name = replacement.name();
        let failed = |operation, errno| Error::refused(operation, self.describe(&name), errno);
        let mut counted = vec![0; replacement.entries_before() * COUNTER];
        let mut message = replacement.header(counted.as_mut_ptr() as u64);
        message.extend_from_slice(replacement.entries());
        // The kernel writes what the old rules have counted to `counted`, whose address is in the header and which is as
        // long as the header says.
        self.tell(SET_REPLACE, &message).map_err(|errno| failed("replace table", errno))?;
        let counters = replacement.counters(&counted);
        self.tell(SET_ADD_COUNTERS, &counters).map_err(|errno| failed("restore the counters of", errno))
    }

    fn describe(&self, table: &str) -> String {
        match self.family {
            Family::Ip => format!("legacy ip {table}"),
            Family::Ip6 => format!("legacy ip6 {table}"),
        }
    }

    fn level(&self) -> i32 {
        match self.family {
            Family::Ip => libc::IPPROTO_IP,
            Family::Ip6 => libc::IPPROTO_IPV6,
        }
    }

    fn ask(&self, option: i32, buffer: &mut [u8]) -> Result<(), Errno> {
        let mut length = buffer.len() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to the buffer, which has as many.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                self.level(),
                option,
                buffer.as_mut_ptr().cast::<c_void>(),
                &mut length,
            )
        };
        answer_of(result)
    }

    fn tell(&self, option: i32, message: &[u8]) -> Result<(), Errno> {
        // SAFETY: the kernel reads the message. Of the two messages there are, one has a pointer in it, to memory that
        // the caller keeps until this returns.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                self.level(),
                option,
                message.as_ptr().cast::<c_void>(),
                message.len() as libc::socklen_t,
            )
        };
        answer_of(result)
    }
}

fn answer_of(result: i32) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
