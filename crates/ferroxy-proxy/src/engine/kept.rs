//! The listening sockets that the service manager keeps for the next process: those that are open, and no others.

use std::io;
use std::os::fd::AsFd;

use socket2::Socket;

use super::control::Control;
use super::listeners::Opened;
use crate::config::Protocol;
use crate::system::Store;

/// Without a store, its methods do nothing.
#[derive(Debug, Default)]
pub struct Kept {
    store: Option<Store>,
    /// Failures of the store do not stop serving; they are only counted.
    pub failures: u64,
}

/// Returns how many sockets were taken. If a living predecessor has handed over sockets, those are used: they are the
/// same.
pub fn adopt(control: &mut Control) -> io::Result<usize> {
    let Some((store, sockets)) = Store::from_environment()? else { return Ok(0) };
    control.kept.store = Some(store);
    if !control.adopted.is_empty() {
        return Ok(0);
    }
    let count = sockets.len();
    for socket in sockets {
        control.adopted.add(Socket::from(socket))?;
    }
    Ok(count)
}

impl Kept {
    pub fn keep(&mut self, opened: &Opened) {
        if let Some(store) = &mut self.store {
            let sockets: Vec<_> = opened.listening.iter().map(|it| it.as_fd()).collect();
            let kept = store.keep(&place(opened), &sockets);
            self.failures += u64::from(kept.is_err());
        }
    }

    pub fn forget(&mut self, opened: &Opened) {
        if let Some(store) = &mut self.store {
            let forgotten = store.forget(&place(opened));
            self.failures += u64::from(forgotten.is_err());
        }
    }
}

impl Control {
    /// Removes sockets from the store on which an earlier run listened and this run does not.
    pub fn forget_unserved(&mut self) {
        let served: Vec<String> = self.opened().map(place).collect();
        if let Some(store) = &mut self.kept.store {
            let forgotten = store.forget_all_but(served.into_iter());
            self.kept.failures += u64::from(forgotten.is_err());
        }
    }
}

fn place(opened: &Opened) -> String {
    let protocol = if opened.protocol == Protocol::Tcp { "tcp" } else { "udp" };
    format!("{protocol}-{}", opened.address)
}
