//! The Intents that the dataplane has in force, as JSON: `ledger` in an `ObjectList` and in a `Bundle`. Also as lines of
//! text, to compare two such values.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ferroxy_core::intent::{
    Endpoint, FamilyIntent, Frontend, LocalDetector, NodePortAddresses, PortIntent, Route,
};
use ferroxy_core::{Family, NodeIntent, ServiceIntent};
use serde_json::{Map, Value, json};

use super::explanation::frontend_address;

/// The settings of the node that are in force.
pub fn node(node: &NodeIntent) -> Value {
    let families = Family::ALL.map(|it| (it.to_string(), family(node.family(it))));
    json!({
        "masqueradeAll": node.masquerade_all,
        "countTraffic": node.count_traffic,
        "hostAddresses": node.host_addresses,
        "families": families.into_iter().collect::<Map<_, _>>(),
    })
}

/// A Service that is in force.
pub fn service(service: &ServiceIntent) -> Value {
    let annotations: Map<String, Value> =
        service.annotations.iter().map(|(key, value)| ((*key).to_owned(), (&**value).into())).collect();
    let check = service.health_check;
    json!({
        "service": service.name.as_str(),
        "clusterIPs": service.cluster_ips,
        "ports": service.ports.iter().map(port).collect::<Vec<_>>(),
        "healthCheck": check.map(|it| json!({ "port": it.port, "localEndpoints": it.local_endpoints })),
        "annotations": annotations,
    })
}

fn family(family: &FamilyIntent) -> Value {
    let pods = family.local_detector.as_ref().map(|it| match it {
        LocalDetector::SourceIn(net) => format!("source in {net}"),
        LocalDetector::Interface(name) => format!("interface {name}"),
        LocalDetector::InterfacePrefix(prefix) => format!("interface {prefix}*"),
    });
    json!({
        "nodeIP": family.node_ip,
        "pods": pods,
        "nodePortAddresses": match &family.node_port_addresses {
            NodePortAddresses::AllLocal => json!("all"),
            NodePortAddresses::These(addresses) => json!(addresses),
        },
        "nodePortsOnLoopback": family.node_ports_on_loopback || family.listen_on_loopback,
        "serviceCIDRs": family.service_cidrs.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn port(port: &PortIntent) -> Value {
    let addresses =
        |list: &[Endpoint]| list.iter().map(|it| SocketAddr::new(it.ip, it.port)).collect::<Vec<_>>();
    json!({
        "name": &*port.name,
        "family": port.family.to_string(),
        "protocol": port.protocol.lowercase(),
        "affinitySeconds": port.affinity,
        "frontends": port.frontends.iter().map(frontend).collect::<Vec<_>>(),
        "cluster": addresses(&port.cluster),
        "local": addresses(&port.local),
    })
}

fn frontend(frontend: &Frontend) -> Value {
    let allowed = frontend.allowed_sources.as_ref();
    json!({
        "kind": frontend.kind.words(),
        "address": frontend_address(frontend),
        "route": route(frontend.route),
        "allowedSources": allowed.map(|it| it.iter().map(ToString::to_string).collect::<Vec<_>>()),
    })
}

fn route(route: Route) -> &'static str {
    match route {
        Route::Reject => "reject",
        Route::Drop => "drop",
        Route::Cluster => "cluster",
        Route::Local => "local",
        Route::ExternalCluster => "external cluster",
        Route::ExternalLocal => "external local",
    }
}

/// One line for each address, endpoint and setting of a Service or of the node: two values differ where their lines do.
pub fn lines(value: &Value) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let Some(name) = value["service"].as_str() else {
        of_fields("node", value, &[], &mut lines);
        return lines;
    };
    of_fields(name, value, &["service", "ports"], &mut lines);
    for port in value["ports"].as_array().into_iter().flatten() {
        let text = |field: &str| port[field].as_str().unwrap_or_default();
        let title = format!("{name} {}/{} {}", text("name"), text("protocol"), text("family"));
        of_fields(&title, port, &["name", "family", "protocol"], &mut lines);
    }
    lines
}

/// Each item of a list, and each field of an object, is a line.
fn of_fields(title: &str, value: &Value, but: &[&str], lines: &mut BTreeSet<String>) {
    let fields = value.as_object().into_iter().flatten();
    for (field, value) in fields.filter(|(field, _)| !but.contains(&field.as_str())) {
        match value {
            Value::Null => {}
            Value::Array(items) => {
                lines.extend(items.iter().map(|item| format!("{title} {field}: {}", words(item))));
            }
            Value::Object(_) => of_fields(&format!("{title} {field}"), value, &[], lines),
            other => drop(lines.insert(format!("{title} {field}: {}", words(other)))),
        }
    }
}

/// `10.0.0.1:80`, or `address 10.96.0.80:80, kind cluster IP, route cluster`
fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let known = fields.iter().filter(|(_, value)| !value.is_null());
            known.map(|(name, value)| format!("{name} {}", words(value))).collect::<Vec<_>>().join(", ")
        }
        Value::Array(items) => items.iter().map(words).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_core::intent::FrontendKind;
    use ferroxy_core::{Protocol, ServiceName};

    use super::*;

    fn web(endpoints: &[&str]) -> ServiceIntent {
        let endpoint = |text: &&str| {
            let address: SocketAddr = text.parse().unwrap();
            Endpoint { ip: address.ip(), port: address.port(), is_local: false }
        };
        let frontend = Frontend {
            kind: FrontendKind::ClusterIp,
            address: Some([10, 96, 0, 80].into()),
            port: 80,
            route: Route::Cluster,
            allowed_sources: None,
        };
        let port = PortIntent {
            name: "http".into(),
            family: Family::V4,
            protocol: Protocol::Tcp,
            affinity: None,
            cluster: endpoints.iter().map(endpoint).collect(),
            local: Vec::new(),
            size: 2,
            frontends: vec![frontend],
        };
        ServiceIntent {
            name: ServiceName::new("default", "web"),
            cluster_ips: vec![[10, 96, 0, 80].into()],
            ports: vec![port],
            health_check: None,
            annotations: Vec::new(),
            left_out: Default::default(),
        }
    }

    #[test]
    fn a_service_is_a_line_for_each_address_and_endpoint() {
        let lines = lines(&service(&web(&["10.0.0.1:8080"])));
        let expected = [
            "default/web clusterIPs: 10.96.0.80",
            "default/web http/tcp IPv4 cluster: 10.0.0.1:8080",
            "default/web http/tcp IPv4 frontends: address 10.96.0.80:80, kind cluster IP, route cluster",
        ];
        assert_eq!(lines.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn two_services_differ_in_the_endpoint_that_one_lacks() {
        let of = |endpoints: &[&str]| lines(&service(&web(endpoints)));
        let (before, after) = (of(&["10.0.0.1:8080"]), of(&["10.0.0.1:8080", "10.0.0.2:8080"]));
        let added: Vec<&String> = after.difference(&before).collect();
        assert_eq!(added, ["default/web http/tcp IPv4 cluster: 10.0.0.2:8080"]);
        assert_eq!(before.difference(&after).count(), 0);
    }

    #[test]
    fn the_node_has_lines_of_its_own() {
        let mut intent = NodeIntent::default();
        intent.v4.local_detector = Some(LocalDetector::SourceIn("10.244.0.0/16".parse().unwrap()));
        let lines = lines(&node(&intent));
        assert!(lines.contains("node families IPv4 pods: source in 10.244.0.0/16"), "{lines:#?}");
        assert!(lines.contains("node masqueradeAll: false"), "{lines:#?}");
    }
}
