//! The thread of the server: accepts connections, does TLS, and cuts connections on command. `answer` handles requests.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;

use super::answer::answer;
use super::fault::Fault;
use super::server::Shared;
use super::{lock, unless};

/// A command to the thread, which ends when all senders are dropped.
#[derive(Debug)]
pub(super) enum Command {
    /// Stop listening, or begin again on the same address.
    Listen { open: bool, done: std::sync::mpsc::Sender<io::Result<()>> },
}

/// Runs until the commands end, then closes all connections.
pub(super) fn run(
    shared: &Arc<Shared>,
    listener: StdListener,
    commands: mpsc::UnboundedReceiver<Command>,
) -> io::Result<()> {
    // One thread: a test API server must not compete for cores with what is measured, and new sockets must be created in the
    // network namespace of this thread.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(accept(shared, listener, commands))
}

async fn accept(
    shared: &Arc<Shared>,
    listener: StdListener,
    mut commands: mpsc::UnboundedReceiver<Command>,
) -> io::Result<()> {
    let mut listener = Some(TcpListener::from_std(listener)?);
    loop {
        match unless(commands.recv(), next(listener.as_ref())).await {
            Ok(Ok((stream, _))) => begin(shared, stream),
            // The client disconnected before it was accepted.
            Ok(Err(_)) => tokio::task::yield_now().await,
            Err(None) => return Ok(()),
            Err(Some(Command::Listen { open, done })) => {
                let result = set_listening(&mut listener, open, shared.address);
                // The requester may have stopped waiting.
                drop(done.send(result));
            }
        }
    }
}

async fn next(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => pending().await,
    }
}

fn set_listening(listener: &mut Option<TcpListener>, open: bool, address: SocketAddr) -> io::Result<()> {
    match (open, &listener) {
        (false, Some(open)) => {
            // Closing is not enough: a program that another thread starts at this moment has copies of all our sockets until
            // its `exec`, and the address would stay in use.
            rustix::net::shutdown(open, rustix::net::Shutdown::Both)?;
            *listener = None;
        }
        (false, None) => {}
        (true, Some(_)) => {}
        (true, None) => *listener = Some(TcpListener::from_std(bind(address)?)?),
    }
    Ok(())
}

/// Binds in the network namespace of the calling thread.
pub(super) fn bind(address: SocketAddr) -> io::Result<StdListener> {
    let listener = StdListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn begin(shared: &Arc<Shared>, stream: TcpStream) {
    shared.connections.accepted.fetch_add(1, Ordering::Relaxed);
    shared.connections.open.fetch_add(1, Ordering::Relaxed);
    let shared = Arc::clone(shared);
    let cut = shared.cut.subscribe();
    tokio::spawn(async move {
        // A cut and the end of serving both end the connection.
        let (Ok(()) | Err(())) = unless(cut_now(cut), serve(&shared, stream)).await;
        shared.connections.open.fetch_sub(1, Ordering::Relaxed);
    });
}

async fn cut_now(mut cut: watch::Receiver<()>) {
    // An error means that the server ends, which is a cut as well.
    drop(cut.changed().await);
}

async fn serve(shared: &Arc<Shared>, stream: TcpStream) {
    if shared.faults.has(&Fault::HangConnections) {
        pending::<()>().await;
    }
    // Events are small and must be sent at once.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let tls = lock(&shared.access).tls();
    let Some(config) = tls else { return talk(shared, stream, None).await };
    // Some tests provoke failing handshakes: the client reports the error.
    let Ok(stream) = TlsAcceptor::from(config).accept(stream).await else { return };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = certificate.map(|certificate| Bytes::copy_from_slice(certificate));
    talk(shared, stream, certificate).await;
}

async fn talk(shared: &Arc<Shared>, stream: impl AsyncRead + AsyncWrite + Unpin, certificate: Option<Bytes>) {
    let service = service_fn(|request| {
        let answer = answer(Arc::clone(shared), certificate.clone(), request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    // Ignored: the client disconnected, or the connection was cut on purpose.
    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
}
