//! The kernel's named packet counters (`nfnetlink_acct`), which iptables rules count into with `-m nfacct`. Creates, reads and
//! removes them; the rules decide what is counted.

#[cfg(target_os = "linux")]
mod connection;

#[cfg(target_os = "linux")]
pub use connection::{Connection, is_missing};

use crate::codec::{Encoder, Fields, Malformed, Message};

/// Packets and bytes counted since the counter was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    pub packets: u64,
    pub bytes: u64,
}

/// Message types: the subsystem and what to do.
mod message {
    const ACCT: u16 = crate::numbers::subsystem::ACCT << 8;
    pub(super) const NEW: u16 = ACCT;
    pub(super) const GET: u16 = ACCT | 1;
    pub(super) const DELETE: u16 = ACCT | 3;
}

/// `NFACCT_*`.
mod attribute {
    pub(super) const NAME: u16 = 1;
    pub(super) const PACKETS: u16 = 2;
    pub(super) const BYTES: u16 = 3;
    pub(super) const COUNT: usize = 4;
}

/// `nfgenmsg`: family u8, version u8, resource id u16. Counters have no family.
const HEADER: usize = 4;

fn put_name(out: &mut Encoder, name: &str) {
    out.put_raw(&[0; HEADER]);
    out.put_str(attribute::NAME, name);
}

fn read_counter(message: &Message<'_>) -> Result<Counter, Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    let fields: Fields<'_, { attribute::COUNT }> = Fields::new(attributes)?;
    Ok(Counter {
        packets: fields.need(attribute::PACKETS, "packets of a counter")?.u64_be()?,
        bytes: fields.need(attribute::BYTES, "bytes of a counter")?.u64_be()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_in_network_order() {
        let mut out = Encoder::new();
        put_name(&mut out, "ferroxy");
        out.put_bytes(attribute::PACKETS, &[0, 0, 0, 0, 0, 0, 1, 2]);
        out.put_bytes(attribute::BYTES, &[0, 0, 0, 0, 0, 3, 4, 5]);
        let message = Message { kind: message::NEW, flags: 0, sequence: 1, port_id: 0, payload: out.bytes() };
        assert_eq!(read_counter(&message), Ok(Counter { packets: 0x0102, bytes: 0x0003_0405 }));
    }
}
