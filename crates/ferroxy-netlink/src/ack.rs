//! Acknowledgements: the kernel's verdict on one request, decoded. Reads no socket.

use crate::codec::{Attributes, MESSAGE_HEADER, Malformed, Message, align, flag, kind};
use crate::error::Errno;

/// An acknowledgement: the kernel's verdict on one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    pub sequence: u32,
    pub errno: Option<Errno>,
    /// Offset of the offending attribute in the refused message.
    pub offset: Option<u32>,
    /// The kernel's message.
    pub words: Option<String>,
}

const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_OFFS: u16 = 2;

impl Ack {
    /// Reads an acknowledgement, or the end of a listing; `None` when the message is neither.
    pub fn from_message(message: &Message<'_>) -> Option<Result<Self, Malformed>> {
        match message.kind {
            kind::ERROR => Some(Self::from_error(message)),
            kind::DONE => Some(Self::from_done(message)),
            _ => None,
        }
    }

    /// Layout: an errno, the header of the refused message, its payload (unless capped), then attributes.
    fn from_error(message: &Message<'_>) -> Result<Self, Malformed> {
        const FIXED: usize = 4 + MESSAGE_HEADER;
        let payload = message.payload;
        let fixed = payload
            .first_chunk::<FIXED>()
            .ok_or(Malformed::Size { expected: FIXED, found: payload.len() })?;
        let echoed = if message.flags & flag::CAPPED != 0 || errno(fixed).is_none() {
            MESSAGE_HEADER
        } else {
            u32::from_ne_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]) as usize
        };
        let attributes = payload.get(4 + align(echoed)..).unwrap_or_default();
        Self::with_attributes(message, errno(fixed), attributes)
    }

    /// An errno, then attributes. Old kernels leave out the errno of an undisturbed listing.
    fn from_done(message: &Message<'_>) -> Result<Self, Malformed> {
        let attributes = message.payload.get(4..).unwrap_or_default();
        Self::with_attributes(message, errno(message.payload), attributes)
    }

    fn with_attributes(
        message: &Message<'_>,
        errno: Option<Errno>,
        attributes: &[u8],
    ) -> Result<Self, Malformed> {
        let mut ack = Self { sequence: message.sequence, errno, offset: None, words: None };
        if message.flags & flag::ACK_TLVS == 0 {
            return Ok(ack);
        }
        for attribute in Attributes::new(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                NLMSGERR_ATTR_MSG => ack.words = Some(attribute.str()?.to_owned()),
                NLMSGERR_ATTR_OFFS => ack.offset = Some(attribute.u32()?),
                _ => {}
            }
        }
        Ok(ack)
    }
}

/// The negative errno at the start of `payload`; zero means success.
fn errno(payload: &[u8]) -> Option<Errno> {
    let raw = i32::from_ne_bytes(*payload.first_chunk()?);
    match raw.checked_neg() {
        Some(0) => None,
        Some(code @ 1..=4095) => Some(Errno::from_raw_os_error(code)),
        // Not a valid errno, but still a refusal.
        _ => Some(Errno::IO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Encoder, Messages};

    /// An NLMSG_ERROR as the kernel writes it for a refused message.
    fn refusal(flags: u16, error: i32, echoed: &[u8], attributes: &[u8]) -> Vec<u8> {
        let mut payload = error.to_ne_bytes().to_vec();
        let mut header = [0u8; MESSAGE_HEADER];
        header[..4].copy_from_slice(&((MESSAGE_HEADER + echoed.len()) as u32).to_ne_bytes());
        payload.extend_from_slice(&header);
        payload.extend_from_slice(echoed);
        payload.extend_from_slice(attributes);
        let mut encoder = Encoder::new();
        let message = encoder.begin_message(kind::ERROR, flags, 5);
        encoder.put_raw(&payload);
        encoder.end_message(message);
        encoder.bytes().to_vec()
    }

    fn parse(bytes: &[u8]) -> Ack {
        let message = Messages::new(bytes).next().unwrap().unwrap();
        Ack::from_message(&message).unwrap().unwrap()
    }

    #[test]
    fn a_refusal_carries_errno_place_and_words() {
        let mut words = Encoder::new();
        words.put_str(NLMSGERR_ATTR_MSG, "no such chain");
        words.put_u32(NLMSGERR_ATTR_OFFS, 48);
        let expected = Ack {
            sequence: 5,
            errno: Some(Errno::NOENT),
            offset: Some(48),
            words: Some("no such chain".to_owned()),
        };
        let capped = refusal(flag::CAPPED | flag::ACK_TLVS, -2, &[], words.bytes());
        assert_eq!(parse(&capped), expected);
        // Without the cap, the kernel echoes our message first. It must not be parsed as attributes.
        let echoed = refusal(flag::ACK_TLVS, -2, &[9; 24], words.bytes());
        assert_eq!(parse(&echoed), expected);
    }

    #[test]
    fn consent_has_no_errno_and_nonsense_is_still_a_refusal() {
        assert_eq!(parse(&refusal(flag::CAPPED, 0, &[], &[])).errno, None);
        assert_eq!(parse(&refusal(flag::CAPPED, i32::MIN, &[], &[])).errno, Some(Errno::IO));
        assert_eq!(parse(&refusal(flag::CAPPED, 7, &[], &[])).errno, Some(Errno::IO));
    }

    #[test]
    fn a_cut_acknowledgement_is_an_error() {
        let bytes = refusal(flag::CAPPED, -2, &[], &[]);
        let whole = Messages::new(&bytes).next().unwrap().unwrap();
        let cut = Message { payload: &whole.payload[..10], ..whole };
        assert!(Ack::from_message(&cut).unwrap().is_err());
    }
}
