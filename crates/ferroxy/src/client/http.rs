//! A request to a server on this machine, over plain HTTP/1.0: one connection for each request, and bounded answers.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a server may take to accept, and to send the next bytes of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// 1,000 Services with everything that is shown of them are far below this.
const LONGEST_ANSWER: u64 = 64 << 20;

/// A stream sends at least a heartbeat every 15 seconds.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

const LONGEST_HEAD: u64 = 64 << 10;

/// The code and the body of an answer.
pub(super) fn get(address: SocketAddr, path: &str, token: Option<&str>) -> io::Result<(u16, Vec<u8>)> {
    let mut answer = send(address, path, token, PATIENCE)?;
    let code = read_head(&mut answer)?;
    let mut body = Vec::new();
    let read = answer.take(LONGEST_ANSWER + 1).read_to_end(&mut body)?;
    if read as u64 > LONGEST_ANSWER {
        return Err(invalid("the answer is too long"));
    }
    Ok((code, body))
}

/// The code of an answer, and its body line by line as it comes.
pub(super) fn lines(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
) -> io::Result<(u16, impl BufRead + use<>)> {
    let mut answer = send(address, path, token, LONGEST_SILENCE)?;
    let code = read_head(&mut answer)?;
    Ok((code, answer))
}

/// Whether a connection is accepted.
pub(super) fn is_there(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, PATIENCE).is_ok()
}

fn send(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    patience: Duration,
) -> io::Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let token = token.map(|token| format!("X-Ferroxy-Token: {token}\r\n")).unwrap_or_default();
    // In one piece: it is short.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n{token}\r\n").as_bytes())?;
    Ok(BufReader::new(stream))
}

fn read_head(answer: &mut impl BufRead) -> io::Result<u16> {
    let mut head = answer.take(LONGEST_HEAD);
    let mut line = String::new();
    head.read_line(&mut line)?;
    let code = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    let code = code.and_then(|code| code.trim().parse().ok());
    let code = code.ok_or_else(|| invalid("the answer is not HTTP"))?;
    loop {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Err(invalid("the head of the answer does not end"));
        }
        if line.trim_end().is_empty() {
            return Ok(code);
        }
    }
}

fn invalid(words: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answers one request with these bytes; the request comes back.
    fn serve(answer: &'static [u8]) -> (SocketAddr, thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            stream.write_all(answer).unwrap();
            String::from_utf8(request).unwrap()
        });
        (address, serving)
    }

    #[test]
    fn a_body_ends_with_the_connection_and_the_token_is_sent() {
        let (address, serving) = serve(b"HTTP/1.0 404 Not Found\r\nContent-Type: x\r\n\r\nno\nsuch thing");
        let (code, body) = get(address, "/api/v1/status", Some("secret")).unwrap();
        assert_eq!((code, &*body), (404, &b"no\nsuch thing"[..]));
        let request = serving.join().unwrap();
        assert!(request.starts_with("GET /api/v1/status HTTP/1.0\r\n"), "{request}");
        assert!(request.contains("X-Ferroxy-Token: secret\r\n"), "{request}");
    }

    #[test]
    fn what_is_not_http_is_an_error() {
        for answer in [&b"SSH-2.0-OpenSSH\r\n\r\n"[..], b"", b"HTTP/1.1 200 OK\r\nX: y\r\n"] {
            let (address, serving) = serve(answer);
            let error = get(address, "/", None).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
            serving.join().unwrap();
        }
    }
}
