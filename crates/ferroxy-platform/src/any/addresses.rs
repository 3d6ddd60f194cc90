//! The host's addresses: no list without the platform's help, and a watch that compares lists.

use std::io;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use crate::addresses::OnChange;

/// How often to compare.
const LIST_EVERY: Duration = Duration::from_secs(5);

pub fn addresses(_: &[&str]) -> io::Result<Vec<IpAddr>> {
    Err(super::unsupported("a list of the host's addresses"))
}

pub fn hardware_address(_: IpAddr) -> io::Result<Option<[u8; 6]>> {
    Err(super::unsupported("hardware addresses"))
}

pub fn watch(except_devices: Vec<String>, mut on_change: OnChange) -> io::Result<()> {
    let list = move || {
        let except: Vec<&str> = except_devices.iter().map(String::as_str).collect();
        crate::addresses::addresses(&except)
    };
    let mut last = list()?;
    let work = move || {
        loop {
            thread::sleep(LIST_EVERY);
            match list() {
                Ok(now) if now == last => {}
                Ok(now) => {
                    last.clone_from(&now);
                    on_change(Ok(now));
                }
                Err(error) => on_change(Err(error)),
            }
        }
    };
    thread::Builder::new().name("addresses".to_owned()).spawn(work).map(drop)
}
