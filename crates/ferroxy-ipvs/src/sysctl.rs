//! The sysctls that this mode depends on.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::doors::Error;

/// Without these, the host answers ARP on every device for the addresses of all devices, ours included.
const STRICT_ARP: [(&str, &str); 2] =
    [("net/ipv4/conf/all/arp_ignore", "1"), ("net/ipv4/conf/all/arp_announce", "2")];

/// Writes values that differ. So a read-only file system, as in many containers, is only an error if a value is wrong.
pub fn set(strict_arp: bool) -> Result<(), Error> {
    let mut wanted = vec![
        // Rules must see balanced packets, too.
        ("net/ipv4/vs/conntrack", "1"),
        // Clients of an endpoint that was removed, or drains, go to another one.
        ("net/ipv4/vs/expire_nodest_conn", "1"),
        ("net/ipv4/vs/expire_quiescent_template", "1"),
        ("net/ipv4/ip_forward", "1"),
    ];
    if reuses_badly(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()) {
        wanted.push(("net/ipv4/vs/conn_reuse_mode", "0"));
    }
    if strict_arp {
        wanted.extend(STRICT_ARP);
    }
    wanted.into_iter().try_for_each(|(key, value)| ensure(key, value))
}

fn ensure(key: &str, value: &'static str) -> Result<(), Error> {
    let path = Path::new("/proc/sys").join(key);
    let failed = |source| Error::Setting { key: key.replace('/', "."), value, source };
    match fs::read_to_string(&path) {
        Ok(text) if text.trim() == value => Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
        _ => fs::write(&path, value).map_err(failed),
    }
}

/// From Linux 4.1 until 5.9, a client that reuses a port waits for a second, unless `conn_reuse_mode` is 0.
fn reuses_badly(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    ((4, 1)..(5, 9)).contains(&version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_reuse_badly() {
        for (release, expected) in [
            ("4.0.9", false),
            ("4.1.0", true),
            ("5.8.0-63-generic", true),
            ("5.9.0", false),
            ("6.1.0-54", false),
            ("", false),
        ] {
            assert_eq!(reuses_badly(release), expected, "{release}");
        }
    }
}
