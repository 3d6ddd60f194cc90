//! Healthy and unhealthy pods: tests open and close an extra port, beside those of the Services, which probes use.

use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::thread::JoinHandle;

use ferroxy_lab::Network;

/// The port that shows whether a pod is well.
pub const HEALTH: u16 = 9000;

/// A pod is well as long as this lives. It accepts every connection, because a full queue would look like an unhealthy pod.
pub struct Well {
    listener: TcpListener,
    accepting: Option<JoinHandle<()>>,
}

impl Drop for Well {
    fn drop(&mut self) {
        rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).unwrap();
        self.accepting.take().unwrap().join().unwrap();
    }
}

pub fn well(network: &Network, pod: &str) -> Well {
    serve(network, pod, drop)
}

/// Like [`well`], but calls `serve` for each connection.
pub fn serve(network: &Network, pod: &str, serve: impl Fn(TcpStream) + Send + 'static) -> Well {
    let listen = || TcpListener::bind((Ipv6Addr::UNSPECIFIED, HEALTH)).unwrap();
    let listener = network.namespace(pod).unwrap().run(listen).unwrap();
    let accepts = listener.try_clone().unwrap();
    let accepting = std::thread::spawn(move || accepts.incoming().map_while(Result::ok).for_each(serve));
    Well { listener, accepting: Some(accepting) }
}
