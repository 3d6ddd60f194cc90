//! Adds, removes and lists addresses.

use super::Connection;
use crate::codec::{Encoder, flag};
use crate::error::Error;
use crate::numbers::AF_UNSPEC;
use crate::requests::{Refused, Requests};
use crate::route::address::{Address, header};
use crate::route::wire::{RTM_DELADDR, RTM_GETADDR, RTM_NEWADDR};
use crate::socket::Request;

impl Connection {
    /// Every address of every link of the namespace, loopback and link-local ones included.
    pub fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        self.list_addresses(0)
    }

    /// Every address of one link.
    pub fn addresses_of(&mut self, link: u32) -> Result<Vec<Address>, Error> {
        let mut addresses = self.list_addresses(link)?;
        // Kernels before 4.20 ignore the filter and list the addresses of all links.
        addresses.retain(|address| address.link == link);
        Ok(addresses)
    }

    fn list_addresses(&mut self, link: u32) -> Result<Vec<Address>, Error> {
        let request = Request { operation: "list addresses", object: "", kind: RTM_GETADDR, flags: 0 };
        let answer = self.socket.dump(request, |encoder| encoder.put_raw(&header(AF_UNSPEC, 0, link)))?;
        let addresses = answer.messages().filter_map(|message| match message {
            Ok(message) => Address::decode(&message).transpose(),
            Err(found) => Some(Err(found)),
        });
        addresses.collect::<Result<_, _>>().map_err(|found| Error::malformed(request.operation, "", found))
    }

    /// The address is usable at once: IPv6 addresses are added without duplicate address detection, which takes a second or two.
    pub fn add_address(&mut self, address: Address) -> Result<(), Error> {
        let object = address.to_string();
        let request = Request { operation: ADD, object: &object, kind: RTM_NEWADDR, flags: TO_ADD };
        self.socket.request(request, |encoder| address.encode_new(encoder))
    }

    pub fn remove_address(&mut self, address: Address) -> Result<(), Error> {
        let object = address.to_string();
        let request = Request { operation: REMOVE, object: &object, kind: RTM_DELADDR, flags: 0 };
        self.socket.request(request, |encoder| address.encode(encoder))
    }

    /// Adds many. Returns those that were refused (EEXIST: exists already); the others are added.
    pub fn add_addresses(&mut self, addresses: &[Address]) -> Result<Vec<Refused>, Error> {
        self.change_addresses(ADD, RTM_NEWADDR, TO_ADD, addresses, Address::encode_new)
    }

    /// Removes many. Returns those that were refused (EADDRNOTAVAIL: does not exist); the others are removed.
    pub fn remove_addresses(&mut self, addresses: &[Address]) -> Result<Vec<Refused>, Error> {
        self.change_addresses(REMOVE, RTM_DELADDR, 0, addresses, Address::encode)
    }

    fn change_addresses(
        &mut self,
        operation: &'static str,
        kind: u16,
        flags: u16,
        addresses: &[Address],
        encode: fn(&Address, &mut Encoder),
    ) -> Result<Vec<Refused>, Error> {
        let mut requests = Requests::default();
        addresses.iter().for_each(|address| requests.push(kind, flags, |encoder| encode(address, encoder)));
        let mut refused = Vec::new();
        self.socket.carry_out(operation, &requests, &mut |index, ack, _| {
            if let (Some(errno), Some(address)) = (ack.errno, addresses.get(index)) {
                let error = Error::refused(operation, address.to_string(), errno).explained(ack.words);
                refused.push(Refused { index, error });
            }
        })?;
        Ok(refused)
    }
}

/// Operations, for errors.
const ADD: &str = "add address";
const REMOVE: &str = "remove address";

/// Refuses an address that exists.
const TO_ADD: u16 = flag::CREATE | flag::EXCL;
