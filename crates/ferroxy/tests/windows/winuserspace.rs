//! winuserspace mode: the agent itself listens, so that real clients reach real endpoints.
//!
//! wine cannot add addresses to an interface. So the cluster IP is an address of this machine (Services and endpoints must not have
//! loopback addresses), clients use node ports at 127.0.0.1, and a Service with another address must be refused.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use ferroxy_lab::{ANSWER, capability};
use serde_json::json;

use crate::node::{NEWEST, Node, free_port_at, node, own_address, service};

/// A Service with a cluster IP and a node port.
struct Web {
    cluster_ip: SocketAddr,
    node_port: u16,
}

impl Web {
    fn put(&self, node: &Node, endpoint: SocketAddr) {
        let ip = self.cluster_ip.ip();
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": "web", "namespace": "default" },
            "spec": {
                "type": "NodePort", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
                "ports": [{ "port": self.cluster_ip.port(), "protocol": "TCP", "nodePort": self.node_port }],
            },
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": { "name": "web-1", "namespace": "default", "labels": { "kubernetes.io/service-name": "web" } },
            "addressType": "IPv4",
            "ports": [{ "name": "", "port": endpoint.port(), "protocol": "TCP" }],
            "endpoints": [{ "addresses": [endpoint.ip()], "nodeName": "ka", "conditions": { "ready": true } }],
        });
        for object in [service, slice] {
            node.api.put(&object).unwrap();
        }
    }

    /// Whether this server answers, at the cluster IP and at the node port.
    fn leads_to(&self, server: &str) -> bool {
        self.ways().iter().all(|at| ask(*at).is_ok_and(|answer| answer == server))
    }

    fn is_refused(&self) -> bool {
        self.ways()
            .iter()
            .all(|at| ask(*at).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
    }

    fn ways(&self) -> [SocketAddr; 2] {
        [self.cluster_ip, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.node_port)]
    }
}

#[test]
#[ignore = "needs wine: make test-windows"]
fn winuserspace_mode_serves_follows_changes_and_ends_in_order() {
    let Some(ip) = own_address() else {
        return capability::skip("an interface with an IPv4 address");
    };
    let web = Web { cluster_ip: SocketAddr::new(ip, free_port_at(ip)), node_port: free_port_at(ip) };
    let mut host = Node::without_network(NEWEST);
    host.flags = vec!["--proxy-mode=winuserspace".into()];
    host.api.put(&node("ka", ip)).unwrap();
    web.put(&host, server("one", ip));
    host.start();
    host.wait_for("the first endpoint", |_| web.leads_to("one"));
    host.wait_for("/healthz", |host| host.healthz().is_some_and(|(status, _)| status == 200));

    web.put(&host, server("two", ip));
    host.wait_for("a change of endpoints", |_| web.leads_to("two"));

    host.put(&service(1, &[1]));
    host.wait_for("it reports what is refused", |host| {
        host.logged().contains("default/s1") && host.logged().contains("cannot add the address 10.96.0.1")
    });
    assert!(web.leads_to("two"), "the others are served");

    assert!(host.interrupt().success(), "{}", host.logged());
    assert!(web.is_refused(), "listeners end with the process");
    assert!(host.logged().contains("interrupted"), "{}", host.logged());
    host.start();
    host.wait_for("a restart", |_| web.leads_to("two"));
    assert_eq!(host.calls(), 0, "it needs no HNS");
}

/// Answers every connection with its name.
fn server(name: &'static str, ip: IpAddr) -> SocketAddr {
    let listener = TcpListener::bind(SocketAddr::new(ip, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that has left needs no answer.
            let _ = stream.and_then(|mut stream| stream.write_all(name.as_bytes()));
        }
    });
    address
}

fn ask(at: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&at, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
