//! The connections to the kernel that this mode needs, opened once, and their errors.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_core::Family;
use ferroxy_dataplane::{Failure, FailureKind, Settings};
use ferroxy_iptables::door::Door;
use ferroxy_iptables::tool::{self, Bystander, Limits};
use ferroxy_iptables::xt::Sets;
use ferroxy_netlink::{ipset, ipvs, route};
use ipnet::IpNet;
use rustix::io::Errno;

use crate::state::DEVICE;

#[derive(Debug)]
pub struct Doors {
    /// One door for each family.
    pub rules: Vec<Door>,
    pub limits: Limits,
    pub bystander: Bystander,
    pub balancer: ipvs::Connection,
    pub sets: ipset::Connection,
    pub links: route::Connection,
    /// Virtual servers at these addresses belong to another program (`excludeCIDRs`).
    pub excluded: Vec<IpNet>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the kernel has no IPVS (module ip_vs), try `modprobe ip_vs`: {0}")]
    NoBalancer(ferroxy_netlink::Error),

    #[error("the kernel has no ipset (module ip_set), try `modprobe ip_set`: {0}")]
    NoSets(ferroxy_netlink::Error),

    #[error("the kernel has no IPVS scheduler {0} (module ip_vs_{0}), try `modprobe ip_vs_{0}`")]
    NoScheduler(String),

    #[error("the kernel has no dummy devices (module dummy), try `modprobe dummy`: {0}")]
    NoDummies(ferroxy_netlink::Error),

    #[error(transparent)]
    Kernel(#[from] ferroxy_netlink::Error),

    #[error(transparent)]
    Tool(#[from] tool::Error),

    /// An operation that belongs to no Service was refused, with the kernel's reason.
    #[error("{0}")]
    Refused(String),

    #[error("cannot set {key} to {value}: {source}")]
    Setting { key: String, value: &'static str, source: std::io::Error },
}

impl Error {
    /// The process lacks privileges.
    pub fn is_not_permitted(&self) -> bool {
        match self {
            Error::NoBalancer(error)
            | Error::NoSets(error)
            | Error::NoDummies(error)
            | Error::Kernel(error) => matches!(error.errno, Errno::PERM | Errno::ACCESS),
            Error::Tool(error) => error.is_not_permitted(),
            Error::NoScheduler(_) | Error::Refused(_) | Error::Setting { .. } => false,
        }
    }
}

/// No error becomes [`FailureKind::Drift`], because after any error the next attempt reads the kernel.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            error if error.is_not_permitted() => Failure::new(
                FailureKind::NotPermitted,
                format!("{error}; run as root, or with CAP_NET_ADMIN and CAP_NET_RAW"),
            ),
            Error::NoBalancer(_) | Error::NoSets(_) | Error::NoScheduler(_) | Error::NoDummies(_) => {
                Failure::unsupported(error)
            }
            Error::Tool(error) => error.into(),
            error => Failure::other(error),
        }
    }
}

impl Doors {
    /// Makes the kernel load its modules, if they are not built in.
    pub fn open(families: &[Family], settings: &Settings) -> Result<Doors, Error> {
        Ok(Doors {
            rules: families
                .iter()
                .map(|family| Ok(Door::open(*family, settings)?))
                .collect::<Result<_, Error>>()?,
            limits: Limits::default(),
            bystander: Bystander::default(),
            balancer: ipvs::Connection::open().map_err(|error| match ipvs::is_missing(&error) {
                true => Error::NoBalancer(error),
                false => error.into(),
            })?,
            sets: ipset::Connection::open().map_err(|error| match ipset::is_missing(&error) {
                true => Error::NoSets(error),
                false => error.into(),
            })?,
            links: route::Connection::open()?,
            excluded: Vec::new(),
        })
    }

    pub fn families(&self) -> Vec<Family> {
        self.rules.iter().map(|door| door.family).collect()
    }

    /// Passes the numbers of all sets to the doors of the rules: rules refer to sets by number.
    pub fn look_up_sets(&mut self) -> Result<(), Error> {
        if self.rules.iter().any(Door::is_builtin) {
            let sets: Sets = self.sets.numbers()?.into_iter().collect();
            self.rules.iter_mut().for_each(|door| door.know(&sets));
        }
        Ok(())
    }

    /// The index of our device, if it is there.
    pub fn device(&mut self) -> Result<Option<u32>, Error> {
        match self.links.link(DEVICE) {
            Ok(link) => Ok(Some(link.index)),
            Err(error) if error.errno == Errno::NODEV => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The addresses of all devices but ours.
    pub fn host_addresses(&mut self) -> Result<BTreeSet<IpAddr>, Error> {
        let device = self.device()?;
        let addresses = self.links.addresses()?;
        Ok(addresses.into_iter().filter(|it| Some(it.link) != device).map(|it| it.ip).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(errno: Errno) -> ferroxy_netlink::Error {
        ferroxy_netlink::Error::refused("list", "virtual servers", errno)
    }

    fn tool(said: &str) -> Error {
        tool::Error::Failed { tool: "iptables-restore".into(), status: 4, said: said.into() }.into()
    }

    #[test]
    fn every_error_has_a_kind_that_says_what_to_do() {
        let setting = Error::Setting {
            key: "net/ipv4/vs/conntrack".into(),
            value: "1",
            source: std::io::Error::from_raw_os_error(Errno::ROFS.raw_os_error()),
        };
        let missing = tool::Error::Missing { tool: "iptables-save".into(), searched: "/sbin".into() };
        for (error, kind) in [
            (Error::NoBalancer(kernel(Errno::NOENT)), FailureKind::Unsupported),
            (Error::NoSets(kernel(Errno::NOENT)), FailureKind::Unsupported),
            (Error::NoDummies(kernel(Errno::OPNOTSUPP)), FailureKind::Unsupported),
            (Error::NoScheduler("mh".into()), FailureKind::Unsupported),
            (missing.into(), FailureKind::Unsupported),
            (Error::NoBalancer(kernel(Errno::PERM)), FailureKind::NotPermitted),
            (Error::NoSets(kernel(Errno::ACCESS)), FailureKind::NotPermitted),
            (Error::NoDummies(kernel(Errno::PERM)), FailureKind::NotPermitted),
            (Error::Kernel(kernel(Errno::PERM)), FailureKind::NotPermitted),
            (tool("Permission denied (you must be root)"), FailureKind::NotPermitted),
            (Error::Kernel(kernel(Errno::NOBUFS)), FailureKind::Other),
            (tool("Resource temporarily unavailable"), FailureKind::Other),
            (Error::Refused("File exists".into()), FailureKind::Other),
            (setting, FailureKind::Other),
        ] {
            let text = error.to_string();
            let failure = Failure::from(error);
            assert_eq!(failure.kind, kind, "{text}");
            let advice = failure.to_string().contains("CAP_NET_ADMIN");
            assert!(failure.to_string().starts_with(&text), "{failure}");
            assert_eq!(advice, kind == FailureKind::NotPermitted, "{failure}");
        }
    }
}
