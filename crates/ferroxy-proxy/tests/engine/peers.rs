//! Clients and endpoints for tests: they echo, stay silent, reset, or do not answer at all.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_lab::PATIENCE;
use ferroxy_proxy::{Change, Counters, Engine, Frontend, Pool, PoolCounters, Settings};
use socket2::{Domain, SockRef, Socket, Type};

pub const POOL: &str = "pool";

pub fn localhost() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// An engine with two threads, one frontend and one pool.
pub struct Proxy {
    pub engine: Engine,
    pub address: SocketAddr,
}

impl Proxy {
    pub fn tcp(pool: Pool) -> Proxy {
        Proxy::start(settings(), Frontend::tcp(localhost()).to(POOL), pool)
    }

    pub fn udp(pool: Pool) -> Proxy {
        Proxy::start(settings(), Frontend::udp(localhost()).to(POOL), pool)
    }

    pub fn start(settings: Settings, frontend: Frontend, pool: Pool) -> Proxy {
        let engine = Engine::start(settings).unwrap();
        let mut change = Change::default();
        change.set_pool(POOL, pool).set_frontend("frontend", frontend);
        let applied = engine.apply(change);
        assert!(applied.failures.is_empty(), "{:?}", applied.failures);
        Proxy { engine, address: applied.bound[0].1 }
    }

    pub fn set_pool(&self, pool: Pool) {
        let mut change = Change::default();
        change.set_pool(POOL, pool);
        self.engine.apply(change);
    }

    pub fn connect(&self) -> TcpStream {
        patient(TcpStream::connect(self.address).unwrap())
    }

    pub fn counters(&self) -> PoolCounters {
        self.engine.counters().pools[POOL].clone()
    }

    pub fn wait_until(&self, what: &str, is_so: impl Fn(&PoolCounters) -> bool) {
        self.wait_until_all(what, |counters| is_so(&counters.pools[POOL]));
    }

    pub fn wait_until_all(&self, what: &str, is_so: impl Fn(&Counters) -> bool) {
        let begun = Instant::now();
        while !is_so(&self.engine.counters()) {
            assert!(begun.elapsed() < PATIENCE, "{what}: {:?}", self.engine.counters());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

pub fn settings() -> Settings {
    Settings { threads: Some(2), ..Settings::default() }
}

/// Sets timeouts, so that no test waits forever.
pub fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A TCP endpoint that does the same with every connection, each on a thread of its own, until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    is_over: Arc<AtomicBool>,
}

impl Server {
    pub fn start(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind(localhost()).unwrap();
        let address = listener.local_addr().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, serve) = (is_over.clone(), Arc::new(serve));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let serve = serve.clone();
                thread::spawn(move || serve(patient(stream)));
            }
        });
        Server { address, is_over }
    }

    /// Returns what it gets.
    pub fn echo() -> Server {
        Server::start(|mut stream| {
            let mut buffer = [0; 16 * 1024];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..length]).is_err() {
                    return;
                }
            }
        })
    }

    /// Sends its name, then echoes.
    pub fn named(name: &'static str) -> Server {
        Server::start(move |mut stream| {
            let mut buffer = [0; 1024];
            if stream.write_all(name.as_bytes()).is_ok() {
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..length]).is_err() {
                        return;
                    }
                }
            }
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

/// A UDP endpoint that returns each datagram behind a prefix, until it is dropped.
pub struct UdpServer {
    pub address: SocketAddr,
    is_over: Arc<AtomicBool>,
}

impl UdpServer {
    pub fn start(prefix: &'static [u8], address: SocketAddr) -> UdpServer {
        let socket = UdpSocket::bind(address).unwrap();
        let address = socket.local_addr().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                // The largest datagram has no room for a prefix.
                let answer = if length > 60_000 {
                    buffer[..length].to_vec()
                } else {
                    [prefix, &buffer[..length]].concat()
                };
                let _ = socket.send_to(&answer, from);
            }
        });
        UdpServer { address, is_over }
    }

    pub fn echo() -> UdpServer {
        UdpServer::start(b"", localhost())
    }
}

impl Drop for UdpServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let any: SocketAddr = if self.address.is_ipv4() { localhost() } else { "[::1]:0".parse().unwrap() };
        let _ = UdpSocket::bind(any).unwrap().send_to(b"end", self.address);
    }
}

/// An endpoint that does not answer: its queue of connections is full, so that the kernel drops further ones.
pub struct BlackHole {
    pub address: SocketAddr,
    _listener: Socket,
    _queued: Vec<Socket>,
}

impl BlackHole {
    pub fn new() -> BlackHole {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&localhost().into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let mut queued = Vec::new();
        // The queue takes one connection more than its backlog; the others are for certainty.
        for _ in 0..4 {
            let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            client.set_nonblocking(true).unwrap();
            let _ = client.connect(&address.into());
            queued.push(client);
        }
        BlackHole { address, _listener: listener, _queued: queued }
    }
}

/// An address without a listener. (Bound, so that no other socket gets it, but not listening.)
pub struct Closed {
    pub address: SocketAddr,
    _socket: Socket,
}

impl Closed {
    pub fn new(kind: Type) -> Closed {
        let socket = Socket::new(Domain::IPV4, kind, None).unwrap();
        socket.bind(&localhost().into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        if kind == Type::DGRAM {
            // Connected to another address, the socket takes no datagram of ours, and the kernel reports that.
            socket.connect(&"127.0.0.1:9".parse::<SocketAddr>().unwrap().into()).unwrap();
        }
        Closed { address, _socket: socket }
    }
}

/// Connects from an address of 127.0.0.0/8.
pub fn connect_from(source: &str, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&format!("{source}:0").parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.connect(&to.into()).unwrap();
    patient(socket.into())
}

/// Closes with RST.
pub fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

pub fn ask(stream: &mut TcpStream, question: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(question)?;
    let mut answer = vec![0; question.len()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// The name that a [`Server::named`] sends.
pub fn name_of(stream: &mut TcpStream) -> String {
    let mut buffer = [0; 64];
    let length = stream.read(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

/// Waits for a reset; anything else fails.
pub fn expect_reset(stream: &mut TcpStream) {
    let error = stream.read(&mut [0; 16]).expect_err("a reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}
