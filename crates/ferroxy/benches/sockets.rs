//! `make bench-sockets`: connections, requests and a stream through a Service at sockets, compared with a direct way and
//! with nftables, from one pod to another one on the same node. Prints the goals beside the figures, and enforces none.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run says so and ends")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroxy_bpf::kernel::{Attach, Cgroup, Link, Map, Pinned, Program};
use ferroxy_bpf::{Assembler, Register};
use ferroxy_core::intent::{FamilyIntent, LocalDetector};
use ferroxy_core::{Endpoint, Family, Intent, ServiceIntent, ServiceName};
use ferroxy_dataplane::testing::{Kernel, Memory};
use ferroxy_dataplane::{Dataplane, Opening, Settings};
use ferroxy_lab::pod::ECHO_PORT;
use ferroxy_lab::{BpfFilesystem, Cgroups, Network, cgroup};
use ferroxy_sockets::{Accelerated, Clients, Options};
use rustix::net::sockopt::set_socket_linger;

/// Many short rounds, so that other load on the machine hits all ways of a round alike. The connections to one port are fewer than
/// half of the client's ports, because the kernel uses that many ports before it repeats one. Connection tracking remembers a closed
/// connection for seconds, and takes longer if a new connection has the same ports.
const ROUNDS: usize = 340;
const CONNECTIONS: usize = 40;
const REQUESTS: usize = 60;
const STREAMS: usize = 60;
const STREAM: usize = 16 << 20;
const SIZES: [u16; 2] = [1, 44_000];
const SERVER: [u8; 4] = [10, 244, 1, 6];

/// Servers in pod a2, and the Services in front of them.
struct Target {
    what: &'static str,
    /// The port of the first server.
    port: u16,
    /// The number of servers and thus of endpoints, each at a port of its own.
    servers: u16,
    /// In a round, every way has servers and a Service of its own, so that no two ways share kernel state of a connection. In the next
    /// round, each way gets those of its neighbour, because ports may collide in hash tables by chance.
    by_way: bool,
    /// The number of the first Service, which is the second half of its address.
    service: u16,
}

const ANSWERED: Target =
    Target { what: "request/response", port: ECHO_PORT, servers: 1, by_way: false, service: 0 };
const STREAMED: Target =
    Target { what: "stream of 16 MiB", port: 5001, servers: 1, by_way: false, service: u16::MAX };
/// No thread accepts connections there, so that only the kernel takes part in making one. One endpoint, a few that are listed
/// in the frontend, and so many that they have a map of their own.
const QUIET: [Target; 3] = [
    Target { what: "connect, 1 of 1", port: 6000, servers: 1, by_way: true, service: 65_000 },
    Target { what: "connect, 1 of 3", port: 6100, servers: 3, by_way: true, service: 65_010 },
    Target { what: "connect, 1 of 8", port: 6200, servers: 8, by_way: true, service: 65_020 },
];
/// The number of ports that are reserved for a way of a round.
const MOST_SERVERS: u16 = 10;

impl Target {
    fn ports(&self, set: usize) -> impl Iterator<Item = u16> + use<> {
        let first = self.port + if self.by_way { set as u16 * MOST_SERVERS } else { 0 };
        first..first + self.servers
    }

    fn service(&self, set: usize) -> u16 {
        self.service + if self.by_way { set as u16 } else { 0 }
    }

    /// The addresses of a way in a round. Each connection goes to any of them.
    fn addresses(&self, way: usize, round: usize) -> Vec<SocketAddr> {
        let set = (way + round) % WAYS.len();
        if WAYS[way].through_service {
            let [high, low] = self.service(set).to_be_bytes();
            return vec![SocketAddr::from(([10, 96, high, low], 80))];
        }
        self.ports(set).map(|port| SocketAddr::from((SERVER, port))).collect()
    }

    /// The endpoints of each of its Services.
    fn services() -> BTreeMap<u16, Vec<Endpoint>> {
        let mut all = BTreeMap::new();
        for target in QUIET.iter().chain([&ANSWERED, &STREAMED]) {
            for set in 0..WAYS.len() {
                let endpoint = |port| Endpoint { ip: IpAddr::from(SERVER), port, is_local: true };
                all.insert(target.service(set), target.ports(set).map(endpoint).collect());
            }
        }
        all
    }
}

/// The settings of accelerated sockets.
#[derive(Clone, Copy)]
struct Setting {
    name: &'static str,
    clients: Clients,
    names_peers: bool,
    /// With CAP_BPF, and neither CAP_PERFMON nor CAP_SYS_ADMIN, as the agent in its pod: then the kernel adds instructions to the
    /// programs that protect it against speculative execution.
    few_privileges: bool,
}

