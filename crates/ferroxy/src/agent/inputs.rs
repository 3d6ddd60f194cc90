//! Reports of the platform as inputs of the agent: changes of the host's addresses, and requests to stop.

use std::io;

use ferroxy_core::Event;
use ferroxy_platform::{addresses, signals};
use tracing::warn;

use super::{Input, Sender};
use crate::panic;

/// The addresses of this host, as an event. Addresses on these devices belong to Services.
pub fn host_addresses(devices: &[&str]) -> io::Result<Event> {
    addresses::addresses(devices).map(Event::HostAddresses)
}

/// Sends the host's addresses whenever they change.
pub fn watch_addresses(devices: &[&str], inputs: Sender) -> io::Result<()> {
    addresses::watch_addresses(devices, move |addresses| match addresses {
        // Fails only when the agent has ended, which ends the process.
        Ok(addresses) => drop(inputs.send(Input::Events(vec![Event::HostAddresses(addresses)]))),
        Err(error) => warn!("cannot watch this host's addresses: {error}"),
    })
}

/// Turns SIGTERM and SIGINT into `Stop`. Call it before any other thread exists.
pub fn watch_signals(inputs: Sender) -> io::Result<()> {
    signals::watch(move |reason| match reason {
        Ok(reason) => drop(inputs.send(Input::Stop(reason.as_str()))),
        // A process that does not receive SIGTERM can only be killed.
        Err(error) => panic::ended("the thread that waits for signals", &error),
    })
}
