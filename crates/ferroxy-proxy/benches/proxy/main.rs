//! What the engine costs, against a direct connection, HAProxy, nginx (stream) and the shape of kube-proxy's own, in namespaces on this machine. Ratios within
//! one run; `make bench-proxy`.
//!
//! The same program plays all parts, as processes of its own: `server`, `client` and `engine`; without such an argument it
//! runs and compares them. Needs root.

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
