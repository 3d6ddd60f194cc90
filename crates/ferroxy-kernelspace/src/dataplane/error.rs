//! Why the dataplane cannot work, for people.

use std::net::IpAddr;

use ferroxy_dataplane::{Failure, FailureKind};
use ferroxy_hcn::{ErrorKind, Version};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Hns(#[from] ferroxy_hcn::Error),
    #[error(
        "no HNS network is configured: set winkernel.networkName, --network-name, or KUBE_NETWORK in the environment"
    )]
    NoNetworkName,
    #[error(
        "HNS has no network {name} (it has: {}); what is in force stays: check the name and the network plugin",
        if others.is_empty() { "none" } else { others }
    )]
    NoNetwork { name: String, others: String },
    #[error("HNS {0} is too old: kernelspace mode needs 9.2, which is Windows Server 2019")]
    TooOld(Version),
    #[error(
        "winkernel.enableDSR: HNS {0} has no direct server return (Windows Server 2019 has it since KB4571748)"
    )]
    NoDsr(Version),
    #[error(
        "network {0} is an overlay, and no source VIP is known: set winkernel.sourceVip to an address of this node's pod range \
         that is reserved for it"
    )]
    NoSourceVip(String),
    #[error("winkernel.sourceVip: `{0}` is not an IP address")]
    BadSourceVip(String),
    #[error(
        "winkernel.sourceVip: {ip} is the address of the endpoint {name:?} already: reserve another one of this node's pod range"
    )]
    SourceVipTaken { ip: IpAddr, name: String },
    #[error("the address of this node is not known yet")]
    NoNodeIp,
    #[error("no network interface of this host has the node's address {0}")]
    NoMac(IpAddr),
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// Silence, or an answer that says nothing about the object.
    pub fn is_silence(&self) -> bool {
        matches!(self, Error::Hns(error) if error.kind() == ErrorKind::Unknown)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let kind = match &error {
            Error::TooOld(_) | Error::NoDsr(_) => FailureKind::Unsupported,
            Error::Hns(hns) => match hns.kind() {
                ErrorKind::Unsupported => FailureKind::Unsupported,
                ErrorKind::NotPermitted => FailureKind::NotPermitted,
                ErrorKind::NotFound | ErrorKind::NetworkNotFound | ErrorKind::StaleReference => {
                    FailureKind::Drift
                }
                _ => FailureKind::Other,
            },
            _ => FailureKind::Other,
        };
        Failure::new(kind, error)
    }
}