const ALL: Setting = Setting {
    name: "--accelerate-sockets=all",
    clients: Clients::ALL,
    names_peers: false,
    few_privileges: false,
};

const SETTINGS: [Setting; 4] = [
    ALL,
    Setting { name: "--accelerate-sockets=pods", clients: Clients::PODS, ..ALL },
    Setting {
        name: "--accelerate-sockets=pods, without CAP_PERFMON",
        clients: Clients::PODS,
        few_privileges: true,
        ..ALL
    },
    Setting { name: "--accelerate-sockets=all --sockets-peer-names", names_peers: true, ..ALL },
];

impl Setting {
    fn is_first(self) -> bool {
        self.name == SETTINGS[0].name
    }
}

/// A way from the client to the server.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    through_service: bool,
    /// The client's cgroup: a pod's cgroup, where our programs run; a cgroup without programs; or a cgroup with a program that does
    /// nothing, which shows the cost of the call itself. All are equally deep, because the scheduler's statistics cost time for each
    /// level.
    cgroup: &'static str,
}

const POD: &str = "ka/kubepods/a1";
const NOBODYS: &str = "elsewhere/others/a1";
const IDLE: &str = "elsewhere/idle/a1";

/// The others are compared with the first. The last two show the cost for connections that use no Service, and the cost of any
/// program at this hook.
const WAYS: [Way; 5] = [
    Way { name: "direct", through_service: false, cgroup: NOBODYS },
    Way { name: "sockets", through_service: true, cgroup: POD },
    Way { name: "nftables", through_service: true, cgroup: NOBODYS },
    Way { name: "no Service", through_service: false, cgroup: POD },
    Way { name: "idle hook", through_service: false, cgroup: IDLE },
];

fn main() {
    if std::env::args().any(|it| it == "--test") {
        return;
    }
    stay_on_one_processor();
    for size in SIZES {
        for setting in SETTINGS {
            let bench = Bench::new(size, setting);
            println!("\n{size} Services x 3 endpoints, {}", setting.name);
            bench.connections();
            if setting.is_first() {
                bench.memory();
                bench.change();
                bench.requests();
                bench.streams();
            }
        }
    }
    println!(
        "\nNot gained: packets between pods pass the node's connection tracking as before, UDP and clients outside are \
         translated by packet rules, and a connection that is open is as fast as without a Service, not faster."
    );
}

struct Bench {
    network: Network,
    cgroups: Cgroups,
    pins: BpfFilesystem,
    dataplane: std::cell::RefCell<Accelerated>,
    size: u16,
    _idle: Link,
}

impl Bench {
    fn new(size: u16, setting: Setting) -> Bench {
        let mut network = Network::conformance().unwrap();
        let (cgroups, pins) = (Cgroups::new().unwrap(), BpfFilesystem::mount().unwrap());
        network.enter_cgroups(&cgroups).unwrap();
        cgroups.create(NOBODYS).unwrap();
        cgroups.create(IDLE).unwrap();
        let idle = idle_program(&cgroups.root().join("elsewhere/idle"));
        let options = Options {
            clients: setting.clients,
            names_peers: setting.names_peers,
            cgroup: Some(cgroups.root().join("ka")),
            pins: pins.path().join("ferroxy"),
            ..Options::default()
        };
        let intent = intent(size);
        let settings = Settings::default();
        let started = network.namespace("ka").unwrap().run(|| {
            if setting.few_privileges {
                give_up_privileges();
            }
            let opening = Opening { families: &[Family::V4], settings: &settings };
            let packets = (ferroxy_nftables::MODE.open)(&opening).unwrap();
            let mut dataplane = Accelerated::new(packets, options);
            let began = Instant::now();
            dataplane.start(&intent).unwrap();
            eprintln!("start with {size} Services: {:.2?}", began.elapsed());
            dataplane
        });
        let dataplane = started.unwrap().into();
        Bench { network, cgroups, pins, dataplane, size, _idle: idle }
    }

    /// Runs `work` with these addresses on one of the ways, from pod a1.
    fn on<T: Send>(&self, way: usize, to: &[SocketAddr], work: impl FnOnce(&[SocketAddr]) -> T + Send) -> T {
        let cgroup = self.cgroups.root().join(WAYS[way].cgroup);
        let client = self.network.namespace("a1").unwrap();
        let inside = || {
            cgroup::enter(&cgroup).unwrap();
            work(to)
        };
        client.run(inside).unwrap()
    }

