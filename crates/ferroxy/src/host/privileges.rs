//! Which privileges the agent keeps besides those of its mode, once the host is prepared.
//!
//! Not needed: SYS_RESOURCE (the OOM score is set before, and never changes), SYS_MODULE (the kernel loads its own modules
//! when netlink asks for them), DAC_OVERRIDE (files are read as the user we are).

use ferroxy_platform::Privilege;

use crate::config::Config;
use crate::wrapper;

/// The privileges that the configuration needs in any mode.
pub fn extra(config: &Config) -> Vec<Privilege> {
    let page = config.page.as_ref().map(|page| page.address);
    let mut served = [config.healthz, Some(config.metrics), page].into_iter().flatten();
    let low_port = served.any(|address| (1..1024).contains(&address.port()));
    let for_ports = low_port.then_some(Privilege::NetBindService);
    for_ports.into_iter().chain(wrapper::privileges(&config.sockets).iter().copied()).collect()
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

    fn extra_with(flags: &[&str]) -> Vec<Privilege> {
        let line = Line::try_parse_from(std::iter::once(&"ferroxy").chain(flags)).unwrap();
        extra(&Config::load(&line.flags, crate::modes::MODES).unwrap().0)
    }

    #[test]
    fn sockets_need_a_privilege_of_their_own() {
        assert_eq!(extra_with(&["--accelerate-sockets=host"]), [Privilege::Bpf]);
        assert_eq!(extra_with(&["--accelerate-sockets=off"]), []);
        let both = extra_with(&["--proxy-mode=ebpf", "--metrics-bind-address=127.0.0.1:249"]);
        assert_eq!(both, [Privilege::NetBindService, Privilege::Bpf]);
    }

    #[test]
    fn low_ports_need_a_privilege_of_their_own() {
        let low: &[Privilege] = &[Privilege::NetBindService];
        assert_eq!(extra_with(&["--metrics-bind-address=127.0.0.1:249"]), low);
        assert_eq!(extra_with(&["--healthz-bind-address=0.0.0.0:1023"]), low);
        assert_eq!(extra_with(&["--page-address=127.0.0.1:80"]), low);
        assert_eq!(extra_with(&["--healthz-bind-address=0.0.0.0:1024"]), []);
        assert_eq!(extra_with(&[]), []);
    }
}
