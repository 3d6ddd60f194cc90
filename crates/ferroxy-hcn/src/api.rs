//! The C interface of HCN as a trait: text in, text out, handles in between.

use std::fmt::{self, Debug};

use crate::error::Error;
use crate::guid::Guid;

/// The kinds of objects that the service keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Network,
    Endpoint,
    LoadBalancer,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Network, Kind::Endpoint, Kind::LoadBalancer];

    /// As the names of functions spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Network => "Network",
            Kind::Endpoint => "Endpoint",
            Kind::LoadBalancer => "LoadBalancer",
        }
    }
}

/// For people.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Network => "network",
            Kind::Endpoint => "endpoint",
            Kind::LoadBalancer => "load balancer",
        })
    }
}

/// An open object: a pointer of the library, never dereferenced here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// What the service announces. It announces nothing about load balancers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notification {
    NetworkCreated,
    NetworkDeleted,
    EndpointAttached,
    EndpointDetached,
    /// The service stopped: nothing is known until it is back.
    Disconnected,
}

impl Notification {
    /// The notification with the number that the service calls back with.
    pub fn of(number: u32) -> Option<Notification> {
        match number {
            2 => Some(Notification::NetworkCreated),
            4 => Some(Notification::NetworkDeleted),
            9 => Some(Notification::EndpointAttached),
            16 => Some(Notification::EndpointDetached),
            0x0100_0000 => Some(Notification::Disconnected),
            _ => None,
        }
    }
}

/// Calls back from a thread of the library; `false` means that the receiver is gone.
pub type OnNotification = Box<dyn Fn(Notification) -> bool + Send + Sync>;

/// Each function is one call of the library. Texts are JSON.
pub trait Api: Debug + Send {
    /// The answer lists ids.
    fn enumerate(&mut self, kind: Kind, query: &str) -> Result<String, Error>;

    fn open(&mut self, kind: Kind, id: Guid) -> Result<Handle, Error>;

    /// An endpoint is created in a network.
    fn create(
        &mut self,
        kind: Kind,
        network: Option<Handle>,
        id: Guid,
        settings: &str,
    ) -> Result<Handle, Error>;

    fn modify(&mut self, kind: Kind, handle: Handle, settings: &str) -> Result<(), Error>;

    fn query(&mut self, kind: Kind, handle: Handle, query: &str) -> Result<String, Error>;

    fn delete(&mut self, kind: Kind, id: Guid) -> Result<(), Error>;

    fn close(&mut self, kind: Kind, handle: Handle);

    /// The first version of the API, which knows the version of the service.
    fn call_v1(&mut self, method: &str, path: &str) -> Result<String, Error>;

    fn listen(&mut self, notify: OnNotification) -> Result<(), Error>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_other_events_are_ignored() {
        assert_eq!(Notification::of(0x0100_0000), Some(Notification::Disconnected));
        assert_eq!(Notification::of(1), None, "a network is about to be created");
    }
}
