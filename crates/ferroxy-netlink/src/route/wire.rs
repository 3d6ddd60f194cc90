//! Numbers of rtnetlink (`linux/rtnetlink.h`, `if_link.h`, `if_addr.h`, `if.h`, `veth.h`). Constants of our own, because `libc`
//! has them on Linux only.

// Message types.
pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
pub(super) const RTM_GETLINK: u16 = 18;
pub(super) const RTM_SETLINK: u16 = 19;
pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_DELADDR: u16 = 21;
pub(super) const RTM_GETADDR: u16 = 22;
pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
pub(super) const RTM_GETROUTE: u16 = 26;

// Notification groups.
pub(super) const RTNLGRP_IPV4_IFADDR: u32 = 5;
pub(super) const RTNLGRP_IPV6_IFADDR: u32 = 9;

// Attributes and flags of addresses.
pub(super) const IFA_ADDRESS: u16 = 1;
pub(super) const IFA_LOCAL: u16 = 2;
pub(super) const IFA_FLAGS: u16 = 8;
pub(super) const IFA_F_NODAD: u32 = 2;

// Attributes of links.
pub(super) const IFLA_ADDRESS: u16 = 1;
pub(super) const IFLA_IFNAME: u16 = 3;
pub(super) const IFLA_MASTER: u16 = 10;
pub(super) const IFLA_PROTINFO: u16 = 12;
pub(super) const IFLA_OPERSTATE: u16 = 16;
pub(super) const IFLA_LINKINFO: u16 = 18;
pub(super) const IFLA_NET_NS_FD: u16 = 28;

// Attributes and values of routes.
pub(super) const RTA_DST: u16 = 1;
pub(super) const RTA_OIF: u16 = 4;
pub(super) const RTA_GATEWAY: u16 = 5;
pub(super) const RT_TABLE_MAIN: u8 = 254;
pub(super) const RTPROT_STATIC: u8 = 4;
pub(super) const RT_SCOPE_UNIVERSE: u8 = 0;
pub(super) const RT_SCOPE_LINK: u8 = 253;
pub(super) const RTN_UNICAST: u8 = 1;
pub(super) const RT_TABLE_LOCAL: u8 = 255;
pub(super) const RT_SCOPE_HOST: u8 = 254;
pub(super) const RTN_LOCAL: u8 = 2;
/// `lo` is the first link of every network namespace.
pub(super) const LOOPBACK_INDEX: u32 = 1;

// Flags and states of links.
pub(super) const IFF_UP: u32 = 1;
pub(super) const IF_OPER_UP: u8 = 6;

// Attributes inside of IFLA_LINKINFO, of bridge ports and of veth.
pub(super) const IFLA_INFO_KIND: u16 = 1;
pub(super) const IFLA_INFO_DATA: u16 = 2;
pub(super) const IFLA_INFO_SLAVE_KIND: u16 = 4;
pub(super) const IFLA_INFO_SLAVE_DATA: u16 = 5;
pub(super) const IFLA_BRPORT_MODE: u16 = 4;
pub(super) const VETH_INFO_PEER: u16 = 1;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn they_are_what_the_c_library_says() {
        macro_rules! same {
            ($($name:ident)*) => { $(assert_eq!($name, libc::$name, stringify!($name));)* };
        }
        same! {
            RTM_NEWLINK RTM_DELLINK RTM_GETLINK RTM_SETLINK RTM_NEWADDR RTM_DELADDR RTM_GETADDR RTM_NEWROUTE
            RTM_DELROUTE RTNLGRP_IPV4_IFADDR RTNLGRP_IPV6_IFADDR IFA_ADDRESS IFA_LOCAL IFA_FLAGS IFA_F_NODAD
            IFLA_ADDRESS IFLA_IFNAME IFLA_MASTER IFLA_PROTINFO IFLA_OPERSTATE IFLA_LINKINFO IFLA_NET_NS_FD
            RTA_DST RTA_OIF RTA_GATEWAY RT_TABLE_MAIN RTPROT_STATIC RT_SCOPE_UNIVERSE RT_SCOPE_LINK
            RTN_UNICAST RTM_GETROUTE RT_TABLE_LOCAL RT_SCOPE_HOST RTN_LOCAL
        }
        assert_eq!(IFF_UP, libc::IFF_UP as u32);
    }
}
