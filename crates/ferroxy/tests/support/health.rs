//! Pods that are well or not: a port beside those of their Services, which tests open and close, for probes to ask.

use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::thread::JoinHandle;

use ferroxy_lab::Network;

/// The port that tells whether a pod is well.
pub const HEALTH: u16 = 9000;

/// A pod is well as long as this lives. It accepts whoever connects: a queue that fills up would look like a pod that is not.
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

/// With something else to do for whoever connects.
pub fn serve(network: &Network, pod: &str, serve: impl Fn(TcpStream) + Send + 'static) -> Well {
    let listen = || TcpListener::bind((Ipv6Addr::UNSPECIFIED, HEALTH)).unwrap();
    let listener = network.namespace(pod).unwrap().run(listen).unwrap();
    let accepts = listener.try_clone().unwrap();
    let accepting = std::thread::spawn(move || accepts.incoming().map_while(Result::ok).for_each(serve));
    Well { listener, accepting: Some(accepting) }
}
