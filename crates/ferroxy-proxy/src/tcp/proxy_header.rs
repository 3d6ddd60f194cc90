//! The header of PROXY protocol v2, which passes the addresses of the client's connection to an endpoint.

use std::net::SocketAddr;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const VERSION: u8 = 0x21;
const STREAM_OVER_IPV4: u8 = 0x11;
const STREAM_OVER_IPV6: u8 = 0x21;

/// `destination` is the address that the client used.
pub fn encode(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    header.push(VERSION);
    match (canonical(source), canonical(destination)) {
        (SocketAddr::V4(source), SocketAddr::V4(destination)) => {
            header.extend([STREAM_OVER_IPV4, 0, 12]);
            header.extend(source.ip().octets());
            header.extend(destination.ip().octets());
        }
        (source, destination) => {
            header.extend([STREAM_OVER_IPV6, 0, 36]);
            header.extend(sixteen(source));
            header.extend(sixteen(destination));
        }
    }
    header.extend(source.port().to_be_bytes());
    header.extend(destination.port().to_be_bytes());
    header
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn sixteen(address: SocketAddr) -> [u8; 16] {
    match address {
        SocketAddr::V4(it) => it.ip().to_ipv6_mapped().octets(),
        SocketAddr::V6(it) => it.ip().octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_as_the_specification_has_it() {
        let header = encode("192.0.2.7:54321".parse().unwrap(), "10.96.0.80:80".parse().unwrap());
        let expected = [
            0x0D, 0x0A, 0x0D, 0x0A, 0x00, 0x0D, 0x0A, 0x51, 0x55, 0x49, 0x54, 0x0A, 0x21, 0x11, 0, 12, 192,
            0, 2, 7, 10, 96, 0, 80, 0xD4, 0x31, 0, 80,
        ];
        assert_eq!(header, expected);
    }

    #[test]
    fn ipv6_has_36_bytes_of_addresses() {
        let header = encode("[2001:db8::7]:1".parse().unwrap(), "[fd00::80]:443".parse().unwrap());
        assert_eq!(header.len(), 16 + 36);
        assert_eq!(header[13..16], [0x21, 0, 36]);
        assert_eq!(header[16..20], [0x20, 0x01, 0x0D, 0xB8]);
        assert_eq!(header[48..], [0, 1, 1, 0xBB]);
    }
}
