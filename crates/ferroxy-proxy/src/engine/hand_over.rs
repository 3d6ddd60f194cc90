//! Hand-over of listening sockets: a predecessor offers them at a unix socket, a successor fetches them. Both listen on the
//! same sockets until the successor is ready, so that no client is refused.
//!
//! The predecessor sends messages with the word `sockets` and descriptors, then `end`. The successor answers `serving`
//! once it serves them. If the successor disconnects without this answer, the predecessor goes on as before.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt::socket_peercred};
use socket2::Socket;

use super::control::Control;
use super::lock;
use crate::shared::Shared;
use crate::system::{MOST_PASSED, receive_sockets, send_sockets};

const SOCKETS: &str = "sockets";
const END: &str = "end";
const SERVING: &[u8] = b"serving\n";
/// The time after which a silent neighbour is given up. A successor may need a while to read the cluster's state.
const PATIENCE: Duration = Duration::from_secs(600);

/// The processes before and after this one.
#[derive(Debug, Default)]
pub struct Neighbours {
    /// The connection to the predecessor, until we notify it that we serve.
    predecessor: Option<UnixStream>,
    offer: Option<Offer>,
}

#[derive(Debug)]
struct Offer {
    listener: Arc<UnixListener>,
    path: PathBuf,
    thread: JoinHandle<()>,
}

impl Neighbours {
    pub fn adopt(&mut self, path: &Path, control: &Mutex<Control>) -> io::Result<usize> {
        let stream = match UnixStream::connect(path) {
            Ok(stream) => stream,
            Err(error) if is_nobody_there(&error) => return Ok(0),
            Err(error) => return Err(error),
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut count = 0;
        loop {
            let (text, sockets) = receive_sockets(&stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            if text == END {
                break;
            }
            for socket in sockets {
                lock(control).adopted.add(Socket::from(socket))?;
                count += 1;
            }
        }
        self.predecessor = Some(stream);
        Ok(count)
    }

    pub fn adopted(&mut self, control: &Mutex<Control>) {
        let mut control = lock(control);
        control.adopted = Default::default();
        control.forget_unserved();
        drop(control);
        if let Some(mut predecessor) = self.predecessor.take() {
            // If the predecessor has ended, it needs no notification.
            let _ = predecessor.write_all(SERVING);
        }
    }

    pub fn offer(
        &mut self,
        path: &Path,
        control: Arc<Mutex<Control>>,
        shared: Arc<Shared>,
    ) -> io::Result<()> {
        self.end();
        let listener = Arc::new(listen(path)?);
        let ours = listener.clone();
        let thread = std::thread::Builder::new().name("hand-over".to_owned()).spawn(move || {
            // Ends when the offer is withdrawn, which shuts the listener down.
            while let Ok((stream, _)) = ours.accept() {
                if matches!(hand_over(&stream, &control), Ok(true)) {
                    shared.supersede();
                    lock(&control).close_all();
                    return;
                }
            }
        })?;
        self.offer = Some(Offer { listener, path: path.to_owned(), thread });
        Ok(())
    }

    /// Withdraws the offer.
    pub fn end(&mut self) {
        let Some(Offer { listener, path, thread }) = self.offer.take() else { return };
        let was_superseded = thread.is_finished();
        let _ = shutdown(&*listener, Shutdown::Both);
        let _ = thread.join();
        // After a hand-over, the successor listens on this path.
        if !was_superseded {
            let _ = fs::remove_file(path);
        }
    }
}

fn is_nobody_there(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Replaces a socket that another process has left at the path or still listens on: successors must reach the latest
/// offer.
fn listen(path: &Path) -> io::Result<UnixListener> {
    if fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Whether the successor serves now.
fn hand_over(stream: &UnixStream, control: &Mutex<Control>) -> io::Result<bool> {
    // The file's permissions keep other users away. This check also does if the permissions are too open.
    if socket_peercred(stream)?.uid != rustix::process::geteuid() {
        return Ok(false);
    }
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    {
        let control = lock(control);
        let sockets: Vec<BorrowedFd<'_>> =
            control.opened().flat_map(|it| &it.listening).map(|it| it.as_fd()).collect();
        for some in sockets.chunks(MOST_PASSED) {
            send_sockets(stream, SOCKETS, some)?;
        }
    }
    send_sockets(stream, END, &[])?;
    let mut answer = [0; SERVING.len()];
    (&*stream).read_exact(&mut answer)?;
    Ok(answer == SERVING)
}
