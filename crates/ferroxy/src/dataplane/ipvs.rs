//! ipvs mode: adapts `ferroxy-ipvs`, gives it the time, and notices the changes of others.
//!
//! The kernel tells nobody that a virtual server or a set has changed. So they are compared every `syncPeriod`, all of
//! them: a listing costs the kernel a few microseconds for each Service, and there is no cheaper sign that an endpoint is
//! missing. Changes of our device's addresses, and of chains of ours where iptables is nf_tables', are told of, and
//! looked into at once.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_core::{Facts, Family, Intent, NodeIntent, ServiceIntent, ServiceName, resolve};
use ferroxy_dataplane::Settings;
use ferroxy_iptables::tool::Variant;
use ferroxy_ipvs::dataplane::{self as crate_side, Options};
use ferroxy_ipvs::expected::Expected;
use ferroxy_ipvs::ledger::Ledger;
use ferroxy_ipvs::program::owns;
use ferroxy_ipvs::settings;
use ferroxy_ipvs::state::DEVICE;
use ferroxy_ipvs::{Error, Plan};
use ferroxy_netlink::ipvs::Timeouts;
use ferroxy_netlink::route::{AddressMonitor, Connection, Moved, Notice};
use rustix::io::Errno;
use tracing::warn;

use super::{
    Acknowledged, Change, Changed, Dataplane, Failure, Outcome, Preview, Programmed, Receipt, Repair, chains,
};
use crate::agent::Input;
use crate::host::notify::Heart;

/// After an error of the watched socket, so that a broken one does not take a core.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the connections of endpoints on their way out are counted.
const LOOK_AT_DRAINS: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Ipvs {
    inner: crate_side::Dataplane,
    /// What the time is counted from.
    opened: Instant,
}

/// What the ruleset depends on besides the Intent.
pub fn balancing(config: &Settings, facts: &Facts) -> ferroxy_ipvs::Settings {
    ferroxy_ipvs::Settings {
        scheduler: options(config).scheduler,
        host_addresses: resolve::known_addresses(facts),
    }
}

fn options(config: &Settings) -> Options {
    // The kernel counts in seconds, and 0 means that nothing is to change.
    let seconds = |it: Duration| u32::try_from(it.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
    let usual = Options::default();
    Options {
        scheduler: match config.text(&settings::SCHEDULER).as_str() {
            "" => usual.scheduler,
            scheduler => scheduler.into(),
        },
        strict_arp: config.truth(&settings::STRICT_ARP),
        timeouts: Timeouts {
            tcp: seconds(config.duration(&settings::TCP_TIMEOUT)),
            tcp_fin: seconds(config.duration(&settings::TCP_FIN_TIMEOUT)),
            udp: seconds(config.duration(&settings::UDP_TIMEOUT)),
        },
        exclude_cidrs: config.cidrs(&settings::EXCLUDE_CIDRS),
        drain_limit: usual.drain_limit,
    }
}

impl Ipvs {
    pub fn open(families: &[Family], config: &Settings) -> Result<Ipvs, Error> {
        let inner = crate_side::Dataplane::open(families, options(config))?;
        Ok(Ipvs { inner, opened: Instant::now() })
    }

    /// With the time told.
    fn inner(&mut self) -> &mut crate_side::Dataplane {
        self.inner.set_time(self.opened.elapsed());
        &mut self.inner
    }
}

impl Dataplane for Ipvs {
    fn probe(&mut self, node: &NodeIntent) -> anyhow::Result<()> {
        self.inner.probe().map_err(|error| match error.is_not_permitted() {
            true => anyhow::anyhow!(
                "not permitted to program the kernel: run as root, or with CAP_NET_ADMIN and CAP_NET_RAW"
            ),
            false => error.into(),
        })?;
        if node.count_traffic {
            warn!("traffic of Services is counted in nftables mode only");
        }
        Ok(())
    }

    fn watch(&mut self, inputs: Sender<Input>) -> anyhow::Result<()> {
        if self.inner.tools().iter().any(|tools| tools.variant == Variant::NfTables) {
            self.inner.hide_from(chains::watch(owns, |_| {}, inputs.clone())?);
        }
        let (mut monitor, expected) = (AddressMonitor::open()?, self.inner.on_device());
        let follow = move || follow_device(&mut monitor, &expected, &inputs);
        thread::Builder::new().name("device".into()).spawn(follow)?;
        Ok(())
    }

    fn live_by(&mut self, heart: Heart) {
        let heart = Mutex::new(heart);
        self.inner.live_by(Box::new(move || {
            heart.lock().unwrap_or_else(PoisonError::into_inner).beat(Instant::now());
        }));
    }

    fn is_cold(&mut self) -> Result<bool, Failure> {
        Ok(!self.inner.is_installed()?)
    }

    fn keep_unknown(&mut self, keep: bool) {
        self.inner.keep_unknown(keep);
    }

    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        if let Err(error) = self.inner.set_timeouts() {
            warn!("{error}: connections are remembered as long as before");
        }
        Ok(self.inner().start(intent)?.into())
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        Ok(self.inner().change(changes)?.into())
    }

    fn has_node(&mut self, node: &NodeIntent) -> Result<bool, Failure> {
        Ok(self.inner.has_node(node)?)
    }

    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure> {
        Ok(self.inner().change_node(node)?.into())
    }

    fn tidy(&mut self) -> Result<Outcome, Failure> {
        Ok(self.inner.drain(self.opened.elapsed())?.into())
    }

    fn tidies_again(&self) -> Option<Duration> {
        (self.inner.draining() > 0).then_some(LOOK_AT_DRAINS)
    }

    fn changed_by_others(&mut self) -> Result<Changed, Failure> {
        Ok(Changed::Ours)
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        let crate_side::Repair { messages, plan, unmended } = self.inner().verify()?;
        Ok(Repair {
            receipt: Receipt { messages, ..Receipt::default() },
            operations: plan.len(),
            examples: some(&plan),
            unmended: (!unmended.is_empty()).then(|| some(&unmended).join("; ")),
        })
    }

    fn acknowledged(&self) -> &dyn Acknowledged {
        self.inner.ledger()
    }

    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure> {
        let plan = self.inner.preview(intent)?;
        Ok(Preview {
            text: plan.to_string(),
            operations: plan.ops().iter().map(ToString::to_string).collect(),
        })
    }

    fn programmed(&mut self, intent: &Intent, service: &Arc<ServiceIntent>) -> Result<Programmed, Failure> {
        Ok(match self.inner.programmed(intent, service)? {
            crate_side::Programmed::Nothing => Programmed::Nothing,
            crate_side::Programmed::Parts { right, wanted } => Programmed::Parts { right, wanted },
        })
    }

    fn cleanup(&mut self) -> Result<bool, Failure> {
        Ok(self.inner.cleanup()?)
    }
}

