//! The objects, and what each call does to them. One call at a time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Map, Value, json};

use super::first;
use super::refuse::{self, Claim, claims, endpoints_of};
use crate::api::Kind;
use crate::document::Endpoint;
use crate::error::Code;
use crate::guid::Guid;
use crate::version::Version;

/// How the service behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    pub version: Version,
    /// It ignores the ids that callers choose.
    pub chooses_ids: bool,
    /// It drops the owner of what is created.
    pub drops_owners: bool,
    /// As HNS 15.4: a change of a load balancer is accepted, and nothing happens.
    pub ignores_modify: bool,
    /// It has no lists of whole objects.
    pub lacks_lists: bool,
}

impl Setup {
    pub fn of(version: Version) -> Setup {
        Setup { version, chooses_ids: false, drops_owners: false, ignores_modify: false, lacks_lists: false }
    }
}

/// The next calls of a function fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub function: String,
    pub code: Code,
    pub times: u32,
}

/// The next requests for a path of the first version are answered, and fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstFault {
    pub path: String,
    /// The answer may have none.
    pub code: Option<Code>,
    pub times: u32,
}

/// What a call returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Done,
    Handle(u64),
    Text(String),
    Failed(Code, String),
}

/// How often a function was called.
pub type Counted = BTreeMap<String, u64>;

#[derive(Debug)]
pub struct Service {
    pub setup: Setup,
    pub is_running: bool,
    pub faults: Vec<Fault>,
    pub first_faults: Vec<FirstFault>,
    pub counted: Counted,
    /// Objects whose documents are nonsense.
    pub unreadable: BTreeSet<Guid>,
    /// Objects that the lists of the first version leave out.
    pub unlisted: BTreeSet<Guid>,
    /// If it is set: the smallest number of load balancers since then.
    pub fewest_balancers: Option<usize>,
    objects: BTreeMap<Kind, BTreeMap<Guid, Value>>,
    handles: BTreeMap<u64, (Kind, Guid)>,
    /// The objects that have a claim. An index, because a start of thousands would take hours if each were compared with all.
    /// Other programs can have made HNS accept several.
    claims: HashMap<Claim, Vec<Guid>>,
    /// How many load balancers name an endpoint.
    references: HashMap<Guid, usize>,
    next: u64,
}

impl Service {
    pub fn new(setup: Setup) -> Service {
        Service {
            setup,
            is_running: true,
            faults: Vec::new(),
            first_faults: Vec::new(),
            counted: Counted::new(),
            unreadable: BTreeSet::new(),
            unlisted: BTreeSet::new(),
            fewest_balancers: None,
            objects: Kind::ALL.map(|kind| (kind, BTreeMap::new())).into(),
            handles: BTreeMap::new(),
            claims: HashMap::new(),
            references: HashMap::new(),
            next: 0,
        }
    }

    /// An object that another program made.
    pub fn add(&mut self, kind: Kind, document: Value) -> Guid {
        let id = self.choose();
        self.insert(kind, id, document);
        id
    }

    pub fn remove(&mut self, kind: Kind, id: Guid) {
        let Some(document) = self.of(kind).remove(&id) else { return };
        for claim in claims(kind, &document) {
            self.claims.entry(claim).or_default().retain(|other| *other != id);
        }
        for endpoint in endpoints_of(kind, &document) {
            if let Some(count) = self.references.get_mut(&endpoint) {
                *count -= 1;
            }
        }
    }

    /// Another program changes an object.
    pub fn replace(&mut self, kind: Kind, id: Guid, document: Value) {
        self.insert(kind, id, document);
    }

    /// The objects that have this claim.
    pub(super) fn claimants(&self, claim: &Claim) -> impl Iterator<Item = Guid> {
        self.claims.get(claim).into_iter().flatten().copied()
    }

    pub fn documents(&self, kind: Kind) -> impl Iterator<Item = (Guid, &Value)> {
        self.objects.get(&kind).into_iter().flatten().map(|(id, document)| (*id, document))
    }

    pub fn document(&self, kind: Kind, id: Guid) -> Option<&Value> {
        self.objects.get(&kind)?.get(&id)
    }

    pub fn open_handles(&self) -> usize {
        self.handles.len()
    }

    /// Calls that change something, however they ended.
    pub fn changes(&self) -> u64 {
        let is_change = |function: &str| {
            ["HcnCreate", "HcnModify", "HcnDelete"].iter().any(|prefix| function.starts_with(prefix))
        };
        self.counted.iter().filter(|(function, _)| is_change(function)).map(|(_, count)| count).sum()
    }

