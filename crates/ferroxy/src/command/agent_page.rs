//! The page of the agent that runs on this node (`/statusz`), for what only that agent knows.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::input::Settings;

/// Generous: an agent on a very busy node may answer late, and must not be taken for missing.
const PATIENCE: Duration = Duration::from_secs(10);

/// More than a page can have: its lists are bounded.
const LONGEST_ANSWER: u64 = 4 << 20;

/// The page, and its address. The error says why there is no page.
pub(super) fn page(settings: &Settings) -> Result<(Value, SocketAddr), String> {
    let metrics = settings.config.metrics_address();
    ask(metrics.ok_or_else(|| "the agent serves no metrics".to_owned())?)
}

/// The mode of the agent that runs on this node, if one answers.
pub(super) fn mode(settings: &Settings) -> Option<String> {
    let (page, _) = page(settings).ok()?;
    page["mode"].as_str().map(str::to_owned)
}

/// `metrics`: where the agent serves its metrics.
pub(super) fn ask(metrics: SocketAddr) -> Result<(Value, SocketAddr), String> {
    let address = reachable(metrics);
    let answer = get(address).map_err(|error| format!("no agent answers at {address} ({error})"))?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((serde_json::from_str(body).unwrap_or_default(), address))
}

/// The address at which this node can connect to a listener.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    let loopback: IpAddr =
        if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    if address.ip().is_unspecified() {
        address.set_ip(loopback);
    }
    address
}

fn get(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET /statusz HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(LONGEST_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_for_all_is_asked_on_loopback() {
        for (listened, asked) in [
            ("0.0.0.0:10249", "127.0.0.1:10249"),
            ("[::]:10249", "[::1]:10249"),
            ("192.0.2.1:10249", "192.0.2.1:10249"),
        ] {
            assert_eq!(reachable(listened.parse().unwrap()), asked.parse().unwrap());
        }
    }

    #[test]
    fn whoever_does_not_answer_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            // The whole request: closing with unread data would reset the connection.
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n{\"a\": 1}").unwrap();
        });
        assert_eq!(ask(address), Ok((serde_json::json!({ "a": 1 }), address)));
        answering.join().unwrap();
        let error = ask(address).unwrap_err();
        assert!(error.starts_with(&format!("no agent answers at {address}")), "{error}");
    }
}
