//! The host's addresses from the list of network adapters. Changes are found by comparing lists.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windows_sys::Win32::Foundation::{ERROR_BUFFER_OVERFLOW, ERROR_NO_DATA, NO_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    GAA_FLAG_SKIP_ANYCAST, GAA_FLAG_SKIP_DNS_SERVER, GAA_FLAG_SKIP_MULTICAST, GetAdaptersAddresses,
    IP_ADAPTER_ADDRESSES_LH,
};
use windows_sys::Win32::Networking::WinSock::{
    AF_INET, AF_INET6, AF_UNSPEC, SOCKADDR_IN, SOCKADDR_IN6, SOCKET_ADDRESS,
};

pub use crate::any::addresses::watch;

/// Adapters may be added between asking for the size and asking for the list.
const ATTEMPTS: usize = 4;

/// Devices go by their friendly names ("Ethernet 2"). Addresses that this program put on an interface are left out.
pub fn addresses(except_devices: &[&str]) -> io::Result<Vec<IpAddr>> {
    let mut found = all_except(except_devices)?;
    let of_services = super::interface::of_services()?;
    found.retain(|ip| !of_services.contains(ip));
    Ok(found)
}

pub fn all() -> io::Result<Vec<IpAddr>> {
    all_except(&[])
}

fn all_except(except_devices: &[&str]) -> io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    for_each_adapter(|adapter, addresses| {
        // SAFETY: the name is null or ends with a zero, as the system wrote it.
        if !unsafe { is_one_of(adapter.FriendlyName, except_devices) } {
            found.extend(addresses);
        }
    })?;
    Ok(found)
}

pub fn hardware_address(wanted: IpAddr) -> io::Result<Option<[u8; 6]>> {
    let mut found = None;
    for_each_adapter(|adapter, addresses| {
        let bytes = adapter.PhysicalAddress.get(..adapter.PhysicalAddressLength as usize);
        if addresses.contains(&wanted) && found.is_none() {
            found = bytes.and_then(|bytes| bytes.try_into().ok());
        }
    })?;
    Ok(found)
}

/// Visits each adapter with its addresses.
fn for_each_adapter(mut visit: impl FnMut(&IP_ADAPTER_ADDRESSES_LH, Vec<IpAddr>)) -> io::Result<()> {
    let list = adapters()?;
    let mut adapter = list.as_ptr().cast::<IP_ADAPTER_ADDRESSES_LH>();
    // SAFETY: the system has filled the list, and it lives until the end of this function. Its pointers are null or lead
    // into it.
    while let Some(it) = unsafe { adapter.as_ref() } {
        adapter = it.Next;
        let mut addresses = Vec::new();
        let mut unicast = it.FirstUnicastAddress;
        // SAFETY: as above.
        while let Some(address) = unsafe { unicast.as_ref() } {
            unicast = address.Next;
            // SAFETY: as above.
            addresses.extend(unsafe { ip(&address.Address) });
        }
        visit(it, addresses);
    }
    Ok(())
}

/// The list of adapters, in words so that it is aligned; empty when there are none.
fn adapters() -> io::Result<Vec<u64>> {
    const FLAGS: u32 = GAA_FLAG_SKIP_ANYCAST | GAA_FLAG_SKIP_MULTICAST | GAA_FLAG_SKIP_DNS_SERVER;
    // The size that the system's documentation recommends for the first attempt.
    let mut size = 15 * 1024;
    for _ in 0..ATTEMPTS {
        let mut list = vec![0u64; (size as usize).div_ceil(size_of::<u64>())];
        // SAFETY: the list has at least the size that is passed with it.
        let code = unsafe {
            GetAdaptersAddresses(
                AF_UNSPEC.into(),
                FLAGS,
                std::ptr::null(),
                list.as_mut_ptr().cast(),
                &raw mut size,
            )
        };
        match code {
            NO_ERROR => return Ok(list),
            // One adapter of zeros: it has no address and no successor.
            ERROR_NO_DATA => return Ok(vec![0; size_of::<IP_ADAPTER_ADDRESSES_LH>()]),
            ERROR_BUFFER_OVERFLOW => {}
            code => return Err(io::Error::from_raw_os_error(code.cast_signed())),
        }
    }
    Err(io::Error::other("the list of network adapters keeps growing"))
}

/// # Safety
/// `name` is null or ends with a zero.
unsafe fn is_one_of(name: *const u16, names: &[&str]) -> bool {
    if name.is_null() {
        return false;
    }
    // SAFETY: as promised by the caller, every place up to the zero can be read.
    let units = (0..).map(|at| unsafe { *name.add(at) }).take_while(|unit| *unit != 0);
    let name = String::from_utf16_lossy(&units.collect::<Vec<u16>>());
    names.contains(&name.as_str())
}

/// # Safety
/// The pointer in `address` is null or leads to a socket address of the family it states.
unsafe fn ip(address: &SOCKET_ADDRESS) -> Option<IpAddr> {
    // SAFETY: as promised by the caller.
    match unsafe { address.lpSockaddr.as_ref()? }.sa_family {
        AF_INET => {
            // SAFETY: an address of this family has this form.
            let bytes = unsafe { (*address.lpSockaddr.cast::<SOCKADDR_IN>()).sin_addr.S_un.S_addr };
            Some(Ipv4Addr::from(bytes.to_ne_bytes()).into())
        }
        AF_INET6 => {
            // SAFETY: an address of this family has this form.
            let bytes = unsafe { (*address.lpSockaddr.cast::<SOCKADDR_IN6>()).sin6_addr.u.Byte };
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}