    /// `handle` is 0 and `id` zero where a function has none. For `HNSCall` the text is method and path.
    pub fn call(&mut self, function: &str, handle: u64, id: Guid, text: &str) -> Answer {
        *self.counted.entry(function.to_owned()).or_default() += 1;
        if !self.is_running {
            return failed(Code::NOT_RUNNING, "");
        }
        let fault = self.faults.iter_mut().find(|fault| fault.function == function && fault.times > 0);
        if let Some(fault) = fault {
            fault.times -= 1;
            return failed(fault.code, "on demand");
        }
        if function == "HNSCall" {
            return self.call_v1(text);
        }
        let parsed = Kind::ALL.into_iter().find_map(|kind| Some((verb(function, kind)?, kind)));
        match parsed {
            Some((Verb::Enumerate, kind)) => self.enumerate(kind, text),
            Some((Verb::Open, kind)) => self.open(kind, id),
            Some((Verb::Create, kind)) => self.create(kind, handle, id, text),
            Some((Verb::Modify, kind)) => self.modify(kind, handle, text),
            Some((Verb::Query, kind)) => self.query(kind, handle),
            Some((Verb::Delete, kind)) => self.delete(kind, id),
            Some((Verb::Close, _)) => match self.handles.remove(&handle) {
                Some(_) => Answer::Done,
                None => failed(Code::INVALID_HANDLE, ""),
            },
            None => failed(Code::NOT_IMPLEMENTED, function),
        }
    }

    fn call_v1(&mut self, text: &str) -> Answer {
        let is_about = |fault: &&mut FirstFault| text.trim().ends_with(&fault.path) && fault.times > 0;
        if let Some(fault) = self.first_faults.iter_mut().find(is_about) {
            fault.times -= 1;
            let code = fault.code.map_or(0, Code::hresult);
            return Answer::Text(
                json!({ "Success": false, "Error": "on demand", "ErrorCode": code }).to_string(),
            );
        }
        let answer = match text.trim() {
            path if self.setup.lacks_lists && path != "GET /globals/version" => {
                json!({ "Success": false, "Error": format!("no {path} here") })
            }
            "GET /policylists/" => self.list(Kind::LoadBalancer),
            "GET /endpoints/" => self.list(Kind::Endpoint),
            "GET /globals/version" => {
                let Version { major, minor } = self.setup.version;
                json!({ "Success": true, "Output": { "Major": major, "Minor": minor } })
            }
            other => json!({ "Success": false, "Error": format!("no {other} here") }),
        };
        Answer::Text(answer.to_string())
    }

    fn list(&mut self, kind: Kind) -> Value {
        self.next += 1;
        let activity = self.next;
        let all = self.documents(kind).filter(|(id, _)| !self.unlisted.contains(id));
        let all = all.map(|(id, document)| first::describe(kind, id, document, activity));
        let all: Vec<Value> = all.collect();
        json!({ "Success": true, "Output": all })
    }

    fn enumerate(&mut self, kind: Kind, query: &str) -> Answer {
        let Ok(query) = serde_json::from_str::<Value>(query) else {
            return failed(Code::INVALID_JSON, "query");
        };
        let filter = query.get("Filter").and_then(Value::as_str).unwrap_or("{}");
        let Ok(filter) = serde_json::from_str::<Map<String, Value>>(filter) else {
            return failed(Code::INVALID_JSON, "filter");
        };
        let matches = |document: &Value| {
            filter.iter().all(|(name, wanted)| {
                let name = if name == "VirtualNetwork" { "HostComputeNetwork" } else { name };
                document.get(name) == Some(wanted)
            })
        };
        let ids = self.of(kind).iter().filter(|(_, document)| matches(document)).map(|(id, _)| json!(id));
        Answer::Text(Value::Array(ids.collect()).to_string())
    }

    fn open(&mut self, kind: Kind, id: Guid) -> Answer {
        if self.of(kind).contains_key(&id) { self.handle(kind, id) } else { missing(kind) }
    }

    fn query(&mut self, kind: Kind, handle: u64) -> Answer {
        match self.at(kind, handle) {
            Some(id) if self.unreadable.contains(&id) => Answer::Text("{\"ID\": 7".to_owned()),
            Some(id) => Answer::Text(self.of(kind)[&id].to_string()),
            None => missing(kind),
        }
    }

    fn create(&mut self, kind: Kind, network: u64, id: Guid, text: &str) -> Answer {
        let Ok(Value::Object(mut document)) = serde_json::from_str(text) else {
            return failed(Code::INVALID_JSON, "document");
        };
        if kind == Kind::Endpoint {
            let Some(network) = self.at(Kind::Network, network) else { return missing(Kind::Network) };
            document.insert("HostComputeNetwork".into(), json!(network));
        }
        if self.setup.drops_owners {
            document.remove("Owner");
        }
        let document = Value::Object(document);
        if let Some((code, words)) = refuse::creation(self, kind, id, &document) {
            return failed(code, &words);
        }
        let id = if self.setup.chooses_ids || id == Guid::ZERO { self.choose() } else { id };
        self.insert(kind, id, document);
        self.handle(kind, id)
    }

