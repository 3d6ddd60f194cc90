//! The addresses that our device must have, shared with the thread that watches it: a notification does not say who made a change.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::plan::{Op, Plan};

/// The addresses of our device, unless another program has changed them.
#[derive(Debug, Clone, Default)]
pub struct Expected(Arc<Mutex<BTreeSet<IpAddr>>>);

impl Expected {
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&ip)
    }

    pub(crate) fn replace(&self, addresses: BTreeSet<IpAddr>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// Call it before applying the Plan, because notifications arrive while the Plan is applied.
    pub(crate) fn follow(&self, plan: &Plan) {
        let mut addresses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for op in plan.ops() {
            match op {
                Op::AddAddress(ip) => drop(addresses.insert(*ip)),
                Op::RemoveAddress(ip) => drop(addresses.remove(ip)),
                Op::RemoveDevice => addresses.clear(),
                _ => {}
            }
        }
    }
}

impl FromIterator<IpAddr> for Expected {
    fn from_iter<T: IntoIterator<Item = IpAddr>>(addresses: T) -> Expected {
        Expected(Arc::new(Mutex::new(addresses.into_iter().collect())))
    }
}
