//! The sets of the program: their types, sizes and timeouts.

use ferroxy_core::Family;
use ferroxy_netlink::nftables::{Datatype, Set, SetData};

use crate::element::{Counted, Scope, SetId};

/// How many clients of Service ports affinity remembers. Clients beyond that are balanced without affinity.
const AFFINITY_CLIENTS: u32 = 1_048_576;

/// How many pairs of frontend and endpoint are counted at once. Traffic of further pairs is not counted.
pub const TRAFFIC_ENTRIES: u32 = 65_536;

/// How long an unused pair is remembered: short enough that pairs of departed endpoints make room for others, and long enough
/// that every reader of metrics sees the last count.
const TRAFFIC_MEMORY_MS: u64 = 3_600_000;

/// How a set must be declared.
pub fn declaration(set: SetId, family: Family) -> Set {
    use Datatype::{InetProto, InetService, Integer32, Priority};
    let address = match family {
        Family::V4 => Datatype::Ipv4Addr,
        Family::V6 => Datatype::Ipv6Addr,
    };
    let frontend = |scope: Scope| match scope {
        Scope::Address => vec![address, InetProto, InetService],
        Scope::NodePort => vec![InetProto, InetService],
    };
    let around = |before: &[Datatype], scope: Scope, after: &[Datatype]| {
        [before.to_vec(), frontend(scope), after.to_vec()].concat()
    };
    let endpoint = || Some(SetData::Value(vec![address, InetService]));
    let verdict = || Some(SetData::Verdict);
    let treatment = || Some(SetData::Value(vec![Priority]));
    let (key, data, comment) = match set {
        SetId::ClusterIps => (vec![address], None, "cluster IPs in use"),
        SetId::NodePortIps => (vec![address], None, "addresses of this host that answer on node ports"),
        SetId::Firewalled => (frontend(Scope::Address), None, "frontends with loadBalancerSourceRanges"),
        SetId::AllowedSources => {
            (around(&[], Scope::Address, &[address]), None, "who may use the firewalled frontends")
        }
        SetId::Hairpins => {
            (vec![address, address, InetProto, InetService], None, "pods here that are endpoints")
        }
        SetId::SoleEndpoints => (frontend(Scope::Address), endpoint(), "cluster IPs with one endpoint"),
        SetId::Treatments(_) => (vec![Priority], verdict(), "number of a treatment : its chain"),
        SetId::Frontends(scope) => (frontend(scope), treatment(), "how a Service is treated"),
        SetId::LocalFrontends(scope) => {
            (frontend(scope), treatment(), "the same, for endpoints on this node")
        }
        SetId::NoEndpoints(scope) => (frontend(scope), None, "frontends without endpoints"),
        SetId::NoLocalEndpoints(scope) => (frontend(scope), None, "frontends without endpoints on this node"),
        SetId::Endpoints(scope, _) => {
            (around(&[Integer32], scope, &[]), endpoint(), "slot, frontend : endpoint")
        }
        SetId::StickyEndpoints(scope) | SetId::StickyLocalEndpoints(scope) => {
            (around(&[], scope, &[address]), verdict(), "current endpoints, for session affinity")
        }
        SetId::AffinityTimeouts(scope) => (frontend(scope), verdict(), "frontends with session affinity"),
        SetId::StickyAddresses => (vec![address], None, "endpoint addresses of session affinity"),
        SetId::StickyPorts(scope) => (frontend(scope), treatment(), "number of its Service port"),
        SetId::Affinity => (
            vec![address, Priority],
            Some(SetData::Value(vec![address])),
            "client, number of the Service port : endpoint",
        ),
        SetId::Traffic(counted) => {
            let comment = match counted {
                Counted::Connections => "first packets, by frontend and endpoint",
                Counted::Received => "packets to endpoints",
                Counted::Sent => "packets from endpoints",
            };
            (vec![InetProto, address, InetService, address, InetService], None, comment)
        }
    };
    let (size, timeout_ms) = match set {
        SetId::Affinity => (Some(AFFINITY_CLIENTS), None),
        SetId::Traffic(_) => (Some(TRAFFIC_ENTRIES), Some(TRAFFIC_MEMORY_MS)),
        _ => (None, None),
    };
    Set {
        name: set.name().into(),
        key,
        data,
        interval: set == SetId::AllowedSources,
        dynamic: set.is_runtime(),
        timeout_ms,
        size,
        comment: Some(comment.into()),
    }
}

/// The types of the fields of a set's keys.
pub fn key_types(set: SetId, family: Family) -> Vec<Datatype> {
    declaration(set, family).key
}
