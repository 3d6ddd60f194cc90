//! `v1` Service: the fields that a proxy reads.

use ferroxy_core::event;
use serde::Deserialize;

use super::field::{Field, Notes, NumberOrName, mappings};
use super::metadata::{Identity, Metadata};
use super::{Decoded, Wire};
use crate::object::Object;

/// A Service with this label belongs to another proxy.
pub(crate) const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Service {
    metadata: Field<Metadata>,
    spec: Field<Spec>,
    status: Field<Status>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    r#type: Field<String>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Field<String>,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Field<Vec<Field<String>>>,
    ip_families: Field<Vec<Field<String>>>,
    ports: Field<Vec<Field<Port>>>,
    #[serde(rename = "externalIPs")]
    external_ips: Field<Vec<Field<String>>>,
    session_affinity: Field<String>,
    session_affinity_config: Field<AffinityConfig>,
    internal_traffic_policy: Field<String>,
    external_traffic_policy: Field<String>,
    health_check_node_port: Field<i64>,
    load_balancer_source_ranges: Field<Vec<Field<String>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    name: Field<String>,
    protocol: Field<String>,
    port: Field<i64>,
    node_port: Field<i64>,
    target_port: Field<NumberOrName>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AffinityConfig {
    #[serde(rename = "clientIP")]
    client_ip: Field<ClientIp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientIp {
    timeout_seconds: Field<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    load_balancer: Field<LoadBalancer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LoadBalancer {
    ingress: Field<Vec<Field<Ingress>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ingress {
    ip: Field<String>,
    ip_mode: Field<String>,
}

mappings!(Spec, Port, AffinityConfig, ClientIp, Status, LoadBalancer, Ingress);

impl Wire for Service {
    fn metadata(&mut self) -> &mut Field<Metadata> {
        &mut self.metadata
    }

    fn read(self, notes: &mut Notes) -> Decoded {
        let Some(mut identity) = Identity::read(self.metadata, notes) else { return Decoded::Nameless };
        let proxy_name = identity.label(PROXY_NAME, notes);
        let annotations = identity.annotations(notes);
        let spec = self.spec.take(format_args!("spec"), notes).unwrap_or_default();
        Decoded::Object(Object::service(event::Service {
            proxy_name,
            annotations,
            ingress: ingress(self.status, notes),
            name: identity.name,
            namespace: identity.namespace,
            created: identity.created,
            ..spec.read(notes)
        }))
    }
}

impl Spec {
    fn read(self, notes: &mut Notes) -> event::Service {
        let ports = self.ports.entries(format_args!("spec.ports"), notes);
        event::Service {
            kind: self.r#type.take(format_args!("spec.type"), notes).unwrap_or_default(),
            cluster_ip: self.cluster_ip.take(format_args!("spec.clusterIP"), notes).unwrap_or_default(),
            cluster_ips: self.cluster_ips.texts(format_args!("spec.clusterIPs"), notes),
            ip_families: self.ip_families.texts(format_args!("spec.ipFamilies"), notes),
            ports: ports.into_iter().map(|(i, port)| port.read(i, notes)).collect(),
            external_ips: self.external_ips.texts(format_args!("spec.externalIPs"), notes),
            session_affinity: self
                .session_affinity
                .take(format_args!("spec.sessionAffinity"), notes)
                .unwrap_or_default(),
            affinity_timeout_seconds: affinity_timeout(self.session_affinity_config, notes),
            internal_traffic_policy: self
                .internal_traffic_policy
                .take(format_args!("spec.internalTrafficPolicy"), notes)
                .unwrap_or_default(),
            external_traffic_policy: self
                .external_traffic_policy
                .take(format_args!("spec.externalTrafficPolicy"), notes)
                .unwrap_or_default(),
            health_check_node_port: self
                .health_check_node_port
                .take(format_args!("spec.healthCheckNodePort"), notes)
                .unwrap_or_default(),
            load_balancer_source_ranges: self
                .load_balancer_source_ranges
                .texts(format_args!("spec.loadBalancerSourceRanges"), notes),
            ..event::Service::default()
        }
    }
}

impl Port {
    fn read(self, i: usize, notes: &mut Notes) -> event::ServicePort {
        let at = format_args!("spec.ports[{i}]");
        let target_port = self.target_port.take(format_args!("{at}.targetPort"), notes);
        event::ServicePort {
            name: self.name.take(format_args!("{at}.name"), notes).unwrap_or_default(),
            protocol: self.protocol.take(format_args!("{at}.protocol"), notes).unwrap_or_default(),
            port: self.port.take(format_args!("{at}.port"), notes).unwrap_or_default(),
            node_port: self.node_port.take(format_args!("{at}.nodePort"), notes).unwrap_or_default(),
            target_port: target_port.map(|it| it.0).unwrap_or_default(),
        }
    }
}

fn affinity_timeout(config: Field<AffinityConfig>, notes: &mut Notes) -> Option<i64> {
    let config = config.take(format_args!("spec.sessionAffinityConfig"), notes)?;
    let client_ip = config.client_ip.take(format_args!("spec.sessionAffinityConfig.clientIP"), notes)?;
    client_ip.timeout_seconds.take(format_args!("spec.sessionAffinityConfig.clientIP.timeoutSeconds"), notes)
}

fn ingress(status: Field<Status>, notes: &mut Notes) -> Vec<event::Ingress> {
    let Some(status) = status.take(format_args!("status"), notes) else { return Vec::new() };
    let Some(balancer) = status.load_balancer.take(format_args!("status.loadBalancer"), notes) else {
        return Vec::new();
    };
    let entries = balancer.ingress.entries(format_args!("status.loadBalancer.ingress"), notes);
    let read = |(i, entry): (usize, Ingress)| {
        let at = format_args!("status.loadBalancer.ingress[{i}]");
        event::Ingress {
            ip: entry.ip.take(format_args!("{at}.ip"), notes).unwrap_or_default(),
            ip_mode: entry.ip_mode.take(format_args!("{at}.ipMode"), notes).unwrap_or_default(),
        }
    };
    entries.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use ferroxy_core::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::object::Kind;

    fn read(value: Value) -> (event::Service, Vec<String>) {
        let mut notes = Notes::default();
        match super::super::decode(Kind::Service, value, &mut notes).unwrap() {
            Decoded::Object(object) => {
                let Event::Service(service) = object.into() else { panic!() };
                (service, notes.0.into_iter().map(|note| note.field).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_field() {
        let (service, notes) = read(json!({
            "metadata": {
                "name": "web", "namespace": "shop", "creationTimestamp": "1970-01-01T00:00:09Z",
                "labels": {PROXY_NAME: "other"}, "annotations": {"ferroxy.io/scheduler": "lc", "a": "b"},
            },
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.96.0.80", "clusterIPs": ["10.96.0.80", "fd00::80"],
                "ipFamilies": ["IPv4", "IPv6"], "externalIPs": ["203.0.113.9"],
                "ports": [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080, "targetPort": "web"}],
                "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
                "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Cluster", "healthCheckNodePort": 31000,
                "loadBalancerSourceRanges": ["192.0.2.0/24"], "ipFamilyPolicy": "PreferDualStack",
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1", "ipMode": "Proxy"}, {"hostname": "x"}]}},
        }));
        assert!(notes.is_empty(), "{notes:?}");
        let texts = |list: &[&str]| list.iter().map(|it| it.to_string()).collect::<Vec<_>>();
        let expected = event::Service {
            namespace: "shop".into(),
            name: "web".into(),
            created: Some(9),
            proxy_name: Some("other".into()),
            annotations: vec![("ferroxy.io/scheduler".into(), "lc".into())],
            kind: "LoadBalancer".into(),
            cluster_ip: "10.96.0.80".into(),
            cluster_ips: texts(&["10.96.0.80", "fd00::80"]),
            ip_families: texts(&["IPv4", "IPv6"]),
            ports: vec![event::ServicePort {
                name: "http".into(),
                protocol: "TCP".into(),
                port: 80,
                node_port: 30080,
                target_port: "web".into(),
            }],
            external_ips: texts(&["203.0.113.9"]),
            session_affinity: "ClientIP".into(),
            affinity_timeout_seconds: Some(60),
            internal_traffic_policy: "Local".into(),
            external_traffic_policy: "Cluster".into(),
            health_check_node_port: 31000,
            load_balancer_source_ranges: texts(&["192.0.2.0/24"]),
            ingress: vec![
                event::Ingress { ip: "198.51.100.1".into(), ip_mode: "Proxy".into() },
                event::Ingress::default(),
            ],
        };
        assert_eq!(service, expected);
    }

    #[test]
    fn a_wrong_field_leaves_the_rest() {
        let (service, notes) = read(json!({
            "metadata": {"name": "web", "labels": [], "creationTimestamp": "soon"},
            "spec": {"clusterIP": 10, "ports": [{"port": "80"}, "http", {"port": 443}]},
            "status": "fine",
        }));
        assert_eq!(service.namespace, "default");
        assert_eq!(service.ports.iter().map(|it| it.port).collect::<Vec<_>>(), [0, 443]);
        let expected = [
            "metadata.creationTimestamp",
            "metadata.labels",
            "status",
            "spec.ports[1]",
            "spec.clusterIP",
            "spec.ports[0].port",
        ];
        assert_eq!(notes, expected);
    }

    #[test]
    fn without_a_name_it_is_nothing() {
        for value in [json!({}), json!({"metadata": {"name": ""}}), json!({"metadata": {"name": 7}})] {
            let mut notes = Notes::default();
            let decoded = super::super::decode(Kind::Service, value, &mut notes).unwrap();
            assert!(matches!(decoded, Decoded::Nameless));
        }
    }
}
