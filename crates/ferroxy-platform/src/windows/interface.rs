//! Addresses on an interface, through IP Helper. Our addresses are recognised by two marks together: a prefix of the
//! address' own length, and `SkipAsSource` (the host never uses them as the source of its own connections).

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windows_sys::Win32::Foundation::{
    ERROR_FILE_NOT_FOUND, ERROR_NOT_FOUND, ERROR_OBJECT_ALREADY_EXISTS, NO_ERROR,
};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    ConvertInterfaceAliasToLuid, FreeMibTable, GetUnicastIpAddressTable, MIB_UNICASTIPADDRESS_ROW,
    MIB_UNICASTIPADDRESS_TABLE,
};
use windows_sys::Win32::NetworkManagement::Ndis::NET_LUID_LH;
use windows_sys::Win32::Networking::WinSock::{
    AF_INET, AF_INET6, AF_UNSPEC, IN_ADDR, IN_ADDR_0, IN6_ADDR, IN6_ADDR_0, IpDadStatePreferred, SOCKADDR_IN,
    SOCKADDR_IN6, SOCKADDR_INET,
};

use super::library::{Library, wide};

type Initialize = unsafe extern "system" fn(*mut MIB_UNICASTIPADDRESS_ROW);
type ReadRow = unsafe extern "system" fn(*mut MIB_UNICASTIPADDRESS_ROW) -> u32;
type OnRow = unsafe extern "system" fn(*const MIB_UNICASTIPADDRESS_ROW) -> u32;

pub fn list() -> io::Result<BTreeSet<IpAddr>> {
    super::addresses::all().map(|all| all.into_iter().collect())
}

pub fn create(name: &str, address: IpAddr) -> io::Result<bool> {
    let library = Library::load("iphlpapi.dll")?;
    // SAFETY: these functions have these types.
    let (initialize, create): (Initialize, OnRow) = unsafe {
        (
            library.function(c"InitializeUnicastIpAddressEntry")?,
            library.function(c"CreateUnicastIpAddressEntry")?,
        )
    };
    let mut row = MIB_UNICASTIPADDRESS_ROW::default();
    // SAFETY: the row lives here.
    unsafe { initialize(&raw mut row) };
    row.InterfaceLuid = luid(name)?;
    row.Address = socket_address(address);
    row.OnLinkPrefixLength = own_length(address);
    row.SkipAsSource = true;
    // No other host has the address: duplicate address detection is not needed, and sockets can listen at once.
    row.DadState = IpDadStatePreferred;
    // SAFETY: the row is filled in and lives here.
    match unsafe { create(&raw const row) } {
        NO_ERROR => Ok(true),
        ERROR_OBJECT_ALREADY_EXISTS => Ok(false),
        code => Err(os_error(code)),
    }
}

