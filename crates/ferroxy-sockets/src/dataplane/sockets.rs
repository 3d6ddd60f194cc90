//! Keeps the maps and the programs equal to what the packets' dataplane has in force. Failures here are no errors for the agent:
//! connections that cannot be translated are left to packet rules, and the report says why.

mod room;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ferroxy_core::{Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_dataplane::{Acknowledged, ChoiceOfEndpoints};
use tracing::{info, warn};

use super::generation::{Generation, GenerationError, Name, Written};
use super::ground::Ground;
use super::hook::Hook;
use super::report::Report;
use super::self_test;
use crate::diff::{Unknown, difference};
use crate::entry::Clients;
use crate::flow::Departed;
use crate::ledger::Ledger;
use crate::options::Options;
use crate::plan::{Op, Plan};
use crate::render::entries;
use crate::state::State;
use crate::terms::{Salt, Terms};

#[derive(Debug)]
pub struct Sockets {
    options: Options,
    ledger: Ledger,
    /// `None`: nothing is translated.
    running: Option<Running>,
    pub(super) unknown: Unknown,
    /// How many frontends and endpoints the maps have.
    size: (usize, usize),
    departed: Departed,
    report: Report,
}

/// Elements and slot order of some Services before a change.
#[derive(Debug)]
pub struct Before {
    seen: State,
    order: Vec<Option<Arc<ServiceIntent>>>,
}

#[derive(Debug)]
struct Running {
    ground: Ground,
    generation: Generation,
    /// The ids of the attached programs.
    programs: Vec<(Hook, u32)>,
}

/// What a repair did.
#[derive(Debug, Default)]
pub struct Repaired {
    pub operations: usize,
    pub examples: Vec<String>,
}

const EXAMPLES: usize = 3;

impl Sockets {
    pub fn new(options: Options) -> Sockets {
        let report = Report::default();
        report.lock().asked = options.clients;
        report.lock().inactive("not started yet");
        Sockets {
            options,
            ledger: Ledger::default(),
            running: None,
            unknown: Unknown::Remove,
            size: (0, 0),
            departed: Departed::default(),
            report,
        }
    }

    pub fn report(&self) -> Report {
        self.report.clone()
    }

    pub fn pins(&self) -> &Path {
        &self.options.pins
    }

    /// What `start` would write into the maps.
    pub fn preview(&self, intent: &Intent, choice: Option<ChoiceOfEndpoints>) -> Plan {
        let Some(choice) = choice else { return Plan::default() };
        let found = Generation::all(&self.options.pins, self.options.names_peers).into_iter().next();
        let seen = found.as_ref().and_then(|generation| generation.observe().ok()).unwrap_or_default();
        let salt = found.map_or(Salt::default(), |generation| generation.name().salt);
        let mut in_force = Acknowledged::new(intent.node.clone());
        for (name, service) in &intent.services {
            in_force.set_service(name, Some(service.clone()));
        }
        let mut ledger = Ledger::new(Terms::new(&intent.node, self.options.clients, choice, salt));
        ledger.limit(&in_force, self.options.most_elements);
        ledger.adopt(&in_force, &seen);
        difference(&seen, &ledger.state(&in_force), self.unknown)
    }

    fn roles(&self) -> Vec<Clients> {
        let asked = |role: &Clients| self.options.clients.contains(*role);
        [Clients::HOST, Clients::PODS].into_iter().filter(asked).collect()
    }

    /// Brings everything into force, by writing the difference from the maps of an earlier run. Returns the number of writes.
    pub fn start(
        &mut self,
        in_force: &Acknowledged,
        node: &NodeIntent,
        choice: Option<ChoiceOfEndpoints>,
    ) -> usize {
        let Some(choice) = choice else {
            return self.stop("this proxy mode or its IPVS scheduler does not allow it: use nftables or iptables mode, or ipvs mode \
                 with rr or wrr");
        };
        match self.try_start(in_force, node, choice) {
            Ok(writes) => writes,
            Err(reason) => self.stop(&reason),
        }
    }