/// The first operations, for people.
fn some(plan: &Plan) -> Vec<String> {
    plan.ops().iter().take(3).map(ToString::to_string).collect()
}

/// Says `Drift` when somebody who is not us changes the addresses of our device.
fn follow_device(monitor: &mut AddressMonitor, expected: &Expected, inputs: &Sender<Input>) {
    loop {
        let input = match monitor.next(None).and_then(|notice| is_foreign(notice, expected)) {
            Ok(false) => None,
            Ok(true) => Some(Input::Drift("addresses of our device were changed by somebody else")),
            Err(error) => {
                warn!("cannot follow changes of the device {DEVICE}: {error}");
                thread::sleep(PAUSE);
                Some(Input::Drift("changes of our device may have been missed"))
            }
        };
        if input.is_some_and(|input| inputs.send(input).is_err()) {
            return;
        }
    }
}

/// A notice does not say whose doing it was (for IPv6 not even the port id does): what is as it should be was ours.
fn is_foreign(notice: Option<Notice>, expected: &Expected) -> Result<bool, ferroxy_netlink::error::Error> {
    let moved = match notice {
        Some(Notice::Changed(moved)) => moved,
        Some(Notice::Lost) => return Ok(true),
        None => return Ok(false),
    };
    let is_wrong = |it: &&Moved| it.came != expected.contains(it.address.ip);
    let (strange, missing): (Vec<&Moved>, Vec<&Moved>) =
        moved.iter().filter(is_wrong).partition(|it| it.came);
    if !missing.is_empty() || strange.is_empty() {
        return Ok(!missing.is_empty());
    }
    // Other devices have addresses, too.
    match Connection::open()?.link(DEVICE) {
        Ok(device) => Ok(strange.iter().any(|it| it.address.link == device.index)),
        Err(error) if error.errno == Errno::NODEV => Ok(false),
        Err(error) => Err(error),
    }
}

impl From<crate_side::Outcome> for Outcome {
    fn from(outcome: crate_side::Outcome) -> Outcome {
        let crate_side::Outcome { messages, operations, failed } = outcome;
        Outcome {
            receipt: Receipt { messages, ..Receipt::default() },
            operations,
            failed,
            ..Outcome::default()
        }
    }
}

impl Acknowledged for Ledger {
    fn node(&self) -> &NodeIntent {
        Ledger::node(self)
    }

    fn service(&self, name: &ServiceName) -> Option<&Arc<ServiceIntent>> {
        Ledger::service(self, name)
    }

    fn services(&self) -> Box<dyn Iterator<Item = (&ServiceName, &Arc<ServiceIntent>)> + '_> {
        Box::new(Ledger::services(self))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        // The next attempt looks at the kernel by itself.
        Failure { cause: error.into(), drift: false }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ferroxy_netlink::route::Address;

    use super::*;

    fn moved(ip: &str, came: bool) -> Moved {
        let ip: IpAddr = ip.parse().unwrap();
        Moved { address: Address { link: 7, ip, prefix_length: 32 }, came }
    }

    #[test]
    fn what_is_as_it_should_be_was_our_own_doing() {
        let expected: Expected = ["10.96.0.80".parse().unwrap()].into_iter().collect();
        let is_foreign =
            |moves: &[Moved]| is_foreign(Some(Notice::Changed(moves.to_vec())), &expected).unwrap();
        assert!(!is_foreign(&[moved("10.96.0.80", true), moved("10.96.0.81", false)]));
        assert!(is_foreign(&[moved("10.96.0.81", false), moved("10.96.0.80", false)]));
        // An address of another device: this machine has no device of Services.
        assert!(!is_foreign(&[moved("192.0.2.1", true)]));
        assert!(super::is_foreign(Some(Notice::Lost), &expected).unwrap());
    }
}
