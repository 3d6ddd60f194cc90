//! Numbers of the Linux kernel that several protocols share. They are constants of our own because `libc` has those of the
//! platform it is built for: `AF_INET6` is 10 in a netlink message wherever the message is encoded, and 23 on Windows.

pub(crate) const AF_UNSPEC: u8 = 0;
pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_BRIDGE: u8 = 7;
pub(crate) const AF_INET6: u8 = 10;

pub(crate) const IPPROTO_TCP: u8 = 6;
pub(crate) const IPPROTO_UDP: u8 = 17;
pub(crate) const IPPROTO_SCTP: u8 = 132;

/// Subsystems of netfilter, the upper byte of a message type (`linux/netfilter/nfnetlink.h`).
pub(crate) mod subsystem {
    pub(crate) const CTNETLINK: u16 = 1;
    pub(crate) const IPSET: u16 = 6;
    pub(crate) const ACCT: u16 = 7;
    pub(crate) const NFTABLES: u16 = 10;
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn they_are_what_the_c_library_says() {
        let ours = [AF_UNSPEC, AF_INET, AF_BRIDGE, AF_INET6, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP];
        let theirs = [
            libc::AF_UNSPEC,
            libc::AF_INET,
            libc::AF_BRIDGE,
            libc::AF_INET6,
            libc::IPPROTO_TCP,
            libc::IPPROTO_UDP,
            libc::IPPROTO_SCTP,
        ];
        assert_eq!(ours.map(i32::from), theirs);
        let ours = [subsystem::CTNETLINK, subsystem::IPSET, subsystem::ACCT, subsystem::NFTABLES];
        let theirs = [
            libc::NFNL_SUBSYS_CTNETLINK,
            libc::NFNL_SUBSYS_IPSET,
            libc::NFNL_SUBSYS_ACCT,
            libc::NFNL_SUBSYS_NFTABLES,
        ];
        assert_eq!(ours.map(i32::from), theirs);
    }
}
