//! The sysctls that iptables mode reads or writes. The caller decides which value is right.
//!
//! `/proc/sys/net` shows the network namespace of the calling thread.

use std::fs;
use std::io::ErrorKind;

use super::Error;

const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";
const BE_LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";

/// Whether packets of 127.0.0.0/8 may leave the loopback interface, which node ports on localhost need.
pub fn route_localnet() -> Result<bool, Error> {
    read(ROUTE_LOCALNET).map(|value| value == "1")
}

/// Writes only if needed: in a container the value may be right and read-only.
pub fn set_route_localnet() -> Result<(), Error> {
    if route_localnet()? {
        return Ok(());
    }
    let value = "1";
    fs::write(path(ROUTE_LOCALNET), value).map_err(|source| Error::WriteSetting {
        key: ROUTE_LOCALNET,
        value,
        source,
    })
}

/// Whether connection tracking accepts TCP segments outside the window. `None` if it is not loaded (yet).
pub fn tcp_be_liberal() -> Result<Option<bool>, Error> {
    match read(BE_LIBERAL) {
        Ok(value) => Ok(Some(value != "0")),
        Err(Error::ReadSetting { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read(key: &'static str) -> Result<String, Error> {
    let value = fs::read_to_string(path(key)).map_err(|source| Error::ReadSetting { key, source })?;
    Ok(value.trim().to_owned())
}

fn path(key: &str) -> String {
    format!("/proc/sys/{key}")
}
