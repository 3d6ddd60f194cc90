//! The service in memory as an [`Api`], and controls for tests. Clones are the same service.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::service::{Answer, Fault, FirstFault, Service, Setup};
use crate::api::{Api, Handle, Kind, Notification, OnNotification};
use crate::error::{Code, Error};
use crate::guid::Guid;
use crate::hcn::Hcn;
use crate::version::Version;

#[derive(Clone)]
pub struct Fake {
    service: Arc<Mutex<Service>>,
    listeners: Arc<Mutex<Vec<OnNotification>>>,
    /// Calls wait while it is set.
    hangs: Arc<(Mutex<bool>, Condvar)>,
    /// For calls through the libraries.
    #[cfg(windows)]
    server: Arc<Mutex<Option<super::Server>>>,
}

impl std::fmt::Debug for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fake").field("service", &self.service).finish_non_exhaustive()
    }
}

impl Fake {
    pub fn new(setup: Setup) -> Fake {
        Fake {
            service: Arc::new(Mutex::new(Service::new(setup))),
            listeners: Arc::default(),
            hangs: Arc::default(),
            #[cfg(windows)]
            server: Arc::default(),
        }
    }

    pub fn of(version: Version) -> Fake {
        Fake::new(Setup::of(version))
    }

    /// A client of this service. Under wine, where [`THROUGH_LIBRARIES`] is set, its calls go through the libraries of
    /// `ferroxy-hcn-fake`, and this thread must make them.
    pub fn hcn(&self) -> Hcn {
        #[cfg(windows)]
        if std::env::var_os(super::THROUGH_LIBRARIES).is_some() {
            return self.through_libraries();
        }
        Hcn::new(Box::new(self.clone()))
    }

    /// The server ends with the last clone of this service.
    #[cfg(windows)]
    #[allow(clippy::expect_used, reason = "only tests get here, and there is nothing to do about it")]
    fn through_libraries(&self) -> Hcn {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        // The server must not keep itself alive.
        let served = Fake { server: Arc::default(), ..self.clone() };
        let server = server.get_or_insert_with(|| super::serve(&served).expect("a free port"));
        let library = crate::Library::load().expect("computenetwork.dll and vmcompute.dll");
        library.address_fake(server.address()).expect("the libraries of ferroxy-hcn-fake");
        Hcn::new(Box::new(library))
    }

    pub fn service(&self) -> MutexGuard<'_, Service> {
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A network without routes to other nodes.
    pub fn add_network(&self, name: &str, kind: &str) -> Guid {
        self.service().add(Kind::Network, json!({ "Name": name, "Type": kind }))
    }

    /// An overlay with routes: the range of a node's pods (first), and the node (second).
    pub fn add_overlay(&self, name: &str, routes: &[(&str, &str)]) -> Guid {
        let policy = |(prefix, provider): &(&str, &str)| {
            json!({ "Type": "RemoteSubnetRoute", "Settings": {
                "DestinationPrefix": prefix, "ProviderAddress": provider, "IsolationId": 4096 } })
        };
        let policies: Vec<Value> = routes.iter().map(policy).collect();
        self.service().add(Kind::Network, json!({ "Name": name, "Type": "Overlay", "Policies": policies }))
    }

    /// Pods of this node get addresses of this range.
    pub fn add_subnet(&self, network: Guid, prefix: &str) {
        let mut service = self.service();
        let Some(mut document) = service.document(Kind::Network, network).cloned() else { return };
        document["Ipams"] = json!([{ "Type": "Static", "Subnets": [{ "IpAddressPrefix": prefix }] }]);
        service.replace(Kind::Network, network, document);
    }

    /// A pod of this node, as a network plugin adds it.
    pub fn add_pod(&self, network: Guid, name: &str, addresses: &[&str]) -> Guid {
        let configurations: Vec<Value> = addresses.iter().map(|ip| json!({ "IpAddress": ip })).collect();
        let id = self.service().add(
            Kind::Endpoint,
            json!({ "Name": name, "HostComputeNetwork": network, "IpConfigurations": configurations }),
        );
        self.notify(Notification::EndpointAttached);
        id
    }