    /// Rounds over all ways; each round begins with another way. The ratio is the median of the rounds' ratios, so that only times
    /// of the same few milliseconds are compared.
    fn measure(
        &self,
        to: &Target,
        goal: &str,
        rounds: usize,
        each: impl Fn(&[SocketAddr]) -> Vec<Duration> + Sync,
    ) {
        let what = to.what;
        let mut times = WAYS.map(|_| Vec::new());
        let mut ratios = WAYS.map(|_| Vec::new());
        let mut processor = WAYS.map(|_| 0.0);
        for round in 0..rounds {
            let mut medians = WAYS.map(|_| 0.0);
            // From round to round, the first way moves by two and its servers by one.
            for index in (0..WAYS.len()).map(|index| (index + 2 * round) % WAYS.len()) {
                let (measured, used) = self.on(index, &to.addresses(index, round), |to| {
                    let before = processor_time();
                    (each(to), processor_time() - before)
                });
                processor[index] += used.as_secs_f64() * 1e6 / (measured.len() * rounds) as f64;
                let mut measured: Vec<f64> = measured.iter().map(|it| it.as_secs_f64() * 1e6).collect();
                medians[index] = quantile(&mut measured, 0.5);
                times[index].extend(measured);
            }
            ratios.iter_mut().zip(medians).for_each(|(all, median)| all.push(median / medians[0]));
        }
        for (index, Way { name, .. }) in WAYS.iter().enumerate() {
            let [low, middle, high] = [0.25, 0.5, 0.75].map(|part| quantile(&mut ratios[index], part));
            println!(
                "  {what:17} {name:10} p50 {:9.2} us   {middle:.4} x direct ({low:.3} to {high:.3})   CPU {:9.2} us",
                quantile(&mut times[index], 0.5),
                processor[index]
            );
        }
        println!("  {what:17} goal: sockets {goal}");
    }

    fn connections(&self) {
        for target in &QUIET {
            let ports = (0..WAYS.len()).flat_map(|set| target.ports(set));
            let listeners: Vec<TcpListener> = ports.map(|port| self.listen(port)).collect();
            listeners.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
            self.measure(target, "at most 1.005 x direct", ROUNDS, |to| {
                let one = |to: &SocketAddr| {
                    let began = Instant::now();
                    let stream = TcpStream::connect(to).unwrap();
                    let took = began.elapsed();
                    // Close with a reset: no port stays in TIME_WAIT, and connection tracking forgets the connection soon.
                    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                    took
                };
                let times = (0..CONNECTIONS).map(|_| one(any(to))).collect();
                for listener in &listeners {
                    while listener.accept().is_ok() {}
                }
                times
            });
        }
    }

    fn listen(&self, port: u16) -> TcpListener {
        self.network.namespace("a2").unwrap().run(|| TcpListener::bind(("::", port)).unwrap()).unwrap()
    }

    fn requests(&self) {
        self.measure(&ANSWERED, "1.00 x direct", ROUNDS, |to| {
            let stream = TcpStream::connect(to).unwrap();
            stream.set_nodelay(true).unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            let one = |_| {
                let began = Instant::now();
                (&stream).write_all(b"x\n").unwrap();
                line.clear();
                lines.read_line(&mut line).unwrap();
                began.elapsed()
            };
            let times = (0..REQUESTS).map(one).collect();
            set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            times
        });
    }

    fn streams(&self) {
        let listener = self.listen(STREAMED.port);
        std::thread::spawn(move || listener.incoming().for_each(|stream| swallow(stream.unwrap())));
        self.measure(&STREAMED, "1.00 x direct", STREAMS, |to| {
            let mut stream = TcpStream::connect(to).unwrap();
            let (chunk, began) = ([7; 1 << 16], Instant::now());
            (0..STREAM / chunk.len()).for_each(|_| stream.write_all(&chunk).unwrap());
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 1, "all of it has arrived");
            vec![began.elapsed()]
        });
    }

    /// Removes or adds one endpoint of one Service: at sockets alone, and with nftables below.
    fn change(&self) {
        let (mut alone, mut with_rules) = (self.alone(), self.dataplane.borrow_mut());
        // The dataplane that does nothing reports one operation.
        for (what, dataplane, others) in
            [("sockets alone", &mut alone, 1), ("nftables below", &mut *with_rules, 0)]
        {
            let (mut times, mut writes) = (Vec::new(), 0);
            for round in 0..400 {
                let (name, changed) = service(self.size, u8::from(round % 2 == 0));
                let change = || {
                    let began = Instant::now();
                    let done = dataplane.change(vec![(name, Some(changed))]).unwrap();
                    (began.elapsed().as_secs_f64() * 1e6, done.operations)
                };
                let (took, operations) = self.network.namespace("ka").unwrap().run(change).unwrap();
                times.push(took);
                writes = writes.max(operations - others);
            }
            println!(
                "  one change        {what:14} p50 {:9.2} us, {writes} writes at most",
                quantile(&mut times, 0.5)
            );
        }
        println!("  one change        goal: at most three writes at sockets, and the same time at any size");
    }

    /// Sockets above a dataplane that does nothing, at a cgroup without processes.
    fn alone(&self) -> Accelerated {
        let nobody = self.cgroups.create("ka/nobody").unwrap();
        let options = Options {
            clients: Clients::PODS,
            pods_cgroup: Some(nobody),
            pins: self.pins.path().join("alone"),
            ..Options::default()
        };
        let mut alone = Accelerated::new(Box::new(Memory::new(&Kernel::default())), options);
        let all = intent(self.size);
        self.network.namespace("ka").unwrap().run(|| alone.start(&all).unwrap()).unwrap();
        alone
    }

    fn memory(&self) {
        let entries = std::fs::read_dir(self.pins.path().join("ferroxy")).unwrap().flatten();
        let generation = entries.map(|entry| entry.path()).find(|path| path.is_dir()).unwrap();
        let files = std::fs::read_dir(generation).unwrap().flatten().map(|entry| entry.path());
        let sizes: Vec<_> = files.filter_map(|path| Some((memory_of(&path)?, path))).collect();
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        for (size, path) in &sizes {
            let name = path.file_name().unwrap().to_string_lossy();
            println!("  memory            {name:10} {:5.1} MB", megabytes(*size));
        }
        let sum: u64 = sizes.iter().map(|(size, _)| size).sum();
        println!("  memory            together   {:5.1} MB; goal: under 30 MB", megabytes(sum));
    }
}

