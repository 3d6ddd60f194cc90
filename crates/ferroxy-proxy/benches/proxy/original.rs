//! A model of kube-proxy's userspace mode (1.25), as a contestant: a listener dials before it accepts the next client,
//! each direction of a connection is a task with a splice pipe of its own, the direction that ends first ends both, and
//! each UDP client has a socket and a task that copy one datagram at a time. Tasks stand for goroutines, two threads
//! for two processors.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Handle;

use crate::server::{DATAGRAMS, ECHO, SOURCE};

/// Descriptors of a connection: two sockets, and two pipes from the first byte to the end.
pub const DESCRIPTORS: usize = 6;
/// The pipe size that Go requests from the kernel.
const PIPE: usize = 1 << 20;
/// Buffer size for a datagram; longer datagrams are truncated.
const DATAGRAM: usize = 4096;

/// Serves until stdin ends.
pub fn run(listen: &str, endpoint: &str) {
    let at = |address: &str, port: u16| -> SocketAddr { format!("{address}:{port}").parse().unwrap() };
    let threads: Arc<[Handle]> = (0..2).map(|_| thread()).collect();
    for port in [ECHO, SOURCE] {
        threads[0].spawn(accept(at(listen, port), at(endpoint, port), Arc::clone(&threads)));
    }
    threads[1].spawn(datagrams(at(listen, DATAGRAMS), at(endpoint, DATAGRAMS)));
    let _ = io::stdin().read_line(&mut String::new());
}

fn thread() -> Handle {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    handle
}

async fn accept(listen: SocketAddr, endpoint: SocketAddr, threads: Arc<[Handle]>) {
    let listener = TcpListener::bind(listen).await.unwrap();
    for turn in 0.. {
        let (client, _) = listener.accept().await.unwrap();
        // The next client waits for this one's endpoint.
        let Ok(server) = TcpStream::connect(endpoint).await else { continue };
        server.set_nodelay(true).unwrap();
        client.set_nodelay(true).unwrap();
        let thread = &threads[turn % threads.len()];
        let _inside = thread.enter();
        let here = |stream: TcpStream| stream.into_std().and_then(TcpStream::from_std).unwrap();
        let both = Arc::new((here(client), here(server)));
        for is_up in [true, false] {
            thread.spawn(copy(Arc::clone(&both), is_up));
        }
    }
}

async fn copy(both: Arc<(TcpStream, TcpStream)>, is_up: bool) {
    let (from, to) = if is_up { (&both.0, &both.1) } else { (&both.1, &both.0) };
    // An error of one side is an end, too.
    let _ = pump(from, to).await;
    for stream in [from, to] {
        let _ = SockRef::from(stream).shutdown(Shutdown::Both);
    }
}

async fn pump(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let (output, input) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
    let _ = fcntl_setpipe_size(&input, PIPE);
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    loop {
        let mut length =
            from.async_io(Interest::READABLE, || Ok(splice(from, None, &input, None, PIPE, flags)?)).await?;
        if length == 0 {
            return Ok(());
        }
        while length > 0 {
            let fill = || Ok(splice(&output, None, to, None, length, flags)?);
            length -= to.async_io(Interest::WRITABLE, fill).await?;
        }
    }
}

async fn datagrams(listen: SocketAddr, endpoint: SocketAddr) {
    let socket = Arc::new(UdpSocket::bind(listen).await.unwrap());
    let clients: Mutex<HashMap<SocketAddr, Arc<UdpSocket>>> = Mutex::default();
    let mut buffer = [0; DATAGRAM];
    loop {
        let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
        let known = clients.lock().unwrap().get(&client).cloned();
        let session = match known {
            Some(session) => session,
            None => {
                let session = Arc::new(UdpSocket::bind("0.0.0.0:0").await.unwrap());
                session.connect(endpoint).await.unwrap();
                tokio::spawn(answer(Arc::clone(&session), Arc::clone(&socket), client));
                clients.lock().unwrap().insert(client, Arc::clone(&session));
                session
            }
        };
        let _ = session.send(&buffer[..length]).await;
    }
}

/// Returns the endpoint's datagrams to the client. Each datagram restarts the timeout.
async fn answer(session: Arc<UdpSocket>, socket: Arc<UdpSocket>, client: SocketAddr) {
    let mut buffer = [0; DATAGRAM];
    while let Ok(Ok(length)) =
        tokio::time::timeout(Duration::from_millis(250), session.recv(&mut buffer)).await
    {
        let _ = socket.send_to(&buffer[..length], client).await;
    }
}
