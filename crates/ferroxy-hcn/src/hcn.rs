//! The API with typed documents. Combines calls that belong together (open, query, close), and leaves no handle open.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{Api, Handle, Kind, OnNotification};
use crate::document::{Endpoint, Listed, LoadBalancer, Network, Query};
use crate::error::{Code, Error, ErrorKind};
use crate::guid::Guid;
use crate::version::Version;

/// The only function of the first version of the API.
const V1: &str = "HNSCall";

#[derive(Debug)]
pub struct Hcn {
    api: Box<dyn Api>,
    /// The network in which endpoints are created. It stays open, so that each endpoint costs one call.
    network: Option<(Guid, Handle)>,
    /// Whether the service keeps the ids that a caller chooses: known after the first object was created.
    keeps_ids: Option<bool>,
    calls: Calls,
}

/// How many calls were made. Closing a handle does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calls {
    pub reads: u64,
    pub writes: u64,
}

impl Calls {
    pub fn total(self) -> u64 {
        self.reads + self.writes
    }
}

impl Hcn {
    pub fn new(api: Box<dyn Api>) -> Hcn {
        Hcn { api, network: None, keeps_ids: None, calls: Calls::default() }
    }

    pub fn calls(&self) -> Calls {
        self.calls
    }

    pub fn version(&mut self) -> Result<Version, Error> {
        // Every HNS has a version: a failure without a code counts as a call without an answer.
        let answer = self.get_v1("/globals/version", Code::CALL_FAILED)?;
        serde_json::from_value(answer).map_err(|error| Error::unreadable(V1, error))
    }

    /// All load balancers of the host, in full, with one call.
    pub fn listed_load_balancers(&mut self) -> Result<Vec<Listed<LoadBalancer>>, Error> {
        let all = self.list_v1("/policylists/")?;
        Ok(all.into_iter().filter_map(Listed::balancer).collect())
    }

    /// All endpoints of the host, in full, with one call.
    pub fn listed_endpoints(&mut self) -> Result<Vec<Listed<Endpoint>>, Error> {
        let all = self.list_v1("/endpoints/")?;
        Ok(all.into_iter().filter_map(Listed::endpoint).collect())
    }

    fn list_v1(&mut self, path: &str) -> Result<Vec<Value>, Error> {
        match self.get_v1(path, Code::NOT_IMPLEMENTED)? {
            Value::Array(all) => Ok(all),
            Value::Null => Ok(Vec::new()),
            _ => Err(Error::unreadable(V1, "no list")),
        }
    }

    /// `otherwise`: the code of a failure whose answer has none.
    fn get_v1(&mut self, path: &str, otherwise: Code) -> Result<Value, Error> {
        self.calls.reads += 1;
        let text = self.api.call_v1("GET", path)?;
        let mut answer: Value = decode(V1, &text)?;
        if answer.get("Success") == Some(&Value::Bool(false)) {
            let reason = answer.get("Error").and_then(Value::as_str).unwrap_or_default();
            let code = answer.get("ErrorCode").and_then(error_code).unwrap_or(otherwise);
            return Err(Error::new(V1, code, reason).about(path));
        }
        Ok(answer.get_mut("Output").map(Value::take).unwrap_or_default())
    }

    /// The network of this name, in upper or lower case: `None` if there is none.
    pub fn network(&mut self, name: &str) -> Result<Option<Network>, Error> {
        let mut found = self.list(Kind::Network, &Query::named(name))?;
        if found.is_empty() {
            // Filters may be case-sensitive.
            found = self.list(Kind::Network, &Query::default())?;
        }
        for id in found {
            let network: Option<Network> = self.get(Kind::Network, id)?;
            if let Some(network) = network.filter(|it| it.name.eq_ignore_ascii_case(name)) {
                return Ok(Some(Network { id: Some(id), ..network }));
            }
        }
        Ok(None)
    }

