//! A connection to the tables of legacy iptables, through socket options. Linux only.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::table::{self, ENTRIES_HEADER, INFO, named_header};
use super::{Family, Replacement, Size, Table};
use crate::codec::Malformed;
use crate::error::{Errno, Error};
use crate::sockopt;

/// Numbers of the socket options: those for getsockopt (`GET_`) and setsockopt (`SET_`) overlap. IPv6 has the same numbers.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
const SET_REPLACE: i32 = 64;
const SET_ADD_COUNTERS: i32 = 65;

#[derive(Debug)]
pub struct Connection {
    family: Family,
    /// Any socket of the family works; an unconnected UDP socket needs no privilege to open. The kernel checks
    /// CAP_NET_ADMIN when the options are used.
    socket: OwnedFd,
}

/// The tables that exist in this network namespace. Reading a table that does not exist would create it.
pub fn tables(family: Family) -> Result<Vec<String>, Error> {
    let name = match family {
        Family::Ip => "ip_tables_names",
        Family::Ip6 => "ip6_tables_names",
    };
    // The namespace of the calling thread; `/proc/net` would be that of the process' main thread.
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

    /// The size of a table, without reading it.
    pub fn size(&self, name: &str) -> Result<Size, Error> {
        let malformed = |found: Malformed| Error::malformed("query table", self.describe(name), found);
        let mut info = named_header(name, INFO).map_err(malformed)?;
        sockopt::read(&self.socket, self.level(), GET_INFO, &mut info)
            .map_err(|errno| Error::refused("query table", self.describe(name), errno))?;
        Ok(Size { entries: table::count_in(&info), bytes: table::size_in(&info) })
    }

    pub fn read(&self, name: &str) -> Result<Table, Error> {
        let refused = |errno| Error::refused("read table", self.describe(name), errno);
        let malformed = |found: Malformed| Error::malformed("read table", self.describe(name), found);
        let mut info = named_header(name, INFO).map_err(malformed)?;
        sockopt::read(&self.socket, self.level(), GET_INFO, &mut info).map_err(refused)?;
        let size = table::size_in(&info);
        let header = named_header(name, ENTRIES_HEADER).map_err(malformed)?;
        // A table can have a hundred megabytes: `vec!` gets zeroed pages from the system, and the kernel's answer is not copied.
        let mut answer = vec![0; ENTRIES_HEADER + size];
        answer[..ENTRIES_HEADER].copy_from_slice(&header);
        answer[table::ENTRIES_SIZE].copy_from_slice(&(size as u32).to_ne_bytes());
        sockopt::read(&self.socket, self.level(), GET_ENTRIES, &mut answer).map_err(refused)?;
        Table::parse(self.family, &info, answer, ENTRIES_HEADER).map_err(malformed)
    }

    /// Replaces the table that the replacement was made from, and keeps the counters of its rules. `EAGAIN` means that the number
    /// of rules has changed since the table was read; a change that keeps the number goes unnoticed, so hold the lock of
    /// iptables meanwhile.
    pub fn replace(&self, mut replacement: Replacement) -> Result<(), Error> {
        let name = replacement.name();
        let failed = |operation, errno| Error::refused(operation, self.describe(&name), errno);
        let counted = sockopt::replace_table(&self.socket, self.level(), SET_REPLACE, &mut replacement)
            .map_err(|errno| failed("replace table", errno))?;
        let counters = replacement.counters(&counted);
        sockopt::add_counters(&self.socket, self.level(), SET_ADD_COUNTERS, &counters)
            .map_err(|errno| failed("restore the counters of", errno))
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
}