    fn try_start(
        &mut self,
        in_force: &Acknowledged,
        node: &NodeIntent,
        choice: ChoiceOfEndpoints,
    ) -> Result<usize, String> {
        let ground = Ground::find(&self.options)?;
        let terms = |salt| Terms::new(node, self.options.clients, choice, salt);
        let found = Generation::all(&self.options.pins, self.options.names_peers).into_iter().next();
        let ours = self.running.take().map(|running| running.generation);
        let found = found.or_else(|| ours.filter(pinned_again));
        let mut writes = 0;
        let reused = found.and_then(|generation| {
            self.ledger = Ledger::new(terms(generation.name().salt));
            let seen = generation.observe().ok()?;
            self.ledger.limit(in_force, self.options.most_elements);
            self.ledger.adopt(in_force, &seen);
            let plan = difference(&seen, &self.ledger.state(in_force), self.unknown);
            let ops: Vec<Op> = plan.ops().copied().collect();
            // If a map is full or broken, a new generation is created.
            ops.iter().try_for_each(|op| generation.apply(op)).ok()?;
            writes = ops.len();
            Some(generation)
        });
        let generation = match reused {
            Some(generation) => generation,
            None => {
                self.ledger = Ledger::new(terms(Salt(RandomState::new().build_hasher().finish())));
                self.ledger.limit(in_force, self.options.most_elements);
                let generation = self.create(in_force, Name::first(self.ledger.terms().salt), None);
                let generation = generation.map_err(|error| error.to_string())?;
                writes = self.ledger.state(in_force).len();
                generation
            }
        };
        self.running = Some(Running { ground, generation, programs: Vec::new() });
        self.size = (0, 0);
        writes += self.attach()?;
        self.announce();
        self.measure(&State::default(), &self.ledger.state(in_force));
        Ok(writes)
    }

    /// A filled generation, which no program uses yet.
    fn create(
        &self,
        in_force: &Acknowledged,
        name: Name,
        written: Option<Written>,
    ) -> Result<Generation, GenerationError> {
        let state = self.ledger.state(in_force);
        let (pins, names_peers) = (&self.options.pins, self.options.names_peers);
        let generation = Generation::create(pins, name, self.capacity(&state)?, names_peers, written)?;
        generation.fill(&state)?;
        Ok(generation)
    }

    /// Attaches the programs of the running generation, and removes other generations. Returns how many hooks had to be changed.
    fn attach(&mut self) -> Result<usize, String> {
        let Some(running) = &self.running else { return Ok(0) };
        let pins = &self.options.pins;
        let (mut changed, mut programs) = (0, Vec::new());
        for hook in Hook::ALL {
            let clients = hook.clients();
            let asked =
                self.options.clients.contains(clients) && running.generation.hooks(clients).contains(&hook);
            let cgroup = running.ground.cgroup(clients).as_ref().ok().filter(|_| asked);
            let done = match cgroup {
                None => hook.remove(pins),
                Some(cgroup) => running
                    .generation
                    .program(hook, running.ground.host_namespace, self.ledger.terms().count_traffic)
                    .and_then(|program| {
                        programs.push((hook, program.info()?.id));
                        hook.ensure(pins, &program, cgroup)
                    }),
            };
            changed += usize::from(done.map_err(|error| error.to_string())?);
        }
        running.generation.remove_others(pins).map_err(|error| error.to_string())?;
        let mut host = running.ground.host.as_ref().err().cloned();
        if self.options.clients.contains(Clients::HOST)
            && host.is_none()
            && let Err(error) = self_test::run(&running.generation)
        {
            host = Some(format!("the self-test failed: {error}"));
            for hook in running.generation.hooks(Clients::HOST) {
                hook.remove(pins).map_err(|error| error.to_string())?;
            }
        }
        let mut known = self.report.lock();
        (known.host, known.pods) = (host, running.ground.pods.as_ref().err().cloned());
        known.replace_written(running.generation.written());
        drop(known);
        if let Some(running) = &mut self.running {
            running.programs = programs;
        }
        Ok(changed)
    }

    fn announce(&self) {
        let known = self.report.lock();
        for (role, reason) in [(Clients::HOST, &known.host), (Clients::PODS, &known.pods)] {
            match reason {
                Some(reason) if known.asked.contains(role) => {
                    warn!("connections of {} are translated by packet rules: {reason}", words(role));
                }
                _ => {}
            }
        }
        if known.active() != Clients::NONE {
            info!("connections of {} are translated at their sockets", words(known.active()));
        }
    }

