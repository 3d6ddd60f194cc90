//! Passes sockets between processes: descriptors in a message of a unix socket (SCM_RIGHTS), with a text about them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The kernel passes at most 253 descriptors with one message.
pub const MOST: usize = 200;
/// The longest text of a message.
const LONGEST: usize = 64 * MOST;

/// Sends one message: a text, and at most [`MOST`] sockets.
pub fn send_sockets(stream: &UnixStream, text: &str, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
    let length = (text.len() as u32).to_be_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !sockets.is_empty() && !control.push(SendAncillaryMessage::ScmRights(sockets)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // The descriptors travel with the length, which is sent at once or not at all.
    let sent = sendmsg(stream, &[IoSlice::new(&length)], &mut control, SendFlags::NOSIGNAL)?;
    if sent != length.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    io::Write::write_all(&mut &*stream, text.as_bytes())
}

/// Receives one message; `None` at the end.
pub fn receive_sockets(stream: &UnixStream) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message =
        recvmsg(stream, &mut [IoSliceMut::new(&mut length)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if message.bytes == 0 {
        return Ok(None);
    }
    let rights = control.drain().filter_map(|it| match it {
        RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
        _ => None,
    });
    let sockets: Vec<OwnedFd> = rights.flatten().collect();
    let is_cut = message.bytes != length.len() || message.flags.contains(ReturnFlags::CTRUNC);
    let length = u32::from_be_bytes(length) as usize;
    if is_cut || length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length];
    io::Read::read_exact(&mut &*stream, &mut text)?;
    let text = String::from_utf8(text).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(Some((text, sockets)))
}
