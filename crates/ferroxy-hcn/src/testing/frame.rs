//! The protocol between the libraries under wine and the server: frames of fields, over TCP.
//!
//! A frame is its length (four bytes, little-endian) and fields that end with a zero byte each. A request has function,
//! handle, id and text; an answer has the HRESULT, a handle, and a text. On a connection whose first request is
//! [`LISTEN`], the server writes a frame with the HRESULT, then frames with the numbers of notifications.

use std::io::{self, Read, Write};

pub const LISTEN: &str = "HcnRegisterServiceCallback";

/// Larger frames are an error.
const LONGEST: usize = 64 << 20;

pub fn write(stream: &mut impl Write, fields: &[&str]) -> io::Result<()> {
    let mut frame = vec![0; 4];
    for field in fields {
        frame.extend_from_slice(field.as_bytes());
        frame.push(0);
    }
    let length = u32::try_from(frame.len() - 4).map_err(|_| io::ErrorKind::InvalidInput)?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    stream.write_all(&frame)
}

/// `None` at the end of the stream.
pub fn read(stream: &mut impl Read) -> io::Result<Option<Vec<String>>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame)?;
    let text = String::from_utf8(frame).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Some(text.split_terminator('\0').map(str::to_owned).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_empty_ones_too() {
        let mut stream = Vec::new();
        write(&mut stream, &["a", "", "äö"]).unwrap();
        write(&mut stream, &["", ""]).unwrap();
        let mut stream = &stream[..];
        assert_eq!(read(&mut stream).unwrap().unwrap(), ["a", "", "äö"]);
        assert_eq!(read(&mut stream).unwrap().unwrap(), ["", ""]);
        assert_eq!(read(&mut stream).unwrap(), None);
    }
}
