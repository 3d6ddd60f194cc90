//! Benchmark of the engine against a direct connection, HAProxy, nginx (stream) and a model of kube-proxy's userspace
//! mode, in namespaces on this machine. Compare ratios within one run only. Run it with `make bench-proxy`.
//!
//! The same program plays all parts as child processes: `server`, `client`, `engine` and `original`. Without such an
//! argument it runs and compares them. Needs root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark stops at the first problem"
)]

#[cfg(target_os = "linux")]
mod changes;
#[cfg(target_os = "linux")]
mod client;
#[cfg(target_os = "linux")]
mod contestants;
#[cfg(target_os = "linux")]
mod original;
#[cfg(target_os = "linux")]
mod picture;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod server;
#[cfg(target_os = "linux")]
mod stage;

#[cfg(target_os = "linux")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["server"] => server::run(),
        ["engine", listen, endpoint] => contestants::run_engine(listen, endpoint),
        ["original", listen, endpoint] => original::run(listen, endpoint),
        ["client", phase, address, seconds] => client::run(phase, address, seconds.parse().unwrap()),
        rest => stage::run(rest),
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("this benchmark needs Linux");
}
