//! The servers of one pod: each replies with its name, the port on which it was reached and the client address that it saw.
//! They listen on fixed ports; `network` creates their namespace.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::error::{LabError, Result};
use crate::namespace::Namespace;

/// Ports that reply with one line and close, over TCP and UDP.
pub const ANSWERING_PORTS: [u16; 4] = [80, 8080, 9090, 53];

/// The TCP port that replies with the same line, then stays open and echoes.
pub const ECHO_PORT: u16 = 7;

/// Serves until dropped. One thread handles all sockets of a pod.
pub struct PodServer {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<Result<Result<()>>>>,
}

impl PodServer {
    /// Returns when every port is open: an immediate probe is answered.
    pub fn start(namespace: &Namespace) -> Result<PodServer> {
        let pod = namespace.name().to_owned();
        let sockets = namespace
            .run(Sockets::open)?
            .map_err(|e| LabError::system(format!("open the ports of pod {pod}"), e))?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| LabError::system("make an eventfd", e))?;
        let stop = Arc::new(stop);
        let stopped = Arc::clone(&stop);
        let thread =
            namespace.spawn(move || Server { pod, sockets, open: Vec::new() }.serve(stopped.as_fd()))?;
        Ok(PodServer { stop, thread: Some(thread) })
    }
}

impl Drop for PodServer {
    fn drop(&mut self) {
        // If the write fails, the thread does not stop, and joining it would hang.
        if rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).is_ok()
            && let Some(thread) = self.thread.take()
            && let Ok(Err(error) | Ok(Err(error))) = thread.join()
        {
            eprintln!("the servers of a pod ended before they were stopped: {error}");
        }
    }
}

impl fmt::Debug for PodServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodServer").finish_non_exhaustive()
    }
}

struct Sockets {
    listeners: Vec<(u16, TcpListener)>,
    datagrams: Vec<(u16, UdpSocket)>,
}

impl Sockets {
    /// Bound to `::`, which also serves IPv4: a new namespace has bindv6only off.
    fn open() -> io::Result<Sockets> {
        let any = |port| (Ipv6Addr::UNSPECIFIED, port);
        let mut sockets = Sockets { listeners: Vec::new(), datagrams: Vec::new() };
        for port in ANSWERING_PORTS.into_iter().chain([ECHO_PORT]) {
            let listener = TcpListener::bind(any(port))?;
            listener.set_nonblocking(true)?;
            sockets.listeners.push((port, listener));
        }
        for port in ANSWERING_PORTS {
            let socket = UdpSocket::bind(any(port))?;
            socket.set_nonblocking(true)?;
            sockets.datagrams.push((port, socket));
        }
        Ok(sockets)
    }
}

struct Server {
    pod: String,
    sockets: Sockets,
    open: Vec<Connection>,
}

/// An accepted connection to which the line was sent.
struct Connection {
    stream: TcpStream,
    /// Echo input; otherwise input is read and discarded until the client closes. (Closing with unread data resets the
    /// connection, and a client that sends first, such as curl, could lose the reply.)
    echo: bool,
}

impl Server {
    fn serve(mut self, stop: BorrowedFd<'_>) -> Result<()> {
        loop {
            let ready = self.wait(stop).map_err(|e| LabError::system("wait for clients", e))?;
            let mut ready = ready.into_iter();
            if ready.next() == Some(true) {
                return Ok(());
            }
            // The order of `wait`: stop, listeners, datagrams, open connections.
            let (pod, open) = (&self.pod, &mut self.open);
            let already_open = open.len();
            for ((port, listener), _) in
                self.sockets.listeners.iter().zip(&mut ready).filter(|(_, ready)| *ready)
            {
                accept_all(pod, *port, listener, open);
            }
            for ((port, socket), _) in
                self.sockets.datagrams.iter().zip(&mut ready).filter(|(_, ready)| *ready)
            {
                answer_all(pod, *port, socket);
            }
            let accepted = open.split_off(already_open);
            open.retain_mut(|connection| ready.next() != Some(true) || connection.serve());
            open.extend(accepted);
        }
    }

    /// Blocks until a descriptor is readable; returns the readiness of all, in a fixed order.
    fn wait(&self, stop: BorrowedFd<'_>) -> io::Result<Vec<bool>> {
        let mut fds = vec![PollFd::new(&stop, PollFlags::IN)];
        fds.extend(self.sockets.listeners.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::IN)));
        fds.extend(self.sockets.datagrams.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::IN)));
        fds.extend(self.open.iter().map(|connection| PollFd::new(&connection.stream, PollFlags::IN)));
        rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
        Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
    }
}

/// Errors of clients that disconnect are ignored, here and below: the server continues.
fn accept_all(pod: &str, port: u16, listener: &TcpListener, open: &mut Vec<Connection>) {
    while let Ok((mut stream, client)) = listener.accept() {
        let echo = port == ECHO_PORT;
        let answered = stream.write_all(line(pod, port, client.ip()).as_bytes()).is_ok()
            && stream.set_nonblocking(true).is_ok()
            && (echo || stream.shutdown(Shutdown::Write).is_ok());
        if answered {
            open.push(Connection { stream, echo });
        }
    }
}

fn answer_all(pod: &str, port: u16, socket: &UdpSocket) {
    let mut question = [0; 2048];
    while let Ok((_, client)) = socket.recv_from(&mut question) {
        drop(socket.send_to(line(pod, port, client.ip()).as_bytes(), client));
    }
}

impl Connection {
    /// False if the connection has ended.
    fn serve(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                // A client that sends without reading fills the buffers, fails here and is closed.
                Ok(length) if self.echo && self.stream.write_all(&buffer[..length]).is_err() => return false,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }
}

/// `::ffff:10.0.0.1` is how a socket on `::` sees an IPv4 client; it is reported as `10.0.0.1`.
fn line(pod: &str, port: u16, client: IpAddr) -> String {
    format!("{pod}:{port} {}\n", client.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::{Capability, require};
    use std::io::{BufRead, BufReader};
    use std::net::{Ipv4Addr, SocketAddr};

    #[test]
    fn the_echo_port_says_who_it_is_and_then_echoes() {
        if !require(&[Capability::NetworkNamespaces]) {
            return;
        }
        let namespace = Namespace::new("p1").unwrap();
        let _server = PodServer::start(&namespace).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ECHO_PORT));
        let stream = namespace.run(|| TcpStream::connect(address)).unwrap().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "p1:7 127.0.0.1");
        for word in ["one", "two"] {
            writeln!(&stream, "{word}").unwrap();
            assert_eq!(lines.next().unwrap().unwrap(), word);
        }
    }

    #[test]
    fn a_client_that_talks_first_still_gets_the_line() {
        if !require(&[Capability::NetworkNamespaces]) {
            return;
        }
        let namespace = Namespace::new("p1").unwrap();
        let _server = PodServer::start(&namespace).unwrap();
        let mut stream = namespace.run(|| TcpStream::connect((Ipv6Addr::LOCALHOST, 80))).unwrap().unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "p1:80 ::1\n");
    }

    #[test]
    fn a_dropped_server_refuses() {
        if !require(&[Capability::NetworkNamespaces]) {
            return;
        }
        let namespace = Namespace::new("p1").unwrap();
        drop(PodServer::start(&namespace).unwrap());
        let error = namespace.run(|| TcpStream::connect((Ipv4Addr::LOCALHOST, 80))).unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