    /// The names of all networks, for people.
    pub fn network_names(&mut self) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for id in self.list(Kind::Network, &Query::default())? {
            let network: Option<Network> = self.get(Kind::Network, id)?;
            names.extend(network.map(|it| it.name));
        }
        Ok(names)
    }

    /// Whether there is an object with this id.
    pub fn exists(&mut self, kind: Kind, id: Guid) -> Result<bool, Error> {
        self.calls.reads += 1;
        match self.api.open(kind, id) {
            Ok(handle) => {
                self.api.close(kind, handle);
                Ok(true)
            }
            Err(error) if is_absence(&error) => Ok(false),
            Err(error) => Err(error.about(id)),
        }
    }

    pub fn endpoints(&mut self, network: Guid) -> Result<Vec<Guid>, Error> {
        self.list(Kind::Endpoint, &Query::of_network(network))
    }

    /// The endpoints of all networks.
    pub fn all_endpoints(&mut self) -> Result<Vec<Guid>, Error> {
        self.list(Kind::Endpoint, &Query::default())
    }

    /// `None` when it is gone.
    pub fn endpoint(&mut self, id: Guid) -> Result<Option<Endpoint>, Error> {
        let found: Option<Endpoint> = self.get(Kind::Endpoint, id)?;
        Ok(found.map(|endpoint| Endpoint { id: Some(id), ..endpoint }))
    }

    pub fn load_balancers(&mut self) -> Result<Vec<Guid>, Error> {
        self.list(Kind::LoadBalancer, &Query::default())
    }

    /// `None` when it is gone.
    pub fn load_balancer(&mut self, id: Guid) -> Result<Option<LoadBalancer>, Error> {
        let found: Option<LoadBalancer> = self.get(Kind::LoadBalancer, id)?;
        Ok(found.map(|balancer| LoadBalancer { id: Some(id), ..balancer }))
    }

    /// Returns the id of the new endpoint: the service may choose another one.
    pub fn create_endpoint(&mut self, network: Guid, id: Guid, endpoint: &Endpoint) -> Result<Guid, Error> {
        let network = self.open_network(network)?;
        let created = self.create(Kind::Endpoint, Some(network), id, endpoint);
        let is_doubtful = |error: &Error| {
            is_absence(error) || error.kind() == ErrorKind::Unknown || error.code == Code::INVALID_HANDLE
        };
        if created.as_ref().is_err_and(is_doubtful) {
            // The handle may be one of a network that was recreated, or of a service that was restarted.
            self.forget_network();
        }
        created
    }

    pub fn create_load_balancer(&mut self, id: Guid, balancer: &LoadBalancer) -> Result<Guid, Error> {
        self.create(Kind::LoadBalancer, None, id, balancer)
    }

    pub fn modify_load_balancer(&mut self, id: Guid, balancer: &LoadBalancer) -> Result<(), Error> {
        let settings = encode("HcnModifyLoadBalancer", balancer)?;
        self.calls.reads += 1;
        let handle = self.api.open(Kind::LoadBalancer, id).map_err(|error| error.about(id))?;
        self.calls.writes += 1;
        let modified = self.api.modify(Kind::LoadBalancer, handle, &settings);
        self.api.close(Kind::LoadBalancer, handle);
        modified.map_err(|error| error.about(id))
    }

    /// Succeeds if the object is gone already.
    pub fn delete(&mut self, kind: Kind, id: Guid) -> Result<(), Error> {
        self.calls.writes += 1;
        match self.api.delete(kind, id) {
            Err(error) if is_absence(&error) => Ok(()),
            done => done.map_err(|error| error.about(id)),
        }
    }

    pub fn listen(&mut self, notify: OnNotification) -> Result<(), Error> {
        self.api.listen(notify)
    }

    /// Closes the network, for use after it was recreated or the service was restarted.
    pub fn forget_network(&mut self) {
        if let Some((_, handle)) = self.network.take() {
            self.api.close(Kind::Network, handle);
        }
    }

    fn open_network(&mut self, id: Guid) -> Result<Handle, Error> {
        if let Some((open, handle)) = self.network
            && open == id
        {
            return Ok(handle);
        }
        self.forget_network();
        self.calls.reads += 1;
        let handle = self.api.open(Kind::Network, id).map_err(|error| error.about(id))?;
        self.network = Some((id, handle));
        Ok(handle)
    }

    fn list(&mut self, kind: Kind, query: &Query) -> Result<Vec<Guid>, Error> {
        let call = format!("HcnEnumerate{}s", kind.as_str());
        self.calls.reads += 1;
        let text = self.api.enumerate(kind, &encode(&call, query)?)?;
        decode(&call, &text)
    }

    /// `None` when it is gone: it may vanish between two calls.
    fn get<T: DeserializeOwned>(&mut self, kind: Kind, id: Guid) -> Result<Option<T>, Error> {
        self.calls.reads += 2;
        let found = self.api.open(kind, id).and_then(|handle| {
            let text = self.query(kind, handle);
            self.api.close(kind, handle);
            text
        });
        match found {
            Ok(text) => decode(&format!("HcnQuery{}Properties", kind.as_str()), &text)
                .map(Some)
                .map_err(|error| error.about(id)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error.about(id)),
        }
    }

    fn query(&mut self, kind: Kind, handle: Handle) -> Result<String, Error> {
        self.api.query(kind, handle, &encode("HostComputeQuery", &Query::default())?)
    }

    fn create<T: Serialize>(
        &mut self,
        kind: Kind,
        network: Option<Handle>,
        id: Guid,
        document: &T,
    ) -> Result<Guid, Error> {
        let settings = encode(&format!("HcnCreate{}", kind.as_str()), document)?;
        self.calls.writes += 1;
        let handle = self.api.create(kind, network, id, &settings)?;
        let found = if self.keeps_ids == Some(true) { Ok(id) } else { self.id_of(kind, handle) };
        self.api.close(kind, handle);
        let found = found?;
        self.keeps_ids = Some(found == id && self.keeps_ids != Some(false));
        Ok(found)
    }

    fn id_of(&mut self, kind: Kind, handle: Handle) -> Result<Guid, Error> {
        #[derive(serde::Deserialize)]
        struct Identified {
            #[serde(rename = "ID")]
            id: Guid,
        }
        self.calls.reads += 1;
        let text = self.query(kind, handle)?;
        let found: Identified = decode(&format!("HcnQuery{}Properties", kind.as_str()), &text)?;
        Ok(found.id)
    }
}

impl Drop for Hcn {
    fn drop(&mut self) {
        self.forget_network();
    }
}

fn is_absence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NetworkNotFound)
}

/// An HRESULT, with or without its sign. Zero is not a code.
fn error_code(value: &Value) -> Option<Code> {
    let number = value.as_i64().or_else(|| value.as_str()?.trim().parse().ok())?;
    let code = u32::try_from(number).ok().or_else(|| Some(i32::try_from(number).ok()?.cast_unsigned()))?;
    (code != 0).then(|| Code::new(code))
}

fn encode<T: Serialize>(call: &str, document: &T) -> Result<String, Error> {
    serde_json::to_string(document).map_err(|error| Error::unreadable(call, error))
}

fn decode<T: DeserializeOwned>(call: &str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::unreadable(call, error))
}