    /// Stops translating: removes everything that is pinned, programs first.
    pub fn stop(&mut self, reason: &str) -> usize {
        let was_known = self.report.lock().host.as_deref() == Some(reason);
        if !was_known {
            warn!("connections are translated by packet rules, not at sockets: {reason}");
        }
        // `remove_pins` detaches the programs. If their pins are unreachable, empty maps make them translate nothing.
        if let Some(Err(error)) = self.running.take().map(|running| running.generation.clear()) {
            warn!("cannot empty the BPF maps: {error}");
        }
        self.report.lock().inactive(reason);
        match super::remove_pins(&self.options.pins) {
            Ok(removed) => removed.len(),
            Err(error) => {
                warn!(
                    "cannot remove the BPF programs and maps that an earlier run pinned, so they stay in use \
                     without updates: {error}"
                );
                0
            }
        }
    }

    /// Elements and slot order of these Services, to be passed to `withdraw` and `publish`.
    pub fn before(&self, in_force: &Acknowledged, names: &[ServiceName]) -> Before {
        Before { seen: self.ledger.fragment(in_force, names), order: self.ledger.before(in_force, names) }
    }

    /// Before the packets' dataplane gets these Services: removes the frontends that will not exist any more.
    pub fn withdraw<'a>(
        &mut self,
        before: &mut Before,
        wanted: impl Iterator<Item = &'a Arc<ServiceIntent>>,
    ) -> usize {
        let mut stay = State::default();
        wanted.for_each(|service| entries(service, self.ledger.terms(), &mut |entry| stay.insert(entry)));
        let gone = before.seen.frontends.keys().filter(|key| !stay.frontends.contains_key(key));
        let gone: Vec<_> = gone.copied().collect();
        let ops: Vec<Op> = gone.iter().map(|key| Op::RemoveFrontend(*key)).collect();
        if let Err(error) = self.apply(&ops) {
            self.stop(&error.to_string());
        }
        let removed = before.seen.frontends.len();
        before.seen.frontends.retain(|key, _| stay.frontends.contains_key(key));
        self.size.0 = self.size.0.saturating_sub(removed - before.seen.frontends.len());
        ops.len()
    }

    /// After the packets' dataplane has these Services: writes the difference. Returns the number of writes.
    pub fn publish(&mut self, in_force: &Acknowledged, names: &[ServiceName], before: &Before) -> usize {
        self.ledger.enter(in_force, names, &before.order);
        if self.running.is_none() {
            return 0;
        }
        let plan = difference(&before.seen, &self.ledger.fragment(in_force, names), Unknown::Remove);
        let ops: Vec<Op> = plan.ops().copied().collect();
        if let Err(error) = self.apply(&ops) {
            self.refused(in_force, names, &before.seen, error);
        }
        self.measure(&before.seen, &self.ledger.fragment(in_force, names));
        ops.len()
    }

    fn apply(&self, ops: &[Op]) -> Result<(), GenerationError> {
        let Some(running) = &self.running else { return Ok(()) };
        ops.iter().try_for_each(|op| running.generation.apply(op)).map_err(GenerationError::from)
    }

    /// Applies a change of the node as a whole. Returns the number of writes.
    pub fn change_node(
        &mut self,
        in_force: &Acknowledged,
        node: &NodeIntent,
        choice: Option<ChoiceOfEndpoints>,
    ) -> usize {
        let (Some(choice), Some(_)) = (choice, &self.running) else { return 0 };
        let terms = Terms::new(node, self.options.clients, choice, self.ledger.terms().salt);
        if terms == *self.ledger.terms() {
            return 0;
        }
        let seen = self.ledger.state(in_force);
        let other_programs = terms.count_traffic != self.ledger.terms().count_traffic;
        self.ledger.set_terms(terms);
        let plan = difference(&seen, &self.ledger.state(in_force), Unknown::Remove);
        let ops: Vec<Op> = plan.ops().copied().collect();
        if self.apply(&ops).is_err() || other_programs && self.attach().is_err() {
            return self.start(in_force, node, Some(choice));
        }
        self.measure(&seen, &self.ledger.state(in_force));
        ops.len()
    }

