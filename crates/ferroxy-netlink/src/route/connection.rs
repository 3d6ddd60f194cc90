//! A connection to rtnetlink. Linux only. The methods are in a file for each kind of object.

mod address;
mod link;
mod route;

use crate::error::Error;
use crate::socket::{Protocol, Socket};

/// A connection to the network namespace that the calling thread is in when it opens it, even if the thread changes it later.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
}

impl Connection {
    pub fn open() -> Result<Connection, Error> {
        Socket::open(Protocol::Route).map(|socket| Connection { socket })
    }
}
