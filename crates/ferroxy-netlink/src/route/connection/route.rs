//! Adds and removes routes of the main table.

use super::Connection;
use crate::codec::flag;
use crate::error::Error;
use crate::route::Route;
use crate::route::wire::{RTM_DELROUTE, RTM_NEWROUTE};
use crate::socket::Request;

impl Connection {
    pub fn add_route(&mut self, route: Route) -> Result<(), Error> {
        self.change_route("add route", RTM_NEWROUTE, flag::CREATE | flag::EXCL, route)
    }

    pub fn remove_route(&mut self, route: Route) -> Result<(), Error> {
        self.change_route("remove route", RTM_DELROUTE, 0, route)
    }

    fn change_route(
        &mut self,
        operation: &'static str,
        kind: u16,
        flags: u16,
        route: Route,
    ) -> Result<(), Error> {
        let object = route.to_string();
        let request = Request { operation, object: &object, kind, flags };
        self.socket.request(request, |encoder| route.encode(encoder))
    }
}
