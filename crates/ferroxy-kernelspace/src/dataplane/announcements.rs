//! Subscribes to announcements of HNS. A subscription ends when HNS stops: each look at HNS subscribes again if necessary.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ferroxy_dataplane::capability::Notify;
use ferroxy_hcn::{Hcn, Notification};
use tracing::warn;

pub(super) struct Announcements {
    notify: Arc<Mutex<Notify>>,
    /// Whether the last subscription is alive: false once HNS has stopped.
    is_listening: Arc<AtomicBool>,
    /// The failure to subscribe was logged.
    is_said: bool,
}

impl Announcements {
    pub(super) fn new(notify: Notify) -> Announcements {
        Announcements { notify: Arc::new(Mutex::new(notify)), is_listening: Arc::default(), is_said: false }
    }

    /// Subscribes if necessary. If that fails, verification finds the changes.
    pub(super) fn listen(&mut self, hcn: &mut Hcn) {
        if self.is_listening.load(Ordering::SeqCst) {
            return;
        }
        let is_listening = Arc::new(AtomicBool::new(true));
        match hcn.listen(Box::new(self.listener(Arc::clone(&is_listening)))) {
            Ok(()) => {
                self.is_listening = is_listening;
                self.is_said = false;
            }
            Err(error) => {
                // A call that hangs may succeed later, after another one has taken its place: it must then be ignored.
                is_listening.store(false, Ordering::SeqCst);
                if !std::mem::replace(&mut self.is_said, true) {
                    warn!(
                        "HNS does not announce changes: {error}; until it does, they are noticed every syncPeriod"
                    );
                }
            }
        }
    }

    /// Notifications of an ended subscription are ignored: its successor receives the same.
    fn listener(&self, is_listening: Arc<AtomicBool>) -> impl Fn(Notification) -> bool + use<> {
        let notify = Arc::clone(&self.notify);
        move |notification| {
            let words = match notification {
                Notification::NetworkCreated => "a network was created",
                Notification::NetworkDeleted => "a network was deleted",
                Notification::EndpointAttached => "a pod was attached",
                Notification::EndpointDetached => "a pod was detached",
                Notification::Disconnected => "the Host Networking Service stopped",
            };
            let goes_on = notification != Notification::Disconnected;
            let was_listening = is_listening.fetch_and(goes_on, Ordering::SeqCst);
            was_listening && notify.lock().unwrap_or_else(PoisonError::into_inner)(words) && goes_on
        }
    }
}

impl Drop for Announcements {
    fn drop(&mut self) {
        self.is_listening.store(false, Ordering::SeqCst);
    }
}
