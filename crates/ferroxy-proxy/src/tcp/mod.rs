//! TCP: accepting, dialling, and moving bytes.

pub mod accept;
mod dial;
mod flow;
mod proxy_header;
mod pump;
pub mod serve;

use crate::system::runtime::TcpStream;

/// Closes a connection with RST instead of FIN.
fn reset(stream: TcpStream) {
    // If it fails, the peer has gone already.
    let _ = stream.options().set_linger(Some(std::time::Duration::ZERO));
}
