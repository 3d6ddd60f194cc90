//! One call over TCP.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use ferroxy_hcn::testing::frame;

/// The environment variable with the address of the service, for threads that name none.
pub(crate) const ADDRESS: &str = "FERROXY_FAKE_HNS";

/// As if HNS did not run.
pub(crate) const NOT_RUNNING: u32 = 0x8007_06b5;

thread_local! {
    static SERVICE: RefCell<Service> = const { RefCell::new(Service { address: None, connection: None }) };
}

/// The service that the calls of a thread go to: tests in one process have a service each.
struct Service {
    address: Option<String>,
    connection: Option<TcpStream>,
}

/// From now on, calls of this thread go to this address.
pub(crate) fn address(address: String) {
    SERVICE.set(Service { address: Some(address), connection: None });
}

pub(crate) struct Answer {
    pub(crate) code: u32,
    pub(crate) handle: u64,
    /// A text, or the words of an error.
    pub(crate) text: String,
}

pub(crate) fn call(function: &str, handle: u64, id: &str, text: &str) -> Answer {
    let answered = SERVICE.with_borrow_mut(|service| {
        let answered = ask(service, &[function, &handle.to_string(), id, text]);
        if answered.is_err() {
            service.connection = None;
        }
        answered
    });
    answered.unwrap_or(Answer { code: NOT_RUNNING, handle: 0, text: String::new() })
}

fn ask(service: &mut Service, request: &[&str]) -> io::Result<Answer> {
    if service.connection.is_none() {
        service.connection = Some(service.connect()?);
    }
    let Some(stream) = service.connection.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
    frame::write(stream, request)?;
    let answer = frame::read(stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let field = |at: usize| answer.get(at).cloned().unwrap_or_default();
    let number =
        |at: usize| field(at).parse::<u64>().map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
    Ok(Answer { code: u32::try_from(number(0)?).unwrap_or(NOT_RUNNING), handle: number(1)?, text: field(2) })
}

impl Service {
    fn connect(&self) -> io::Result<TcpStream> {
        let address = match &self.address {
            Some(address) => address.clone(),
            None => std::env::var(ADDRESS).map_err(|_| io::ErrorKind::NotFound)?,
        };
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Registrations that have not ended, by their handles.
static LISTENING: Mutex<BTreeMap<usize, TcpStream>> = Mutex::new(BTreeMap::new());

fn listening() -> MutexGuard<'static, BTreeMap<usize, TcpStream>> {
    LISTENING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls back with the numbers of notifications, from a thread of its own, until the service ends or [`unlisten`] is called.
pub(crate) fn listen(notify: impl Fn(u32) + Send + 'static) -> io::Result<Answer> {
    let mut stream = SERVICE.with_borrow(Service::connect)?;
    frame::write(&mut stream, &[frame::LISTEN, "0", "", ""])?;
    let answer = frame::read(&mut stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let code = answer.first().and_then(|code| code.parse().ok()).unwrap_or(NOT_RUNNING);
    if code != 0 {
        return Ok(Answer { code, handle: 0, text: String::new() });
    }
    let handle = {
        let mut listening = listening();
        let handle = listening.last_key_value().map_or(8, |(last, _)| last + 8);
        listening.insert(handle, stream.try_clone()?);
        handle
    };
    thread::spawn(move || {
        while let Ok(Some(fields)) = frame::read(&mut stream) {
            if let Some(number) = fields.first().and_then(|number| number.parse().ok()) {
                notify(number);
            }
        }
    });
    Ok(Answer { code, handle: handle as u64, text: String::new() })
}

/// Ends a registration. Returns whether there was one.
pub(crate) fn unlisten(handle: usize) -> bool {
    let stream = listening().remove(&handle);
    // An error means that the service has ended it.
    stream.map(|stream| stream.shutdown(Shutdown::Both)).is_some()
}
