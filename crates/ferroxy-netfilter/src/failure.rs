//! Turns an error of ferroxy-netlink into the contract's Failure.

use ferroxy_dataplane::{Failure, FailureKind};
use ferroxy_netlink::error::Error;
use rustix::io::Errno;

/// How to get the privilege to program nf_tables, IPVS and connection tracking, for people.
pub const PERMISSION_HINT: &str = "run as root, or with CAP_NET_ADMIN";

/// The Failure for an error that does not indicate drift. For a missing privilege, it says how to get the privilege.
pub fn of(error: Error) -> Failure {
    if is_not_permitted(&error) {
        Failure::new(FailureKind::NotPermitted, format!("{error}; {PERMISSION_HINT}"))
    } else {
        Failure::other(error)
    }
}

/// The process lacks CAP_NET_ADMIN.
pub fn is_not_permitted(error: &Error) -> bool {
    error.errno == Errno::PERM
}

/// Whether the error shows that the kernel differs from what the dataplane recorded: an object is missing, already
/// there, or in use.
pub fn suggests_drift(error: &Error) -> bool {
    matches!(error.errno, Errno::NOENT | Errno::EXIST | Errno::BUSY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_privilege_is_named() {
        let failure = of(Error::refused("list tables", "", Errno::PERM));
        assert_eq!(failure.kind, FailureKind::NotPermitted);
        let expected = "cannot list tables: Operation not permitted; run as root, or with CAP_NET_ADMIN";
        assert_eq!(failure.to_string(), expected);
        let failure = of(Error::refused("list tables", "", Errno::NOENT));
        assert_eq!((failure.kind, failure.is_drift()), (FailureKind::Other, false));
    }
}