    /// Forgets counts of endpoints that left long ago.
    pub fn forget_flows(&mut self, in_force: &Acknowledged) -> Result<(), GenerationError> {
        let Some(running) = self.running.as_ref().filter(|_| self.ledger.terms().count_traffic) else {
            return Ok(());
        };
        let map = &running.generation.written().flows;
        let mut flows = Vec::new();
        map.for_each(|key, _| flows.push(key.to_vec()))?;
        if flows.is_empty() {
            return Ok(());
        }
        for key in self.departed.forget(&flows, &self.ledger.state(in_force), Instant::now()) {
            map.delete(&key)?;
        }
        Ok(())
    }

    /// The differences from the desired state: in the maps, and at the cgroups.
    pub fn differences(&self, in_force: &Acknowledged) -> Result<Vec<String>, GenerationError> {
        let Some(running) = &self.running else { return Ok(Vec::new()) };
        let seen = running.generation.observe()?;
        let plan = difference(&seen, &self.ledger.state(in_force), self.unknown);
        let mut found: Vec<String> = plan.ops().map(ToString::to_string).collect();
        if !running.generation.is_pinned(&self.options.pins) {
            found.push("sockets: maps are not pinned".to_owned());
        }
        let active = self.report.lock().active();
        for role in self.roles() {
            let cgroup = match running.ground.cgroup(role) {
                Ok(cgroup) if active.contains(role) => cgroup,
                _ => continue,
            };
            for (hook, program) in running.programs.iter().filter(|(hook, _)| hook.clients() == role) {
                if !hook.is_in_force(&self.options.pins, *program, cgroup)? {
                    found.push(format!("sockets: {} is not attached to {}", hook.name(), cgroup.name()));
                }
            }
        }
        Ok(found)
    }

    /// Whether clients can be served now that could not be served at first: the cgroup of pods is created with the first pod.
    pub fn has_more_ground(&self) -> bool {
        let active = self.report.lock().active();
        let lacking: Vec<Clients> = self.roles().into_iter().filter(|role| !active.contains(*role)).collect();
        if lacking.is_empty() {
            return false;
        }
        let had = |role| self.running.as_ref().is_some_and(|running| running.ground.cgroup(role).is_ok());
        let Ok(ground) = Ground::find(&self.options) else { return false };
        lacking.into_iter().any(|role| !had(role) && ground.cgroup(role).is_ok())
    }

    /// Puts everything back into force.
    pub fn repair(
        &mut self,
        in_force: &Acknowledged,
        node: &NodeIntent,
        choice: Option<ChoiceOfEndpoints>,
    ) -> Repaired {
        let was_running = self.running.is_some();
        let found = self.differences(in_force).unwrap_or_else(|error| vec![error.to_string()]);
        if found.is_empty() && !self.has_more_ground() {
            return Repaired::default();
        }
        let writes = self.start(in_force, node, choice);
        if !was_running || found.is_empty() {
            return Repaired::default();
        }
        Repaired { operations: writes.max(1), examples: found.into_iter().take(EXAMPLES).collect() }
    }

    /// Updates the size and the report: some Services have the elements `after` instead of `before`.
    fn measure(&mut self, before: &State, after: &State) {
        let new = |now: usize, before: usize, after: usize| (now + after).saturating_sub(before);
        self.size.0 = new(self.size.0, before.frontends.len(), after.frontends.len());
        self.size.1 = new(self.size.1, before.endpoints.len(), after.endpoints.len());
        let mut known = self.report.lock();
        let left_out = self.ledger.left_out().iter().map(|(name, why)| (name.to_string(), why.clone()));
        known.left_out = left_out.collect();
        (known.frontends, known.endpoints) = (self.size.0 as u64, self.size.1 as u64);
    }
}

/// Pins the maps again. If that fails, empties them, so that they do not stay in force as they are.
fn pinned_again(generation: &Generation) -> bool {
    let Err(error) = generation.pin() else { return true };
    warn!("cannot pin the BPF maps again: {error}");
    if let Err(error) = generation.clear() {
        warn!("cannot empty the BPF maps: {error}");
    }
    false
}

fn words(clients: Clients) -> String {
    clients.words().replace("host", "the host").replace(',', " and ")
}
