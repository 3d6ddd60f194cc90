//! Messages of the API as tables: for each field its name in JSON, its number, its type, and when Go writes it. From the
//! `generated.proto` files of Kubernetes; fields that no test has are missing.

use super::super::kind::Kind;

/// The fields of a message, in the order of their numbers.
pub(super) type Message = &'static [Field];

#[derive(Debug)]
pub(super) struct Field {
    pub number: u32,
    pub name: &'static str,
    pub written: Written,
    pub value: Type,
}

/// When Go writes a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// A value, even if it is empty.
    Always,
    /// A pointer.
    IfPresent,
    /// A list: each entry.
    Each,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Type {
    Text,
    Number,
    Flag,
    Time,
    NumberOrName,
    /// From text to text.
    Map,
    /// JSON as it is, in a message of its own.
    Json,
    Message(Message),
}

const fn field(number: u32, name: &'static str, written: Written, value: Type) -> Field {
    Field { number, name, written, value }
}

const fn text(number: u32, name: &'static str) -> Field {
    field(number, name, Written::Always, Type::Text)
}

const fn optional_text(number: u32, name: &'static str) -> Field {
    field(number, name, Written::IfPresent, Type::Text)
}

const fn texts(number: u32, name: &'static str) -> Field {
    field(number, name, Written::Each, Type::Text)
}

const fn number(number: u32, name: &'static str) -> Field {
    field(number, name, Written::Always, Type::Number)
}

const fn optional_number(number: u32, name: &'static str) -> Field {
    field(number, name, Written::IfPresent, Type::Number)
}

const fn flag(number: u32, name: &'static str) -> Field {
    field(number, name, Written::Always, Type::Flag)
}

const fn optional_flag(number: u32, name: &'static str) -> Field {
    field(number, name, Written::IfPresent, Type::Flag)
}

const fn map(number: u32, name: &'static str) -> Field {
    field(number, name, Written::Always, Type::Map)
}

const fn message(number: u32, name: &'static str, of: Message) -> Field {
    field(number, name, Written::Always, Type::Message(of))
}

const fn optional(number: u32, name: &'static str, of: Message) -> Field {
    field(number, name, Written::IfPresent, Type::Message(of))
}

const fn each(number: u32, name: &'static str, of: Message) -> Field {
    field(number, name, Written::Each, Type::Message(of))
}

pub(super) fn of_kind(kind: Kind) -> Message {
    match kind {
        Kind::Service => SERVICE,
        Kind::EndpointSlice => ENDPOINT_SLICE,
        Kind::Node => NODE,
        Kind::ServiceCidr => SERVICE_CIDR,
        Kind::Event | Kind::Pod | Kind::Secret => METADATA_ONLY,
    }
}

/// Their other fields are not needed in this encoding: clients read these kinds in JSON.
const METADATA_ONLY: Message = &[message(1, "metadata", OBJECT_META)];

const OBJECT_META: Message = &[
    text(1, "name"),
    text(2, "generateName"),
    text(3, "namespace"),
    text(4, "selfLink"),
    text(5, "uid"),
    text(6, "resourceVersion"),
    number(7, "generation"),
    field(8, "creationTimestamp", Written::Always, Type::Time),
    field(9, "deletionTimestamp", Written::IfPresent, Type::Time),
    optional_number(10, "deletionGracePeriodSeconds"),
    map(11, "labels"),
    map(12, "annotations"),
    each(13, "ownerReferences", OWNER_REFERENCE),
    texts(14, "finalizers"),
    each(17, "managedFields", MANAGED_FIELDS),
];

const OWNER_REFERENCE: Message = &[
    text(1, "kind"),
    text(3, "name"),
    text(4, "uid"),
    text(5, "apiVersion"),
    optional_flag(6, "controller"),
    optional_flag(7, "blockOwnerDeletion"),
];

const MANAGED_FIELDS: Message = &[
    text(1, "manager"),
    text(2, "operation"),
    text(3, "apiVersion"),
    field(4, "time", Written::IfPresent, Type::Time),
    text(6, "fieldsType"),
    field(7, "fieldsV1", Written::IfPresent, Type::Json),
    text(8, "subresource"),
];

pub(super) const LIST_META: Message = &[
    text(1, "selfLink"),
    text(2, "resourceVersion"),
    text(3, "continue"),
    optional_number(4, "remainingItemCount"),
];

pub(super) const STATUS: Message = &[
    message(1, "metadata", LIST_META),
    text(2, "status"),
    text(3, "message"),
    text(4, "reason"),
    optional(5, "details", STATUS_DETAILS),
    number(6, "code"),
];

const STATUS_DETAILS: Message = &[
    text(1, "name"),
    text(2, "group"),
    text(3, "kind"),
    each(4, "causes", &[text(1, "reason"), text(2, "message"), text(3, "field")]),
    number(5, "retryAfterSeconds"),
    text(6, "uid"),
];

