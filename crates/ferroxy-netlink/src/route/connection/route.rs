//! Adds and removes routes of the main table, and local routes.

use super::Connection;
use crate::codec::flag;
use crate::error::Error;
use crate::route::wire::{RTM_DELROUTE, RTM_GETROUTE, RTM_NEWROUTE};
use crate::route::{LocalRoute, Route};
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

    /// Fails with EEXIST if the route exists.
    pub fn add_local_route(&mut self, route: LocalRoute) -> Result<(), Error> {
        self.change_local_route("add route", RTM_NEWROUTE, flag::CREATE | flag::EXCL, route)
    }

    /// Fails with ESRCH if the route does not exist.
    pub fn remove_local_route(&mut self, route: LocalRoute) -> Result<(), Error> {
        self.change_local_route("remove route", RTM_DELROUTE, 0, route)
    }

    fn change_local_route(
        &mut self,
        operation: &'static str,
        kind: u16,
        flags: u16,
        route: LocalRoute,
    ) -> Result<(), Error> {
        let object = route.to_string();
        let request = Request { operation, object: &object, kind, flags };
        self.socket.request(request, |encoder| route.encode(encoder))
    }

    /// The local routes to single addresses that were added with this protocol number.
    pub fn local_routes(&mut self, protocol: u8) -> Result<Vec<LocalRoute>, Error> {
        let request = Request { operation: "list routes", object: "", kind: RTM_GETROUTE, flags: 0 };
        let answer = self.socket.dump(request, |encoder| encoder.put_raw(&[0; 12]))?;
        let routes = answer.messages().filter_map(|message| match message {
            Ok(message) => LocalRoute::decode(&message).transpose(),
            Err(found) => Some(Err(found)),
        });
        let routes: Result<Vec<LocalRoute>, _> = routes.collect();
        let mut routes = routes.map_err(|found| Error::malformed(request.operation, "", found))?;
        routes.retain(|route| route.protocol == protocol);
        Ok(routes)
    }
}
