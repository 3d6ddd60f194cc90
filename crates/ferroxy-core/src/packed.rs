//! Values as bytes: one small allocation for an object that is stored for long and read rarely.
//!
//! Only the process that wrote the bytes reads them. So the format has no version, and reading has no errors: past the
//! end, every value is zero or empty.

use std::net::IpAddr;

use ipnet::IpNet;

/// Appends values. They are read in the same order.
#[derive(Debug)]
pub(crate) struct Packer {
    bytes: Vec<u8>,
}

impl Default for Packer {
    /// Allocates enough for most objects.
    fn default() -> Packer {
        Packer { bytes: Vec::with_capacity(64) }
    }
}

impl Packer {
    pub(crate) fn finish(self) -> Box<[u8]> {
        self.bytes.into()
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Small numbers take one byte: seven bits in each, the lowest first.
    pub(crate) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    pub(crate) fn length(&mut self, length: usize) {
        self.number(length as u64);
    }

    pub(crate) fn port(&mut self, port: u16) {
        self.bytes.extend_from_slice(&port.to_ne_bytes());
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.length(text.len());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// Writes the length of the prefix that the text shares with `other`, and the rest. The reader must know `other`.
    pub(crate) fn text_like(&mut self, other: &str, text: &str) {
        let same = text.bytes().zip(other.bytes()).take_while(|(one, other)| one == other);
        let mut shared = same.count();
        while !text.is_char_boundary(shared) {
            shared -= 1;
        }
        self.length(shared);
        self.text(&text[shared..]);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The reader must know the family.
    pub(crate) fn bare_address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => self.bytes.extend_from_slice(&v4.octets()),
            IpAddr::V6(v6) => self.bytes.extend_from_slice(&v6.octets()),
        }
    }

    pub(crate) fn address(&mut self, address: IpAddr) {
        self.byte(address.is_ipv6().into());
        self.bare_address(address);
    }

    pub(crate) fn network(&mut self, network: IpNet) {
        self.address(network.addr());
        self.byte(network.prefix_len());
    }

    pub(crate) fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Packer, &T)) {
        self.length(items.len());
        items.iter().for_each(|item| each(self, item));
    }

    pub(crate) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Packer, T)) {
        self.byte(value.is_some().into());
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Reads what a [`Packer`] wrote.
#[derive(Debug)]
pub(crate) struct Unpacker<'b> {
    rest: &'b [u8],
}

impl<'b> Unpacker<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Unpacker<'b> {
        Unpacker { rest: bytes }
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() != 0
    }

    pub(crate) fn number(&mut self) -> u64 {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        number
    }

    pub(crate) fn length(&mut self) -> usize {
        self.number() as usize
    }

    pub(crate) fn port(&mut self) -> u16 {
        u16::from_ne_bytes(self.array())
    }

    pub(crate) fn text(&mut self) -> &'b str {
        let length = self.length();
        std::str::from_utf8(self.take(length)).unwrap_or_default()
    }

    /// Returns two parts: the prefix shared with `other`, and the rest.
    pub(crate) fn text_like<'o>(&mut self, other: &'o str) -> (&'o str, &'b str) {
        let shared = self.length();
        (other.get(..shared).unwrap_or_default(), self.text())
    }

    pub(crate) fn bare_address(&mut self, is_v6: bool) -> IpAddr {
        if is_v6 { self.array::<16>().into() } else { self.array::<4>().into() }
    }

    pub(crate) fn address(&mut self) -> IpAddr {
        let is_v6 = self.flag();
        self.bare_address(is_v6)
    }

    pub(crate) fn network(&mut self) -> IpNet {
        let address = self.address();
        let length = self.byte();
        IpNet::new(address, length).unwrap_or_else(|_| address.into())
    }

    pub(crate) fn list<T, L: FromIterator<T>>(&mut self, mut read: impl FnMut(&mut Unpacker<'b>) -> T) -> L {
        let length = self.length();
        (0..length).map(|_| read(self)).collect()
    }

    pub(crate) fn option<T>(&mut self, read: impl FnOnce(&mut Unpacker<'b>) -> T) -> Option<T> {
        self.flag().then(|| read(self))
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().unwrap_or([0; N])
    }

    pub(crate) fn take(&mut self, length: usize) -> &'b [u8] {
        let (taken, rest) = self.rest.split_at_checked(length).unwrap_or_default();
        self.rest = rest;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_back_in_their_order() {
        let numbers = [0, 1, 127, 128, 16_384, u64::from(u32::MAX), u64::MAX];
        let addresses = ["10.0.0.1", "2001:db8::1"].map(|text| text.parse::<IpAddr>().unwrap());
        let networks = ["10.0.0.0/8", "2001:db8::/32"].map(|text| text.parse::<IpNet>().unwrap());
        let mut packer = Packer::default();
        packer.list(&numbers, |out, number| out.number(*number));
        packer.text("");
        packer.text("http");
        packer.port(8080);
        packer.list(&addresses, |out, address| out.address(*address));
        packer.list(&networks, |out, network| out.network(*network));
        packer.option(Some(7), Packer::byte);
        packer.option(None, Packer::byte);
        let bytes = packer.finish();
        let mut unpacker = Unpacker::new(&bytes);
        assert_eq!(unpacker.list::<_, Vec<_>>(Unpacker::number), numbers);
        assert_eq!((unpacker.text(), unpacker.text(), unpacker.port()), ("", "http", 8080));
        assert_eq!(unpacker.list::<_, Vec<_>>(Unpacker::address), addresses);
        assert_eq!(unpacker.list::<_, Vec<_>>(Unpacker::network), networks);
        assert_eq!((unpacker.option(Unpacker::byte), unpacker.option(Unpacker::byte)), (Some(7), None));
        assert!(unpacker.rest.is_empty());
    }

    #[test]
    fn of_texts_that_are_alike_only_the_difference_is_kept() {
        for (other, text, bytes) in [
            ("web", "web-1", 4),
            ("web-1", "web-2", 3),
            ("web-2", "web-2", 2),
            ("web-2", "web", 2),
            ("", "web", 5),
            ("b\u{e4}r", "b\u{eb}r", 5),
        ] {
            let mut packer = Packer::default();
            packer.text_like(other, text);
            let packed = packer.finish();
            let (same, rest) = Unpacker::new(&packed).text_like(other);
            assert_eq!((format!("{same}{rest}").as_str(), packed.len()), (text, bytes));
        }
    }

    #[test]
    fn beyond_the_end_there_is_nothing() {
        let mut unpacker = Unpacker::new(&[5, b'a']);
        assert_eq!(unpacker.text(), "");
        assert_eq!((unpacker.number(), unpacker.port(), unpacker.flag()), (0, 0, false));
        assert_eq!(unpacker.address(), IpAddr::from([0, 0, 0, 0]));
        assert_eq!(Unpacker::new(&[9, 0]).text_like("short"), ("", ""));
    }
}