const SERVICE: Message = &[
    message(1, "metadata", OBJECT_META),
    message(2, "spec", SERVICE_SPEC),
    message(3, "status", SERVICE_STATUS),
];

const SERVICE_SPEC: Message = &[
    each(1, "ports", SERVICE_PORT),
    map(2, "selector"),
    text(3, "clusterIP"),
    text(4, "type"),
    texts(5, "externalIPs"),
    text(7, "sessionAffinity"),
    text(8, "loadBalancerIP"),
    texts(9, "loadBalancerSourceRanges"),
    text(10, "externalName"),
    text(11, "externalTrafficPolicy"),
    number(12, "healthCheckNodePort"),
    flag(13, "publishNotReadyAddresses"),
    optional(14, "sessionAffinityConfig", AFFINITY_CONFIG),
    optional_text(17, "ipFamilyPolicy"),
    texts(18, "clusterIPs"),
    texts(19, "ipFamilies"),
    optional_flag(20, "allocateLoadBalancerNodePorts"),
    optional_text(21, "loadBalancerClass"),
    optional_text(22, "internalTrafficPolicy"),
    optional_text(23, "trafficDistribution"),
];

const SERVICE_PORT: Message = &[
    text(1, "name"),
    text(2, "protocol"),
    number(3, "port"),
    // Go writes it always; API servers fill it in, and this one does not.
    field(4, "targetPort", Written::IfPresent, Type::NumberOrName),
    number(5, "nodePort"),
    optional_text(6, "appProtocol"),
];

const AFFINITY_CONFIG: Message = &[optional(1, "clientIP", &[optional_number(1, "timeoutSeconds")])];

const SERVICE_STATUS: Message = &[message(1, "loadBalancer", &[each(1, "ingress", INGRESS)])];

const INGRESS: Message = &[text(1, "ip"), text(2, "hostname"), optional_text(3, "ipMode")];

const ENDPOINT_SLICE: Message = &[
    message(1, "metadata", OBJECT_META),
    each(2, "endpoints", ENDPOINT),
    each(3, "ports", ENDPOINT_PORT),
    text(4, "addressType"),
];

const ENDPOINT: Message = &[
    texts(1, "addresses"),
    message(
        2,
        "conditions",
        &[optional_flag(1, "ready"), optional_flag(2, "serving"), optional_flag(3, "terminating")],
    ),
    optional_text(3, "hostname"),
    optional(4, "targetRef", OBJECT_REFERENCE),
    map(5, "deprecatedTopology"),
    optional_text(6, "nodeName"),
    optional_text(7, "zone"),
    optional(8, "hints", &[each(1, "forZones", &[text(1, "name")]), each(2, "forNodes", &[text(1, "name")])]),
];

const ENDPOINT_PORT: Message = &[
    optional_text(1, "name"),
    optional_text(2, "protocol"),
    optional_number(3, "port"),
    optional_text(4, "appProtocol"),
];

const OBJECT_REFERENCE: Message = &[
    text(1, "kind"),
    text(2, "namespace"),
    text(3, "name"),
    text(4, "uid"),
    text(5, "apiVersion"),
    text(6, "resourceVersion"),
    text(7, "fieldPath"),
];

const NODE: Message =
    &[message(1, "metadata", OBJECT_META), message(2, "spec", NODE_SPEC), message(3, "status", NODE_STATUS)];

const NODE_SPEC: Message = &[
    text(1, "podCIDR"),
    text(2, "externalID"),
    text(3, "providerID"),
    flag(4, "unschedulable"),
    each(
        5,
        "taints",
        &[
            text(1, "key"),
            text(2, "value"),
            text(3, "effect"),
            field(4, "timeAdded", Written::IfPresent, Type::Time),
        ],
    ),
    texts(7, "podCIDRs"),
];

const NODE_STATUS: Message = &[
    text(3, "phase"),
    each(5, "addresses", &[text(1, "type"), text(2, "address")]),
    message(6, "daemonEndpoints", &[message(1, "kubeletEndpoint", &[number(1, "Port")])]),
    message(7, "nodeInfo", NODE_INFO),
];

const NODE_INFO: Message = &[
    text(1, "machineID"),
    text(2, "systemUUID"),
    text(3, "bootID"),
    text(4, "kernelVersion"),
    text(5, "osImage"),
    text(6, "containerRuntimeVersion"),
    text(7, "kubeletVersion"),
    text(8, "kubeProxyVersion"),
    text(9, "operatingSystem"),
    text(10, "architecture"),
];

const SERVICE_CIDR: Message = &[
    message(1, "metadata", OBJECT_META),
    message(2, "spec", &[texts(1, "cidrs")]),
    message(3, "status", &[each(1, "conditions", CONDITION)]),
];

const CONDITION: Message = &[
    text(1, "type"),
    text(2, "status"),
    number(3, "observedGeneration"),
    field(4, "lastTransitionTime", Written::Always, Type::Time),
    text(5, "reason"),
    text(6, "message"),
];
