//! Synchronous requests to an API server, one at a time over one connection.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc as blocking};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::access::CertificateError;
use crate::error::{LabError, Result};
use crate::patience::PATIENCE;

/// The server and the credentials.
pub(super) struct Target {
    pub address: SocketAddr,
    /// The CA of the server's certificate. None for plain HTTP.
    pub authority: Option<CertificateDer<'static>>,
    pub token: String,
}

/// The response.
#[derive(Debug)]
pub(super) struct Reply {
    pub code: u16,
    pub body: Bytes,
}

#[derive(Debug)]
struct Job {
    method: Method,
    path: String,
    content_type: &'static str,
    body: Bytes,
    reply: blocking::Sender<std::result::Result<Reply, String>>,
}

#[derive(Debug)]
pub(super) struct Caller {
    /// None only while being dropped.
    jobs: Option<mpsc::UnboundedSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Caller {
    /// All requests are sent from the network namespace of the thread that calls this.
    pub fn new(target: Target) -> Result<Caller> {
        let tls = target.authority.as_ref().map(tls_connector).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| LabError::system("make a runtime", e))?;
        let (jobs, to_do) = mpsc::unbounded_channel();
        let thread = thread::Builder::new()
            .name("api-caller".to_owned())
            .spawn(move || runtime.block_on(work(&target, tls.as_ref(), to_do)))
            .map_err(|e| LabError::system("start a thread", e))?;
        Ok(Caller { jobs: Some(jobs), thread: Some(thread) })
    }

    pub fn call(&self, method: Method, path: &str, content_type: &'static str, body: Bytes) -> Result<Reply> {
        let failed = |why: &str| LabError::Api(format!("{method} {path}: {why}"));
        let (reply, answered) = blocking::channel();
        let job = Job { method: method.clone(), path: path.to_owned(), content_type, body, reply };
        let gone = || failed("the caller's thread has ended");
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(gone)?;
        answered.recv().map_err(|_| gone())?.map_err(|why| failed(&why))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the thread that called the API server has panicked");
        }
    }
}

fn tls_connector(authority: &CertificateDer<'static>) -> std::result::Result<TlsConnector, CertificateError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

type Connection = SendRequest<Full<Bytes>>;

async fn work(target: &Target, tls: Option<&TlsConnector>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let mut connection: Option<Connection> = None;
    while let Some(job) = jobs.recv().await {
        let result = timeout(PATIENCE, exchange(target, tls, &mut connection, &job)).await;
        let result = result.unwrap_or_else(|_| Err("no answer".to_owned()));
        if result.is_err() {
            connection = None;
        }
        // The requester may have stopped waiting.
        drop(job.reply.send(result));
    }
}

async fn exchange(
    target: &Target,
    tls: Option<&TlsConnector>,
    connection: &mut Option<Connection>,
    job: &Job,
) -> std::result::Result<Reply, String> {
    let open = match connection.take().filter(|open| !open.is_closed()) {
        Some(open) => open,
        None => connect(target, tls).await?,
    };
    let open = connection.insert(open);
    let request = Request::builder()
        .method(&job.method)
        .uri(&job.path)
        .header(HOST, target.address.to_string())
        .header(AUTHORIZATION, format!("Bearer {}", target.token))
        .header(CONTENT_TYPE, job.content_type)
        .body(Full::new(job.body.clone()))
        .map_err(|error| error.to_string())?;
    let answer = open.send_request(request).await.map_err(|error| error.to_string())?;
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.map_err(|error| error.to_string())?;
    Ok(Reply { code, body: body.to_bytes() })
}

async fn connect(target: &Target, tls: Option<&TlsConnector>) -> std::result::Result<Connection, String> {
    let stream = TcpStream::connect(target.address).await.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    match tls {
        None => shake_hands(stream).await,
        Some(tls) => {
            let name = ServerName::from(target.address.ip());
            shake_hands(tls.connect(name, stream).await.map_err(|error| error.to_string())?).await
        }
    }
}

async fn shake_hands(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> std::result::Result<Connection, String> {
    let (open, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // If the connection ends, the current or the next request fails.
    tokio::spawn(async move { drop(connection.await) });
    Ok(open)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Access, Kind, Login, Options, Server, Verb};
    use tokio_rustls::rustls::pki_types::pem::PemObject;

    fn get(caller: &Caller, path: &str) -> Result<u16> {
        caller.call(Method::GET, path, "application/json", Bytes::new()).map(|reply| reply.code)
    }

    #[test]
    fn calls_share_a_connection() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { tls: true, access: Access::Token, ..Options::default() };
        let server = Server::start(options).unwrap();
        server.kubeconfig(folder.path(), Login::TokenFile).unwrap();
        let authority = CertificateDer::from_pem_file(folder.path().join("ca.crt")).unwrap();
        let (address, token) = (server.address(), server.token());
        let caller = Caller::new(Target { address, authority: Some(authority), token }).unwrap();
        assert_eq!(get(&caller, "/livez").unwrap(), 200);
        assert_eq!(get(&caller, "/api/v1/services").unwrap(), 200);
        assert_eq!((server.connections_accepted(), server.count(Kind::Service, Verb::List)), (1, 1));
    }

    #[test]
    fn a_failure_is_reported_and_the_next_call_reconnects() {
        // An address of its own: a server of another test may get the port while nothing listens on it.
        let options = Options { address: ([127, 0, 0, 77], 0).into(), ..Options::default() };
        let server = Server::start(options).unwrap();
        let (address, token) = (server.address(), String::new());
        let caller = Caller::new(Target { address, authority: None, token }).unwrap();
        server.fault(crate::api::Fault::Refuse).unwrap();
        let error = get(&caller, "/livez").unwrap_err().to_string();
        assert!(error.starts_with("GET /livez: ") && error.contains("refused"), "{error}");
        server.clear_faults().unwrap();
        assert_eq!(get(&caller, "/livez").unwrap(), 200);
    }
}
