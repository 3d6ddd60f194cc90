//! As much of HTTP/1 as a probe needs: a request without a body, and the status of the answer. Pure.

use std::net::SocketAddr;

/// The most bytes that are read of an answer: more than its status needs, so that small answers are read to their end.
pub(crate) const MOST_READ: usize = 4096;

/// The state of an answer after the bytes read so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Incomplete,
    Status(u16),
    NotHttp,
}

pub(crate) fn request(to: SocketAddr, path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: ferroxy-health/{}\r\nAccept: */*\r\nConnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// The final status: informational answers (1xx) may come before it.
pub(crate) fn answer(mut read: &[u8]) -> Answer {
    const START: &[u8] = b"HTTP/1.x 200 ";
    loop {
        let known = read.len().min(7);
        if read[..known] != START[..known] {
            return Answer::NotHttp;
        }
        let Some(line) = read.get(..START.len()) else { return Answer::Incomplete };
        let is_number = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
        let is_line = is_number(&line[7..8]) && line[8] == b' ' && is_number(&line[9..12]);
        if !is_line || !matches!(line[12], b' ' | b'\r' | b'\n') {
            return Answer::NotHttp;
        }
        let code = line[9..12].iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
        if code >= 200 {
            return Answer::Status(code);
        }
        match end_of_head(read) {
            Some(rest) => read = rest,
            None => return Answer::Incomplete,
        }
    }
}

fn end_of_head(read: &[u8]) -> Option<&[u8]> {
    const END: &[u8] = b"\r\n\r\n";
    let at = read.windows(END.len()).position(|window| window == END)?;
    read.get(at + END.len()..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_names_whom_it_asks_and_who_asks() {
        let request = request("[fd00::1]:8080".parse().unwrap(), "/healthz?full");
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            "GET /healthz?full HTTP/1.1\r\nHost: [fd00::1]:8080\r\nUser-Agent: ferroxy-health/{version}\r\n\
             Accept: */*\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(request, expected);
    }

    #[test]
    fn a_status_is_read_as_soon_as_it_is_there() {
        let whole = b"HTTP/1.1 204 No Content\r\n\r\n";
        for length in 0..13 {
            assert_eq!(answer(&whole[..length]), Answer::Incomplete, "{length}");
        }
        for length in 13..=whole.len() {
            assert_eq!(answer(&whole[..length]), Answer::Status(204));
        }
        assert_eq!(answer(b"HTTP/1.0 503\r\n"), Answer::Status(503));
        assert_eq!(answer(b"HTTP/1.1 302\nLocation: /"), Answer::Status(302));
    }

    #[test]
    fn informational_answers_come_before_the_status() {
        assert_eq!(answer(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n"), Answer::Incomplete);
        assert_eq!(answer(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"), Answer::Incomplete);
        assert_eq!(answer(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"), Answer::Status(200));
        assert_eq!(answer(b"HTTP/1.1 100 Continue\r\n\r\nSSH-2.0"), Answer::NotHttp);
    }

    #[test]
    fn other_protocols_are_no_answer() {
        let others: [&[u8]; 8] = [
            b"SSH-2.0-OpenSSH_9.6\r\n",
            b"\0\0\x12\x04\0\0\0\0\0\0\0\0\0\0\0",
            b"\x15\x03\x01\0\x02\x02\x46",
            b"HTTP/2 200 OK\r\n",
            b"HTTP/1.1 2000 OK",
            b"HTTP/1.1 20x OK\r\n",
            b"HTTP/1.1-200 OK\r\n",
            b"h",
        ];
        for other in others {
            assert_eq!(answer(other), Answer::NotHttp, "{other:?}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        for byte in 0..=u8::MAX {
            for length in 0..20 {
                answer(&vec![byte; length]);
                answer(&[b"HTTP/1.1 ", vec![byte; length].as_slice()].concat());
            }
        }
    }
}
