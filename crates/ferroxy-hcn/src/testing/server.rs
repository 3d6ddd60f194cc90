//! The service in memory for other processes: programs under wine, whose libraries forward each call to it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::fake::Fake;
use super::frame;
use super::service::Answer;
use crate::api::{Api, Notification};
use crate::guid::Guid;

/// Serves until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Server {
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
    }
}

/// On a free port of the loopback address.
pub fn serve(fake: &Fake) -> io::Result<Server> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let server = Server { address: listener.local_addr()?, ended: Arc::default() };
    let (fake, ended) = (fake.clone(), Arc::clone(&server.ended));
    thread::spawn(move || {
        for stream in listener.incoming() {
            if ended.load(Ordering::Relaxed) {
                break;
            }
            let fake = fake.clone();
            // A connection ends with the program at its other end.
            thread::spawn(move || stream.and_then(|stream| answer_all(fake, stream)));
        }
    });
    Ok(server)
}

fn answer_all(mut fake: Fake, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some(request) = frame::read(&mut stream)? {
        let field = |at: usize| request.get(at).map_or("", String::as_str);
        if field(0) == frame::LISTEN {
            return announce(&mut fake, stream);
        }
        let handle = field(1).parse().unwrap_or(0);
        let id = field(2).parse().unwrap_or(Guid::ZERO);
        let (code, handle, text) = match fake.call(field(0), handle, id, field(3)) {
            Answer::Done => (0, 0, String::new()),
            Answer::Handle(handle) => (0, handle, String::new()),
            Answer::Text(text) => (0, 0, text),
            Answer::Failed(code, words) => (code.hresult(), 0, words),
        };
        frame::write(&mut stream, &[&code.to_string(), &handle.to_string(), &text])?;
    }
    Ok(())
}

/// The answer is the HRESULT. Notifications come after it.
fn announce(fake: &mut Fake, stream: TcpStream) -> io::Result<()> {
    let stream = Arc::new(Mutex::new(stream));
    let announced = Arc::clone(&stream);
    let notify = move |notification: Notification| {
        let number = match notification {
            Notification::NetworkCreated => 2,
            Notification::NetworkDeleted => 4,
            Notification::EndpointAttached => 9,
            Notification::EndpointDetached => 16,
            Notification::Disconnected => 0x0100_0000_u32,
        };
        let mut stream = announced.lock().unwrap_or_else(PoisonError::into_inner);
        frame::write(&mut *stream, &[&number.to_string()]).is_ok()
    };
    let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
    let code = fake.listen(Box::new(notify)).map_or_else(|error| error.code.hresult(), |()| 0);
    frame::write(&mut *stream, &[&code.to_string()])
}
