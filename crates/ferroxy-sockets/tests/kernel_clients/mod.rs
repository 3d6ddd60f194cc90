//! The kernel's own clients: NFS keeps the address of its server and connects to it again, for as long as a mount lasts.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use ferroxy_core::{ServiceIntent, ServiceName};
use ferroxy_dataplane::Dataplane;
use ferroxy_sockets::{Clients, Options};
use rustix::mount::{MountFlags, mount};

use super::node::{Node, intent, report, service};

const PORT: u16 = 2049;

/// A Service with one endpoint, which is an NFS server as far as a client can tell before it asks.
fn server(endpoint: u8) -> (ServiceName, Arc<ServiceIntent>) {
    let (name, plain) = service(1, [endpoint]);
    let mut service = ServiceIntent::clone(&plain);
    service.ports[0].cluster[0].port = PORT;
    (name, Arc::new(service))
}

/// After a restart of the server pod a mount finds the new pod: it connects to the Service again. (`release.rs` recognises the
/// kernels that connect to the first endpoint again.)
#[test]
#[ignore = "needs NFS in the kernel: make test-vm"]
fn a_mount_reconnects_to_the_service() {
    let Some(node) = Node::new() else { return };
    // The kernel's own sockets are at the very top.
    let top = Some(PathBuf::from("/sys/fs/cgroup"));
    let options = Options { clients: Clients::HOST, cgroup: top, ..node.options() };
    let mut dataplane = node.start(&intent([server(1)]), options);
    assert_eq!(report(&dataplane).clients[0].inactive, None);
    let listener = node.on_host(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_owned();
    let mounting = node.host.spawn(move || {
        let wanted =
            c"vers=3,proto=tcp,nolock,addr=10.96.0.1,port=80,mountaddr=10.96.0.1,mountport=80,mountproto=tcp";
        mount("10.96.0.1:/", &place, "nfs", MountFlags::empty(), wanted)
    });
    let mounting = mounting.unwrap();
    let arrived = |endpoint: u8| {
        let (stream, _) = listener.accept().unwrap();
        let at = stream.local_addr().unwrap();
        let at = SocketAddr::new(at.ip().to_canonical(), at.port());
        assert_eq!(at, SocketAddr::from(([10, 244, 0, endpoint], PORT)));
        assert!(!mounting.is_finished(), "it is the same attempt");
        stream
    };
    let first = arrived(1);
    let (name, moved) = server(2);
    node.on_host(|| dataplane.change(vec![(name, Some(moved))]).unwrap());
    // The old server ends: the client connects again.
    drop(first);
    drop(arrived(2));
}
