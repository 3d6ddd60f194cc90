//! Calls with a deadline: a service that hangs must not hang its caller.
//!
//! One thread makes the calls, one after the other, and there is never a second one: the effect of a hanging call is unknown
//! until it returns, so no other call may overtake it. Until then every call fails at once with a timeout, which does not mean
//! that an object is absent. A handle that arrives too late is closed.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::api::{Api, Handle, Kind, OnNotification};
use crate::error::{Code, Error};
use crate::guid::Guid;

/// How long a call may take. The service needs seconds while it is busy with a network.
pub const USUAL: Duration = Duration::from_secs(30);

type Job = Box<dyn FnOnce(&mut dyn Api) + Send>;

/// An [`Api`] whose calls return in time.
#[derive(Debug)]
pub struct Patience {
    jobs: Sender<Job>,
    /// The call that has not returned.
    hanging: Arc<Mutex<Option<String>>>,
    pub deadline: Duration,
}

impl Patience {
    /// The thread ends with this value, or when the call that hangs then returns.
    pub fn with(mut api: Box<dyn Api>, deadline: Duration) -> io::Result<Patience> {
        let (jobs, queue) = channel::<Job>();
        let work = move || queue.into_iter().for_each(|job| job(&mut *api));
        thread::Builder::new().name("hcn".to_owned()).spawn(work)?;
        Ok(Patience { jobs, hanging: Arc::default(), deadline })
    }

    /// `discard`: what to do with an answer that comes too late.
    fn call<T: Send + 'static>(
        &self,
        call: String,
        work: impl FnOnce(&mut dyn Api) -> Result<T, Error> + Send + 'static,
        discard: impl FnOnce(&mut dyn Api, T) + Send + 'static,
    ) -> Result<T, Error> {
        if let Some(hanging) = &*lock(&self.hanging) {
            let words = format!("{hanging} has not returned yet");
            return Err(Error::new(call, Code::TIMEOUT, words));
        }
        let place = Arc::new(Place { slot: Mutex::new(Slot::Waiting), filled: Condvar::new() });
        let (filled, hanging) = (Arc::clone(&place), Arc::clone(&self.hanging));
        let job: Job = Box::new(move |api| {
            let answer = work(api);
            let mut slot = lock(&filled.slot);
            match *slot {
                Slot::Abandoned => {
                    if let Ok(answer) = answer {
                        discard(api, answer);
                    }
                    *lock(&hanging) = None;
                }
                Slot::Waiting | Slot::Filled(_) => {
                    *slot = Slot::Filled(answer);
                    filled.filled.notify_one();
                }
            }
        });
        if self.jobs.send(job).is_err() {
            return Err(Error::new(call, Code::CALL_NOT_EXECUTED, "the thread for calls has ended"));
        }
        place.wait(self.deadline).unwrap_or_else(|mut slot| {
            // The slot is still locked: the job that fills it later sees both changes.
            *slot = Slot::Abandoned;
            *lock(&self.hanging) = Some(call.clone());
            let words = format!("it hangs for {:?}", self.deadline);
            Err(Error::new(call, Code::TIMEOUT, words))
        })
    }
}

/// Where an answer is put.
struct Place<T> {
    slot: Mutex<Slot<T>>,
    filled: Condvar,
}

enum Slot<T> {
    Waiting,
    Filled(Result<T, Error>),
    /// The caller no longer waits.
    Abandoned,
}

impl<T> Place<T> {
    fn wait(&self, deadline: Duration) -> Result<Result<T, Error>, MutexGuard<'_, Slot<T>>> {
        let is_empty = |slot: &mut Slot<T>| !matches!(slot, Slot::Filled(_));
        let waited = self.filled.wait_timeout_while(lock(&self.slot), deadline, is_empty);
        let (mut slot, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *slot, Slot::Waiting) {
            Slot::Filled(answer) => Ok(answer),
            Slot::Waiting | Slot::Abandoned => Err(slot),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Api for Patience {
    fn enumerate(&mut self, kind: Kind, query: &str) -> Result<String, Error> {
        let query = query.to_owned();
        let call = format!("HcnEnumerate{}s", kind.as_str());
        self.call(call, move |api| api.enumerate(kind, &query), |_, _| {})
    }

    fn open(&mut self, kind: Kind, id: Guid) -> Result<Handle, Error> {
        let call = format!("HcnOpen{}", kind.as_str());
        self.call(call, move |api| api.open(kind, id), move |api, handle| api.close(kind, handle))
    }

    fn create(
        &mut self,
        kind: Kind,
        network: Option<Handle>,
        id: Guid,
        settings: &str,
    ) -> Result<Handle, Error> {
        let settings = settings.to_owned();
        let call = format!("HcnCreate{}", kind.as_str());
        let work = move |api: &mut dyn Api| api.create(kind, network, id, &settings);
        self.call(call, work, move |api, handle| api.close(kind, handle))
    }

    fn modify(&mut self, kind: Kind, handle: Handle, settings: &str) -> Result<(), Error> {
        let settings = settings.to_owned();
        let call = format!("HcnModify{}", kind.as_str());
        self.call(call, move |api| api.modify(kind, handle, &settings), |_, ()| {})
    }

    fn query(&mut self, kind: Kind, handle: Handle, query: &str) -> Result<String, Error> {
        let query = query.to_owned();
        let call = format!("HcnQuery{}Properties", kind.as_str());
        self.call(call, move |api| api.query(kind, handle, &query), |_, _| {})
    }

    fn delete(&mut self, kind: Kind, id: Guid) -> Result<(), Error> {
        let call = format!("HcnDelete{}", kind.as_str());
        self.call(call, move |api| api.delete(kind, id), |_, ()| {})
    }

    /// Does not wait for the call. At most one hanging call leaves a handle behind.
    fn close(&mut self, kind: Kind, handle: Handle) {
        // An error means that the thread has ended, and the process with it.
        let _ = self.jobs.send(Box::new(move |api| api.close(kind, handle)));
    }

    fn call_v1(&mut self, method: &str, path: &str) -> Result<String, Error> {
        let (method, path) = (method.to_owned(), path.to_owned());
        self.call("HNSCall".to_owned(), move |api| api.call_v1(&method, &path), |_, _| {})
    }

    fn listen(&mut self, notify: OnNotification) -> Result<(), Error> {
        let call = "HcnRegisterServiceCallback".to_owned();
        self.call(call, move |api| api.listen(notify), |_, ()| {})
    }
}