/// Deletes only our addresses. Addresses that are not on this interface are searched on all interfaces, in one list.
pub fn delete(name: &str, addresses: &[IpAddr]) -> Vec<io::Result<()>> {
    let luid = luid(name).ok();
    let mut all: Option<io::Result<Rows>> = None;
    let mut remove = |address: IpAddr| {
        if let Some(row) = luid.and_then(|luid| entry(luid, address)) {
            return if is_ours(&row) { delete_row(&row) } else { Ok(()) };
        }
        match all.get_or_insert_with(ours_by_address) {
            Ok(rows) => rows.get(&address).into_iter().flatten().try_for_each(delete_row),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    };
    addresses.iter().map(|address| remove(*address)).collect()
}

type Rows = HashMap<IpAddr, Vec<MIB_UNICASTIPADDRESS_ROW>>;

fn ours_by_address() -> io::Result<Rows> {
    let mut ours = Rows::new();
    for row in rows()?.into_iter().filter(is_ours) {
        if let Some(address) = ip(&row) {
            ours.entry(address).or_default().push(row);
        }
    }
    Ok(ours)
}

fn delete_row(row: &MIB_UNICASTIPADDRESS_ROW) -> io::Result<()> {
    let library = Library::load("iphlpapi.dll")?;
    // SAFETY: this function has this type.
    let delete: OnRow = unsafe { library.function(c"DeleteUnicastIpAddressEntry")? };
    // SAFETY: the row is one that the system wrote.
    match unsafe { delete(std::ptr::from_ref(row)) } {
        NO_ERROR | ERROR_NOT_FOUND | ERROR_FILE_NOT_FOUND => Ok(()),
        code => Err(os_error(code)),
    }
}

/// The row of this address on this interface, without a list of all rows.
fn entry(luid: NET_LUID_LH, address: IpAddr) -> Option<MIB_UNICASTIPADDRESS_ROW> {
    let library = Library::load("iphlpapi.dll").ok()?;
    // SAFETY: this function has this type.
    let read: ReadRow = unsafe { library.function(c"GetUnicastIpAddressEntry") }.ok()?;
    let mut row = MIB_UNICASTIPADDRESS_ROW {
        InterfaceLuid: luid,
        Address: socket_address(address),
        ..MIB_UNICASTIPADDRESS_ROW::default()
    };
    // SAFETY: the row names interface and address, and lives here.
    (unsafe { read(&raw mut row) } == NO_ERROR).then_some(row)
}

/// Addresses with our marks: they belong to Services, not to the host.
pub fn of_services() -> io::Result<BTreeSet<IpAddr>> {
    Ok(rows()?.iter().filter(|row| is_ours(row)).filter_map(ip).collect())
}

fn luid(name: &str) -> io::Result<NET_LUID_LH> {
    let mut luid = NET_LUID_LH::default();
    // SAFETY: the name ends with a zero, and the place for the answer lives here.
    match unsafe { ConvertInterfaceAliasToLuid(wide(name).as_ptr(), &raw mut luid) } {
        NO_ERROR => Ok(luid),
        _ => Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no interface {name:?}"))),
    }
}

fn rows() -> io::Result<Vec<MIB_UNICASTIPADDRESS_ROW>> {
    let mut table: *mut MIB_UNICASTIPADDRESS_TABLE = std::ptr::null_mut();
    // SAFETY: the place for the table's pointer lives here.
    match unsafe { GetUnicastIpAddressTable(AF_UNSPEC, &raw mut table) } {
        NO_ERROR if !table.is_null() => {}
        ERROR_NOT_FOUND | NO_ERROR => return Ok(Vec::new()),
        code => return Err(os_error(code)),
    }
    // SAFETY: the system has written the table: a number, and as many rows from its first one on.
    let rows = unsafe {
        let first = (&raw const (*table).Table).cast::<MIB_UNICASTIPADDRESS_ROW>();
        std::slice::from_raw_parts(first, (*table).NumEntries as usize).to_vec()
    };
    // SAFETY: the table is the system's, and nothing refers to it any more.
    unsafe { FreeMibTable(table.cast()) };
    Ok(rows)
}

fn is_ours(row: &MIB_UNICASTIPADDRESS_ROW) -> bool {
    row.SkipAsSource && ip(row).is_some_and(|ip| row.OnLinkPrefixLength == own_length(ip))
}

fn own_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn ip(row: &MIB_UNICASTIPADDRESS_ROW) -> Option<IpAddr> {
    // SAFETY: every form begins with the family, and an address of a family has its form.
    unsafe {
        match row.Address.si_family {
            AF_INET => Some(Ipv4Addr::from(row.Address.Ipv4.sin_addr.S_un.S_addr.to_ne_bytes()).into()),
            AF_INET6 => Some(Ipv6Addr::from(row.Address.Ipv6.sin6_addr.u.Byte).into()),
            _ => None,
        }
    }
}

fn socket_address(address: IpAddr) -> SOCKADDR_INET {
    match address {
        IpAddr::V4(ip) => {
            let bytes = IN_ADDR { S_un: IN_ADDR_0 { S_addr: u32::from_ne_bytes(ip.octets()) } };
            SOCKADDR_INET {
                Ipv4: SOCKADDR_IN { sin_family: AF_INET, sin_addr: bytes, ..SOCKADDR_IN::default() },
            }
        }
        IpAddr::V6(ip) => {
            let bytes = IN6_ADDR { u: IN6_ADDR_0 { Byte: ip.octets() } };
            SOCKADDR_INET {
                Ipv6: SOCKADDR_IN6 { sin6_family: AF_INET6, sin6_addr: bytes, ..SOCKADDR_IN6::default() },
            }
        }
    }
}

fn os_error(code: u32) -> io::Error {
    io::Error::from_raw_os_error(code.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(address: IpAddr, length: u8, skip: bool) -> MIB_UNICASTIPADDRESS_ROW {
        MIB_UNICASTIPADDRESS_ROW {
            Address: socket_address(address),
            OnLinkPrefixLength: length,
            SkipAsSource: skip,
            ..MIB_UNICASTIPADDRESS_ROW::default()
        }
    }

    #[test]
    fn ours_have_both_marks() {
        for (text, own) in [("10.96.0.1", 32), ("fd00::1", 128)] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(ip(&row(address, own, true)), Some(address));
            assert!(is_ours(&row(address, own, true)));
            assert!(!is_ours(&row(address, own, false)) && !is_ours(&row(address, 24, true)), "{text}");
        }
    }

    #[test]
    fn the_system_lists_addresses_and_none_is_ours() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        assert!(list().unwrap().contains(&loopback));
        assert!(!rows().unwrap().is_empty());
        assert!(of_services().unwrap().is_empty());
        assert!(delete("any interface", &[loopback]).iter().all(Result::is_ok));
        assert!(list().unwrap().contains(&loopback), "it was not ours");
    }

    #[test]
    fn an_entry_is_read_without_a_list() {
        let all = rows().unwrap();
        let row = all.iter().find(|row| ip(row) == Some([127, 0, 0, 1].into())).unwrap();
        let read = entry(row.InterfaceLuid, [127, 0, 0, 1].into()).unwrap();
        assert_eq!((ip(&read), read.OnLinkPrefixLength), (ip(row), row.OnLinkPrefixLength));
        assert!(entry(row.InterfaceLuid, [192, 0, 2, 77].into()).is_none());
    }

    #[test]
    fn an_address_that_the_host_has_is_not_added_again() {
        let mut interface = crate::interface::Interface::named("any interface");
        assert!(!interface.add([127, 0, 0, 1].into()).unwrap());
    }
}
