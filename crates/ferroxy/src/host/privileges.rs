//! Which privileges the agent keeps in each mode, once the host is prepared.

use ferroxy_platform::{Privilege, Privileges};

use crate::config::{Config, Mode};

/// What a mode needs.
///
/// Not needed: SYS_RESOURCE (the OOM score is set before, and never changes), SYS_MODULE (the kernel loads its own modules
/// when netlink asks for them), DAC_OVERRIDE (files are read as the user we are).
pub fn of_mode(mode: Mode) -> Privileges {
    match mode {
        // Rules, tracked connections and addresses, all over netlink; large socket buffers; settings under
        // net.* sysctls; legacy iptables' tables.
        Mode::Nftables => Privileges { own: &[Privilege::NetAdmin], programs: &[] },
        // These run iptables' programs, which need both: legacy iptables opens a raw socket.
        Mode::Iptables | Mode::Ipvs | Mode::Unset => Privileges { own: IPTABLES, programs: IPTABLES },
    }
}

const IPTABLES: &[Privilege] = &[Privilege::NetAdmin, Privilege::NetRaw];

/// What the configuration needs in any mode.
pub fn extra(config: &Config) -> &'static [Privilege] {
    let mut served = [config.healthz, Some(config.metrics)].into_iter().flatten();
    let low_port = served.any(|address| (1..1024).contains(&address.port()));
    if low_port { &[Privilege::NetBindService] } else { &[] }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::flags::Flags;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn extra_with(flags: &[&str]) -> &'static [Privilege] {
        let line = Line::try_parse_from(std::iter::once(&"ferroxy").chain(flags)).unwrap();
        extra(&Config::load(&line.flags).unwrap().0)
    }

    #[test]
    fn only_modes_that_run_programs_need_more_than_net_admin() {
        let nftables = Privileges { own: &[Privilege::NetAdmin], programs: &[] };
        assert_eq!(of_mode(Mode::Nftables), nftables);
        let both: &[Privilege] = &[Privilege::NetAdmin, Privilege::NetRaw];
        for mode in [Mode::Iptables, Mode::Ipvs] {
            assert_eq!(of_mode(mode), Privileges { own: both, programs: both }, "{mode:?}");
        }
    }

    #[test]
    fn low_ports_need_a_privilege_of_their_own() {
        let low: &[Privilege] = &[Privilege::NetBindService];
        assert_eq!(extra_with(&["--metrics-bind-address=127.0.0.1:249"]), low);
        assert_eq!(extra_with(&["--healthz-bind-address=0.0.0.0:1023"]), low);
        assert_eq!(extra_with(&["--healthz-bind-address=0.0.0.0:1024"]), []);
        assert_eq!(extra_with(&[]), []);
    }
}