    /// The next calls of this function fail.
    pub fn fail(&self, function: &str, code: Code, times: u32) {
        self.service().faults.push(Fault { function: function.to_owned(), code, times });
    }

    /// The next requests for this path of the first version are answered, and fail.
    pub fn fail_first(&self, path: &str, code: Option<Code>, times: u32) {
        self.service().first_faults.push(FirstFault { path: path.to_owned(), code, times });
    }

    /// Stops the service. Listeners are notified of it, and of nothing after it.
    pub fn stop(&self) {
        self.service().is_running = false;
        self.notify(Notification::Disconnected);
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub fn resume(&self) {
        self.service().is_running = true;
    }

    /// From now on calls do not return, until `hangs` is false again.
    pub fn hang(&self, hangs: bool) {
        *self.hangs.0.lock().unwrap_or_else(PoisonError::into_inner) = hangs;
        self.hangs.1.notify_all();
    }

    pub fn notify(&self, notification: Notification) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| listener(notification));
    }

    pub(super) fn call(&self, function: &str, handle: u64, id: Guid, text: &str) -> Answer {
        self.wait_while_it_hangs();
        self.service().call(function, handle, id, text)
    }

    fn wait_while_it_hangs(&self) {
        let hangs = self.hangs.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.hangs.1.wait_while(hangs, |hangs| *hangs).unwrap_or_else(PoisonError::into_inner));
    }

    fn answer(&self, function: String, handle: u64, id: Guid, text: &str) -> Result<Answer, Error> {
        match self.call(&function, handle, id, text) {
            Answer::Failed(code, words) => Err(Error::new(function, code, words)),
            answer => Ok(answer),
        }
    }
}

fn handle(answer: Answer) -> Handle {
    if let Answer::Handle(handle) = answer { Handle(handle) } else { Handle(0) }
}

fn text(answer: Answer) -> String {
    if let Answer::Text(text) = answer { text } else { String::new() }
}

impl Api for Fake {
    fn enumerate(&mut self, kind: Kind, query: &str) -> Result<String, Error> {
        self.answer(format!("HcnEnumerate{}s", kind.as_str()), 0, Guid::ZERO, query).map(text)
    }

    fn open(&mut self, kind: Kind, id: Guid) -> Result<Handle, Error> {
        self.answer(format!("HcnOpen{}", kind.as_str()), 0, id, "").map(handle)
    }

    fn create(
        &mut self,
        kind: Kind,
        network: Option<Handle>,
        id: Guid,
        settings: &str,
    ) -> Result<Handle, Error> {
        let network = network.map_or(0, |handle| handle.0);
        self.answer(format!("HcnCreate{}", kind.as_str()), network, id, settings).map(handle)
    }

    fn modify(&mut self, kind: Kind, handle: Handle, settings: &str) -> Result<(), Error> {
        self.answer(format!("HcnModify{}", kind.as_str()), handle.0, Guid::ZERO, settings).map(drop)
    }

    fn query(&mut self, kind: Kind, handle: Handle, query: &str) -> Result<String, Error> {
        self.answer(format!("HcnQuery{}Properties", kind.as_str()), handle.0, Guid::ZERO, query).map(text)
    }

    fn delete(&mut self, kind: Kind, id: Guid) -> Result<(), Error> {
        self.answer(format!("HcnDelete{}", kind.as_str()), 0, id, "").map(drop)
    }

    fn close(&mut self, kind: Kind, handle: Handle) {
        self.call(&format!("HcnClose{}", kind.as_str()), handle.0, Guid::ZERO, "");
    }

    fn call_v1(&mut self, method: &str, path: &str) -> Result<String, Error> {
        self.answer("HNSCall".to_owned(), 0, Guid::ZERO, &format!("{method} {path}")).map(text)
    }

    fn listen(&mut self, notify: OnNotification) -> Result<(), Error> {
        self.wait_while_it_hangs();
        if !self.service().is_running {
            return Err(Error::new(super::frame::LISTEN, Code::NOT_RUNNING, ""));
        }
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(notify);
        Ok(())
    }
}
