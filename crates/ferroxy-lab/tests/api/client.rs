//! A bare HTTP client for the tests of the API server: it splits answers into lines and knows nothing else of
//! Kubernetes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferroxy_lab::PATIENCE;
use ferroxy_lab::api::Server;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

/// Every request has a connection of its own.
pub struct Client {
    runtime: Arc<Runtime>,
    address: SocketAddr,
    tls: Option<TlsConnector>,
    token: Option<String>,
    accept: Option<&'static str>,
}

pub struct Answer {
    pub code: u16,
    pub content_type: String,
    pub retry_after: Option<String>,
    body: Incoming,
    read: Vec<u8>,
    runtime: Arc<Runtime>,
}

impl Client {
    pub fn of(server: &Server) -> Client {
        Client::at(server.address())
    }

    pub fn at(address: SocketAddr) -> Client {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Client { runtime: Arc::new(runtime), address, tls: None, token: None, accept: None }
    }

    pub fn with_token(self, token: &str) -> Client {
        Client { token: Some(token.to_owned()), ..self }
    }

    /// Sends this as the header `Accept`.
    pub fn accepting(self, accept: &'static str) -> Client {
        Client { accept: Some(accept), ..self }
    }

    /// Trusts this CA (PEM) and shows this certificate with its key.
    pub fn with_tls(self, authority: &str, identity: Option<(&str, &str)>) -> Client {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        Client { tls: Some(TlsConnector::from(Arc::new(config))), ..self }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.try_get(path).unwrap()
    }

    /// A list's items, or one object.
    pub fn json(&self, path: &str) -> Value {
        self.get(path).expect(200)
    }

    /// An error means that the request failed before there was an answer.
    pub fn try_get(&self, path: &str) -> Result<Answer, String> {
        self.send("GET", path, "", Bytes::new())
    }

    pub fn post(&self, path: &str, content_type: &str, body: &str) -> Answer {
        self.send("POST", path, content_type, Bytes::copy_from_slice(body.as_bytes())).unwrap()
    }

    /// Whether no head of an answer comes within a time in which any other answer would have come.
    pub fn hangs(&self, path: &str) -> bool {
        let patience = Duration::from_millis(200);
        self.runtime.block_on(async {
            tokio::time::timeout(patience, self.exchange("GET", path, "", Bytes::new())).await.is_err()
        })
    }

    fn send(&self, method: &str, path: &str, content_type: &str, body: Bytes) -> Result<Answer, String> {
        let answer = self.runtime.block_on(async {
            tokio::time::timeout(PATIENCE, self.exchange(method, path, content_type, body)).await
        });
        let answer = answer.map_err(|_| "no answer".to_owned())??;
        let header = |name| answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let (retry_after, content_type) = (header("Retry-After"), header("Content-Type"));
        Ok(Answer {
            code: answer.status().as_u16(),
            content_type: content_type.unwrap_or_default(),
            retry_after,
            body: answer.into_body(),
            read: Vec::new(),
            runtime: Arc::clone(&self.runtime),
        })
    }

    async fn exchange(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, String> {
        let mut request = Request::builder().method(method).uri(path).header("Host", "lab");
        if !content_type.is_empty() {
            request = request.header("Content-Type", content_type);
        }
        if let Some(accept) = self.accept {
            request = request.header("Accept", accept);
        }
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).unwrap();
        let stream = TcpStream::connect(self.address).await.map_err(|e| format!("connect: {e}"))?;
        match &self.tls {
            None => talk(stream, request).await,
            Some(tls) => {
                let name = ServerName::from(self.address.ip());
                let stream = tls.connect(name, stream).await.map_err(|e| format!("TLS: {e}"))?;
                talk(stream, request).await
            }
        }
    }
}

async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, String> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    // An error of the connection shows in the body.
    tokio::spawn(async move { drop(connection.await) });
    sender.send_request(request).await.map_err(|e| format!("request: {e}"))
}

/// The next part of a stream.
#[derive(Debug, PartialEq)]
pub enum Next {
    Line(String),
    /// The answer has ended regularly. With the bytes after the last line.
    End(String),
    /// The connection broke. With the bytes after the last line.
    Broken(String),
}

impl Answer {
    pub fn next(&mut self) -> Next {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Next::Line(String::from_utf8_lossy(line.trim_ascii_end()).into_owned());
            }
            let frame = self.runtime.block_on(async {
                tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("the stream is silent")
            });
            let rest = String::from_utf8_lossy(&self.read).into_owned();
            match frame {
                None => return Next::End(rest),
                Some(Err(_)) => return Next::Broken(rest),
                Some(Ok(frame)) => self.read.extend_from_slice(&frame.into_data().unwrap()),
            }
        }
    }

    /// The next line, which must be JSON.
    pub fn event(&mut self) -> Value {
        match self.next() {
            Next::Line(line) => serde_json::from_str(&line).expect(&line),
            other => panic!("no line but {other:?}"),
        }
    }

    /// The next event in short: `ADDED web 7`.
    pub fn seen(&mut self) -> String {
        let event = self.event();
        let metadata = &event["object"]["metadata"];
        let version = metadata["resourceVersion"].as_str().unwrap_or("-");
        format!("{} {} {version}", event["type"].as_str().unwrap(), metadata["name"].as_str().unwrap_or("-"))
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Vec<u8> {
        while self.read.len() < count {
            let frame = self.runtime.block_on(async {
                tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("the stream is silent")
            });
            let frame = frame.expect("the answer goes on").expect("the connection holds");
            self.read.extend_from_slice(&frame.into_data().unwrap());
        }
        self.read.drain(..count).collect()
    }

    /// Whether nothing comes for a while.
    pub fn silent(&mut self) -> bool {
        let patience = Duration::from_millis(200);
        assert!(self.read.is_empty());
        self.runtime.block_on(async { tokio::time::timeout(patience, self.body.frame()).await.is_err() })
    }

    /// The body of an answer that must have this code. When it has not, the server's message is in the panic.
    pub fn expect(self, code: u16) -> Value {
        let found = self.code;
        let body = self.bytes().unwrap();
        assert_eq!(found, code, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    pub fn json(self) -> Value {
        serde_json::from_slice(&self.bytes().unwrap()).unwrap()
    }

    /// The whole body; or how much of it had come when the connection broke.
    pub fn bytes(mut self) -> Result<Vec<u8>, usize> {
        self.runtime.block_on(async {
            while let Some(frame) = self.body.frame().await {
                match frame {
                    Ok(frame) => self.read.extend_from_slice(&frame.into_data().unwrap()),
                    Err(_) => return Err(self.read.len()),
                }
            }
            Ok(std::mem::take(&mut self.read))
        })
    }
}