    fn modify(&mut self, kind: Kind, handle: u64, text: &str) -> Answer {
        let Some(id) = self.at(kind, handle) else { return missing(kind) };
        if kind != Kind::LoadBalancer || self.setup.version < Version::new(15, 4) {
            return failed(Code::NOT_IMPLEMENTED, "");
        }
        let document = match serde_json::from_str(text) {
            Ok(Value::Object(document)) => Value::Object(document),
            _ => return failed(Code::INVALID_JSON, "document"),
        };
        if let Some((code, words)) = refuse::balancer(self, Some(id), &document) {
            return failed(code, &words);
        }
        if !self.setup.ignores_modify {
            self.insert(kind, id, document);
        }
        Answer::Done
    }

    fn delete(&mut self, kind: Kind, id: Guid) -> Answer {
        if !self.of(kind).contains_key(&id) {
            return missing(kind);
        }
        if kind == Kind::Endpoint && self.references.get(&id).is_some_and(|count| *count > 0) {
            return failed(Code::HAS_REFERENCES, &id.to_string());
        }
        self.remove(kind, id);
        let left = self.of(Kind::LoadBalancer).len();
        self.fewest_balancers = self.fewest_balancers.map(|fewest| fewest.min(left));
        Answer::Done
    }

    /// The endpoints that load balancers name.
    pub fn referred(&self) -> BTreeSet<Guid> {
        self.references.iter().filter(|(_, count)| **count > 0).map(|(id, _)| *id).collect()
    }

    /// Endpoints by id.
    pub fn endpoints(&self) -> BTreeMap<Guid, Endpoint> {
        let read = |document: &Value| serde_json::from_value(document.clone()).unwrap_or_default();
        self.documents(Kind::Endpoint).map(|(id, document)| (id, read(document))).collect()
    }

    fn insert(&mut self, kind: Kind, id: Guid, mut document: Value) {
        self.remove(kind, id);
        document["ID"] = json!(id);
        for claim in claims(kind, &document) {
            self.claims.entry(claim).or_default().push(id);
        }
        for endpoint in endpoints_of(kind, &document) {
            *self.references.entry(endpoint).or_default() += 1;
        }
        self.of(kind).insert(id, document);
    }

    fn of(&mut self, kind: Kind) -> &mut BTreeMap<Guid, Value> {
        self.objects.entry(kind).or_default()
    }

    fn at(&mut self, kind: Kind, handle: u64) -> Option<Guid> {
        let (of, id) = *self.handles.get(&handle)?;
        (of == kind && self.of(kind).contains_key(&id)).then_some(id)
    }

    fn handle(&mut self, kind: Kind, id: Guid) -> Answer {
        self.next += 1;
        // Pointers are aligned.
        let handle = 0x1000 + 8 * self.next;
        self.handles.insert(handle, (kind, id));
        Answer::Handle(handle)
    }

    fn choose(&mut self) -> Guid {
        self.next += 1;
        Guid::derived(&format!("chosen {}", self.next))
    }
}

enum Verb {
    Enumerate,
    Open,
    Create,
    Modify,
    Query,
    Delete,
    Close,
}

fn verb(function: &str, kind: Kind) -> Option<Verb> {
    let rest = function.strip_prefix("Hcn")?;
    let kind = kind.as_str();
    Some(match () {
        () if rest == format!("Enumerate{kind}s") => Verb::Enumerate,
        () if rest == format!("Query{kind}Properties") => Verb::Query,
        () if rest == format!("Open{kind}") => Verb::Open,
        () if rest == format!("Create{kind}") => Verb::Create,
        () if rest == format!("Modify{kind}") => Verb::Modify,
        () if rest == format!("Delete{kind}") => Verb::Delete,
        () if rest == format!("Close{kind}") => Verb::Close,
        () => return None,
    })
}

fn failed(code: Code, words: &str) -> Answer {
    Answer::Failed(code, words.to_owned())
}

fn missing(kind: Kind) -> Answer {
    let code = match kind {
        Kind::Network => Code::NETWORK_NOT_FOUND,
        Kind::Endpoint => Code::ENDPOINT_NOT_FOUND,
        Kind::LoadBalancer => Code::NOT_FOUND,
    };
    failed(code, &format!("{kind} was not found"))
}
