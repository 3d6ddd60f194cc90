//! A host in memory that addresses are put on, Services over loopback addresses, and servers that answer with their names.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use ferroxy_core::intent::{FrontendKind, NodePortAddresses};
use ferroxy_core::{
    Endpoint, Family, Frontend, Intent, NodeIntent, PortIntent, Protocol, Route, ServiceIntent, ServiceName,
};
use ferroxy_dataplane::Settings;
use ferroxy_winuserspace::Winuserspace;
use ferroxy_winuserspace::dataplane::interface::Interface;

/// Long enough on a machine that is very busy.
pub const PATIENCE: Duration = Duration::from_secs(1800);

#[derive(Debug, Default)]
pub struct Addresses {
    pub present: BTreeSet<IpAddr>,
    pub calls: Vec<String>,
    /// Adding or removing these fails.
    pub refused: BTreeSet<IpAddr>,
    /// These appear after the next list.
    pub returns: BTreeSet<IpAddr>,
}

/// A host and the file of the program, which outlive a dataplane.
#[derive(Debug)]
pub struct Host {
    pub addresses: Arc<Mutex<Addresses>>,
    folder: tempfile::TempDir,
}

#[derive(Debug)]
struct Memory {
    name: String,
    addresses: Arc<Mutex<Addresses>>,
}

impl Interface for Memory {
    fn name(&self) -> &str {
        &self.name
    }

    fn present(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        let mut host = self.addresses.lock().unwrap();
        let listed = host.present.clone();
        let returned = std::mem::take(&mut host.returns);
        host.present.extend(returned);
        Ok(listed)
    }

    fn add(&mut self, address: IpAddr) -> io::Result<bool> {
        let mut host = self.addresses.lock().unwrap();
        host.calls.push(format!("add {address} to {}", self.name));
        if host.refused.contains(&address) {
            return Err(io::Error::other("no"));
        }
        Ok(host.present.insert(address))
    }

    fn remove(&mut self, addresses: &[IpAddr]) -> Vec<io::Result<()>> {
        let mut host = self.addresses.lock().unwrap();
        let mut remove = |address: &IpAddr| {
            host.calls.push(format!("remove {address}"));
            if host.refused.contains(address) {
                return Err(io::Error::other("no"));
            }
            host.present.remove(address);
            Ok(())
        };
        addresses.iter().map(&mut remove).collect()
    }
}

impl Host {
    pub fn new() -> Host {
        Host { addresses: Arc::default(), folder: tempfile::tempdir().unwrap() }
    }

    pub fn open(&self) -> Winuserspace {
        self.open_with("Ethernet")
    }

    pub fn open_with(&self, interface: &str) -> Winuserspace {
        let memory = Memory { name: interface.to_owned(), addresses: self.addresses.clone() };
        Winuserspace::open(&[Family::V4], &Settings::default(), Box::new(memory), &self.path()).unwrap()
    }

    pub fn path(&self) -> PathBuf {
        Path::new(self.folder.path()).join("addresses")
    }

    pub fn lock(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap()
    }

    /// The calls since this function was last used.
    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().calls)
    }

    pub fn present(&self) -> Vec<IpAddr> {
        self.lock().present.iter().copied().collect()
    }
}

/// A loopback address that no other test has.
pub fn address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id();
    let number = NEXT.fetch_add(1, Ordering::SeqCst);
    Ipv4Addr::new(127, 64 + (process % 64) as u8, (process / 64 % 256) as u8, number).into()
}

/// The port of Services. Their addresses differ.
pub const PORT: u16 = 18_080;

pub fn service(name: &str, protocol: Protocol, endpoints: &[SocketAddr]) -> ServiceIntent {
    let endpoint = |at: &SocketAddr| Endpoint { ip: at.ip(), port: at.port(), is_local: true };
    ServiceIntent {
        name: ServiceName::new("default", name),
        cluster_ips: Vec::new(),
        ports: vec![PortIntent {
            name: "".into(),
            family: Family::V4,
            protocol,
            affinity: None,
            cluster: endpoints.iter().map(endpoint).collect(),
            local: Vec::new(),
            size: endpoints.len() as u32,
            frontends: Vec::new(),
        }],
        health_check: None,
        annotations: Vec::new(),
        left_out: Default::default(),
    }
}

/// The same Service with one more frontend.
pub fn at(
    mut service: ServiceIntent,
    kind: FrontendKind,
    address: Option<IpAddr>,
    port: u16,
) -> ServiceIntent {
    let has_endpoints = !service.ports[0].cluster.is_empty();
    let route = if has_endpoints { Route::Cluster } else { Route::Reject };
    service.ports[0].frontends.push(Frontend { kind, address, port, route, allowed_sources: None });
    service
}

/// A Service with a cluster IP.
pub fn with_cluster_ip(
    name: &str,
    ip: IpAddr,
    protocol: Protocol,
    endpoints: &[SocketAddr],
) -> ServiceIntent {
    at(service(name, protocol, endpoints), FrontendKind::ClusterIp, Some(ip), PORT)
}

/// Node ports answer on this address only.
pub fn intent(services: &[ServiceIntent], node: IpAddr) -> Intent {
    let mut intent = Intent { node: NodeIntent::default(), ..Intent::default() };
    intent.node.v4.node_port_addresses = NodePortAddresses::These([node].into());
    let named = services.iter().map(|it| (it.name.clone(), Arc::new(it.clone())));
    intent.services.extend(named);
    intent
}

/// Answers every connection with its name.
pub fn tcp_server(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(name.as_bytes()));
        }
    });
    address
}

/// Answers every datagram with its name.
pub fn udp_server(name: &'static str) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(name.as_bytes(), from);
        }
    });
    address
}

/// The answer of the server at this address.
pub fn ask_tcp(ip: IpAddr, port: u16) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(ip, port), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Whether nothing serves clients of this address. (wine closes a listening socket a moment after the program has closed it: until
/// then the system still accepts a client, and ends its connection without an answer.)
pub fn is_refused(ip: IpAddr, port: u16) -> bool {
    match ask_tcp(ip, port) {
        Err(_) => true,
        Ok(answer) => cfg!(windows) && answer.is_empty(),
    }
}

/// The answer must come from the address that was asked. (wine answers from another loopback address.)
pub fn ask_udp(ip: IpAddr, port: u16) -> io::Result<String> {
    let (socket, asked) = (UdpSocket::bind("127.0.0.1:0")?, SocketAddr::new(ip, port));
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send_to(b"?", asked)?;
    let mut buffer = [0; 64];
    let (length, from) = socket.recv_from(&mut buffer)?;
    assert!(from == asked || cfg!(windows), "{from} answered instead of {asked}");
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
