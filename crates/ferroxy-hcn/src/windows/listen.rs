//! Callbacks of the library. Their context is a number, not an address: a late callback cannot use freed memory.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::text::Returned;
use super::{Module, Pointer, check};
use crate::api::{Notification, OnNotification};
use crate::error::Error;

type Callback = unsafe extern "system" fn(u32, *const c_void, i32, *const u16);
type Register = unsafe extern "system" fn(Callback, *const c_void, *mut Pointer) -> i32;
type Unregister = unsafe extern "system" fn(Pointer) -> i32;

/// The listeners, by number.
static LISTENERS: Mutex<Listeners> = Mutex::new(Listeners { last: 0, known: BTreeMap::new() });

struct Listeners {
    last: usize,
    known: BTreeMap<usize, Arc<OnNotification>>,
}

fn listeners() -> MutexGuard<'static, Listeners> {
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends when it is dropped.
pub(super) struct Registration {
    /// Dropped after the registration has ended: a late callback finds no listener.
    _listener: Listener,
    handle: Pointer,
    unregister: Option<Unregister>,
}

// SAFETY: the library takes its handles back from any thread.
unsafe impl Send for Registration {}

struct Listener(usize);

impl Listener {
    fn new(notify: OnNotification) -> Listener {
        let mut listeners = listeners();
        listeners.last += 1;
        let number = listeners.last;
        listeners.known.insert(number, Arc::new(notify));
        Listener(number)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let gone = listeners().known.remove(&self.0);
        // Whatever it owns must not be dropped with the lock held.
        drop(gone);
    }
}

impl Registration {
    pub(super) fn new(module: &Module, notify: OnNotification) -> Result<Registration, Error> {
        const CALL: &str = "HcnRegisterServiceCallback";
        // SAFETY: both types are those of the documentation.
        let (register, unregister) = unsafe {
            (module.function::<Register>(CALL)?, module.function("HcnUnregisterServiceCallback").ok())
        };
        let listener = Listener::new(notify);
        let mut handle = std::ptr::null_mut();
        // SAFETY: the callback has the documented type and lives for ever; its context is a number, and never dereferenced.
        let code = unsafe { register(on_notification, listener.0 as *const c_void, &raw mut handle) };
        check(CALL, code, Returned::default())?;
        Ok(Registration { _listener: listener, handle, unregister })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(unregister) = self.unregister {
            // SAFETY: the handle is that of the registration, and used no more. An error means that HNS has forgotten it.
            unsafe { unregister(self.handle) };
        }
    }
}

/// The library calls this on threads of its own.
unsafe extern "system" fn on_notification(number: u32, context: *const c_void, _: i32, _: *const u16) {
    let Some(notification) = Notification::of(number) else { return };
    let listener = listeners().known.get(&(context as usize)).cloned();
    if let Some(notify) = listener {
        notify(notification);
    }
}
