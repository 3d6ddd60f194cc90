//! The proxies: how each is started, and what it has used.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ferroxy_lab::Namespace;
use ferroxy_proxy::{Change, Engine, Frontend, Pool, Settings, Sockets};

use crate::original;
use crate::server::{DATAGRAMS, ECHO, SOURCE};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contestant {
    Direct,
    Ferroxy,
    Haproxy,
    Nginx,
    Original,
}

pub const ALL: [Contestant; 5] =
    [Contestant::Direct, Contestant::Ferroxy, Contestant::Haproxy, Contestant::Nginx, Contestant::Original];

impl Contestant {
    /// HAProxy 2.6 has no UDP.
    pub fn has_datagrams(self) -> bool {
        self != Contestant::Haproxy
    }

    /// How many idle connections to open: fewer for a proxy that needs more than two descriptors for each.
    pub fn idle_connections(self) -> usize {
        let most = crate::stage::idle_connections();
        if self == Contestant::Original { most * 2 / original::DESCRIPTORS } else { most }
    }

    /// Starts the proxy in the namespace, on the same ports as the server. `None` for the direct connection.
    pub fn start(self, node: &Namespace, listen: &str, endpoint: &str, folder: &Path) -> Option<Running> {
        let mut command = match self {
            Contestant::Direct => return None,
            Contestant::Ferroxy => part("engine", listen, endpoint),
            Contestant::Original => part("original", listen, endpoint),
            Contestant::Haproxy => {
                let path = folder.join("haproxy.cfg");
                fs::write(&path, haproxy(listen, endpoint)).unwrap();
                let mut command = Command::new("haproxy");
                command.arg("-db").arg("-f").arg(path);
                command
            }
            Contestant::Nginx => {
                let path = folder.join("nginx.conf");
                fs::write(&path, nginx(listen, endpoint, folder)).unwrap();
                let mut command = Command::new("nginx");
                command.arg("-c").arg(path).arg("-p").arg(folder);
                command
            }
        };
        command.stdin(Stdio::piped());
        Some(Running(node.run(|| command.spawn()).unwrap().unwrap()))
    }
}

/// A process of this program.
fn part(name: &str, listen: &str, endpoint: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, listen, endpoint]);
    command
}

fn haproxy(listen: &str, endpoint: &str) -> String {
    let section =
        |port: u16| format!("listen p{port}\n  bind {listen}:{port}\n  server s {endpoint}:{port}\n");
    format!(
        "global\n  maxconn {}\n  maxpipes 100\n  nbthread 2\n\
         defaults\n  mode tcp\n  option splice-auto\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n{}{}",
        crate::stage::idle_connections() + 50,
        section(ECHO),
        section(SOURCE)
    )
}

fn nginx(listen: &str, endpoint: &str, folder: &Path) -> String {
    let folder = folder.display();
    // As Ferroxy does: a client that has sent everything still gets the rest of the answer.
    let half_close = |udp: &str| if udp.is_empty() { " proxy_half_close on;" } else { "" };
    let section = |port: u16, udp: &str| {
        let half_close = half_close(udp);
        format!(
            "server {{ listen {listen}:{port}{udp} reuseport; proxy_pass {endpoint}:{port};{half_close} }}\n"
        )
    };
    format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off;\nworker_processes 2;\n\
         pid {folder}/nginx.pid;\nerror_log stderr emerg;\n\
         events {{ worker_connections {}; }}\nstream {{\n{}{}{}}}\n",
        crate::stage::idle_connections() * 2 + 200,
        section(ECHO, ""),
        section(SOURCE, ""),
        section(DATAGRAMS, " udp")
    )
}

/// The part of a child process: serves the same frontends with the engine, until stdin ends.
pub fn run_engine(listen: &str, endpoint: &str) {
    let engine = Engine::start(Settings { threads: Some(2), ..Settings::default() }).unwrap();
    let mut change = Change::default();
    for port in [ECHO, SOURCE, DATAGRAMS] {
        let at = |address: &str| format!("{address}:{port}").parse().unwrap();
        let frontend = if port == DATAGRAMS { Frontend::udp(at(listen)) } else { Frontend::tcp(at(listen)) };
        change.set_pool(format!("{port}"), Pool::of([at(endpoint)]));
        let frontend = frontend.to(format!("{port}")).with_sockets(Sockets::PerThread);
        change.set_frontend(format!("{port}"), frontend);
    }
    let applied = engine.apply(change);
    assert!(applied.failures.is_empty(), "{:?}", applied.failures);
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// The process and its workers.
    pub fn processes(&self) -> Vec<u32> {
        let own = self.0.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        std::iter::once(own).chain(children.split_whitespace().filter_map(|it| it.parse().ok())).collect()
    }

    /// CPU time in seconds.
    pub fn cpu(&self) -> f64 {
        let ticks = |process: &u32| -> Option<f64> {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            Some(fields[11].parse::<f64>().ok()? + fields[12].parse::<f64>().ok()?)
        };
        self.processes().iter().filter_map(ticks).sum::<f64>() / 100.0
    }

    /// Resident anonymous memory in bytes, without file-backed pages.
    pub fn memory(&self) -> f64 {
        let anonymous = |process: &u32| -> Option<f64> {
            let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
            let line = status.lines().find(|it| it.starts_with("RssAnon:"))?;
            Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? * 1024.0)
        };
        self.processes().iter().filter_map(anonymous).sum()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let process = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}