fn idle_program(cgroup: &std::path::Path) -> Link {
    let mut program = Assembler::new();
    program.set(Register::R0, 1).exit();
    let program = Program::load("idle", Attach::Connect4, &program.finish().unwrap(), &[]).unwrap();
    Link::create("idle", &program, &Cgroup::open(cgroup).unwrap(), Attach::Connect4).unwrap()
}

/// A random address, as the endpoints of a Service are chosen: a processor would learn any order that repeats itself.
fn any(of: &[SocketAddr]) -> &SocketAddr {
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), of.len());
    &of[random as usize % of.len()]
}

/// Reads to the end, and confirms that with one byte.
fn swallow(mut stream: TcpStream) {
    let mut buffer = vec![0; 1 << 16];
    while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
    // The client may be gone.
    let _ = stream.write_all(b".");
}

/// `size` Services and those that are measured, on a node that recognises pods.
fn intent(size: u16) -> Intent {
    let services: BTreeMap<_, _> =
        (0..=size).chain(Target::services().into_keys()).map(|number| service(number, 0)).collect();
    let mut intent = Intent { services, ..Intent::default() };
    let detector = Some(LocalDetector::SourceIn("10.244.0.0/16".parse().unwrap()));
    intent.node.v4 = FamilyIntent { local_detector: detector, ..FamilyIntent::default() };
    intent
}

/// Sorts, and returns the value below which this part of all values lies.
fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part) as usize]
}

/// The Services of a [`Target`] are measured: their servers are in pod a2. The endpoints of other Services do not exist. `gone` of
/// those are left out.
fn service(number: u16, gone: u8) -> (ServiceName, Arc<ServiceIntent>) {
    let [high, low] = number.to_be_bytes();
    let other = |n: u8| Endpoint { ip: IpAddr::from([10, 100 + n, high, low]), port: 80, is_local: false };
    let measured = Target::services().remove(&number);
    let cluster = measured.unwrap_or_else(|| (gone..3).map(other).collect());
    let (name, service) = ferroxy_core::testing::service(number, [0]);
    let mut service = Arc::unwrap_or_clone(service);
    service.ports[0].size = cluster.len() as u32;
    service.ports[0].cluster = cluster;
    (name, Arc::new(service))
}

/// Client and server take turns on one processor. Otherwise the choice of processors by the scheduler would make a larger difference
/// than everything that is measured here.
fn stay_on_one_processor() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None).unwrap();
    let last = (0..CpuSet::MAX_CPU).rev().find(|number| allowed.is_set(*number)).unwrap();
    let mut only = CpuSet::new();
    only.set(last);
    sched_setaffinity(None, &only).unwrap();
}

/// Reduces the privileges of this thread.
fn give_up_privileges() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::SYS_ADMIN | CapabilitySet::PERFMON);
    set_capabilities(None, sets).unwrap();
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The memory of a pinned map, as the kernel accounts it. `None` if the path is not a map.
fn memory_of(path: &std::path::Path) -> Option<u64> {
    use std::os::fd::{AsFd, AsRawFd};
    let map = Map::open_pinned(path).ok()?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd())).unwrap();
    info.lines().find_map(|line| line.strip_prefix("memlock:"))?.trim().parse().ok()
}
