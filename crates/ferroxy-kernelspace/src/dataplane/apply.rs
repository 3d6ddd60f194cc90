//! Applies a Plan, operation by operation, and looks up the ids. A refused operation does not stop the others; a call without
//! an answer does.

use std::net::IpAddr;

use ferroxy_hcn::{ErrorKind, Guid, Kind};
use tracing::warn;

use super::document::{
    balancer_id, endpoint_id, read_balancer, read_endpoint, write_balancer, write_endpoint,
};
use super::error::Error;
use super::failures::Call;
use super::{Kernelspace, Modify};
use crate::plan::{Op, Plan};
use crate::state::{Balancer, Endpoint, Frontend};
use crate::text;

type Refusal = ferroxy_hcn::Error;

#[derive(Debug, Default)]
pub struct Applied {
    pub operations: usize,
    pub refused: Vec<(Op, Refusal)>,
    /// Load balancers that lack an endpoint, because it could not be created.
    pub incomplete: Vec<(Frontend, IpAddr)>,
    /// Kinds that were listed again: once for a Plan, however many operations conflict with other programs.
    listed: Vec<Kind>,
}

impl Kernelspace {
    pub(super) fn carry_out(&mut self, plan: &Plan) -> Result<Applied, Error> {
        let mut applied = Applied::default();
        for op in plan.ops() {
            match self.execute(op, &mut applied) {
                Ok(()) => applied.operations += 1,
                Err(error) if error.kind() == ErrorKind::Unknown => {
                    // HNS may have done it or not.
                    self.is_certain = false;
                    return Err(error.into());
                }
                Err(error) => {
                    self.count(op, &error);
                    applied.refused.push((op.clone(), error));
                }
            }
            self.show_life();
        }
        Ok(applied)
    }

    fn execute(&mut self, op: &Op, applied: &mut Applied) -> Result<(), Refusal> {
        match op {
            Op::CreateEndpoint(ip, endpoint) => self.create_endpoint(*ip, endpoint, applied),
            Op::CreateBalancer(at, balancer) => self.create_balancer(at, balancer, applied),
            Op::ChangeBalancer(at, balancer) => self.change_balancer(at, balancer, applied),
            // Another program may have got the frontend since the Plan was made.
            Op::DeleteBalancer(at) => {
                self.delete_surplus(at)?;
                match self.mirror.ours_at(at) {
                    Some((id, seen)) if seen.is_own => self.delete_balancer(id),
                    _ => Ok(()),
                }
            }
            Op::DeleteEndpoint(ip) => match self.mirror.own_id_of(*ip) {
                Some(id) => self.delete_endpoint(id, *ip, applied),
                None => Ok(()),
            },
        }
    }

    /// An endpoint that other programs refer to stays: this is not a failure.
    fn delete_endpoint(&mut self, id: Guid, ip: IpAddr, applied: &mut Applied) -> Result<(), Refusal> {
        match self.hcn.delete(Kind::Endpoint, id) {
            Err(error) if error.kind() == ErrorKind::HasReferences => {
                self.look_again(Kind::LoadBalancer, applied)?;
                if self.mirror.hold(id) { Ok(()) } else { Err(error.about(ip)) }
            }
            Err(error) => Err(error.about(ip)),
            Ok(()) => {
                self.mirror.forget_endpoint(id);
                Ok(())
            }
        }
    }

    fn create_endpoint(
        &mut self,
        ip: IpAddr,
        endpoint: &Endpoint,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let network = self.network.unwrap_or(Guid::ZERO);
        let document = write_endpoint(network, ip, endpoint);
        match self.hcn.create_endpoint(network, endpoint_id(network, ip), &document) {
            Ok(id) => {
                self.mirror.enter_endpoint(id, read_endpoint(network, id, &document));
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Exists => {
                // Another program was faster, or an earlier answer was lost.
                self.look_again(Kind::Endpoint, applied)?;
                if self.mirror.id_of(ip).is_some() { Ok(()) } else { Err(error.about(ip)) }
            }
            Err(error) => Err(error.about(ip)),
        }
    }

    fn create_balancer(
        &mut self,
        at: &Frontend,
        balancer: &Balancer,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let ids = self.ids(at, balancer, applied);
        if ids.is_empty() {
            return Ok(());
        }
        match self.create_with(at, balancer, ids) {
            Err(error) if error.kind() == ErrorKind::Exists => self.displace(at, balancer, applied, error),
            Err(error) if is_stale(&error) => {
                self.look_again(Kind::Endpoint, applied)?;
                let ids = self.ids(at, balancer, applied);
                if ids.is_empty() { Ok(()) } else { self.create_with(at, balancer, ids) }
            }
            done => done,
        }
    }

    fn create_with(&mut self, at: &Frontend, balancer: &Balancer, ids: Vec<Guid>) -> Result<(), Refusal> {
        let document = write_balancer(at, balancer, ids);
        let id = self
            .hcn
            .create_load_balancer(balancer_id(at), &document)
            .map_err(|error| error.about(text::frontend(at)))?;
        self.enter(id, at, balancer, &document);
        Ok(())
    }

    /// The frontend is taken. A load balancer with another owner stays; one without an owner is replaced.
    fn displace(
        &mut self,
        at: &Frontend,
        balancer: &Balancer,
        applied: &mut Applied,
        error: Refusal,
    ) -> Result<(), Refusal> {
        self.look_again(Kind::LoadBalancer, applied)?;
        let Some((id, seen)) = self.mirror.balancer_at(at) else { return Err(error) };
        if !seen.is_ours() {
            let words = format!("it belongs to {}, as load balancer {id}", seen.owner);
            return Err(Refusal { text: words, ..error });
        }
        self.delete_balancer(id)?;
        let ids = self.ids(at, balancer, applied);
        self.create_with(at, balancer, ids)
    }

    fn change_balancer(
        &mut self,
        at: &Frontend,
        balancer: &Balancer,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        self.delete_surplus(at)?;
        let Some((id, seen)) = self.mirror.ours_at(at) else {
            return self.create_balancer(at, balancer, applied);
        };
        let can = self.features.is_some_and(|it| it.modify) && self.modify != Modify::DoesNotWork;
        let in_place = can && seen.balancer.differs_only_in_endpoints(balancer);
        let ids = self.ids(at, balancer, applied);
        if ids.is_empty() {
            // Better the old endpoints than none: the Service is tried again.
            return Ok(());
        }
        if in_place && self.modify(id, at, balancer, ids, applied)? {
            return Ok(());
        }
        // Looks up the id again, because HNS may have been listed again meanwhile.
        if let Some((id, _)) = self.mirror.ours_at(at) {
            self.delete_balancer(id)?;
        }
        self.create_balancer(at, balancer, applied)
    }

    /// `false`: the load balancer must be recreated.
    fn modify(
        &mut self,
        id: Guid,
        at: &Frontend,
        balancer: &Balancer,
        ids: Vec<Guid>,
        applied: &mut Applied,
    ) -> Result<bool, Refusal> {
        let document = write_balancer(at, balancer, ids);
        match self.hcn.modify_load_balancer(id, &document) {
            Ok(()) if self.modify == Modify::Works || self.is_changed(id, &document)? => {
                self.modify = Modify::Works;
                self.enter(id, at, balancer, &document);
                Ok(true)
            }
            Ok(()) => {
                warn!(
                    "HNS accepts changes of load balancers and ignores them: load balancers are deleted and recreated instead"
                );
                self.modify = Modify::DoesNotWork;
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::NotImplemented => {
                warn!("HNS cannot change load balancers: they are deleted and recreated instead");
                self.modify = Modify::DoesNotWork;
                Ok(false)
            }
            Err(error) if is_stale(&error) => {
                // The load balancer, or an endpoint, was deleted by others.
                self.look_again(Kind::LoadBalancer, applied)?;
                self.look_again(Kind::Endpoint, applied)?;
                Ok(false)
            }
            Err(error) => Err(error.about(text::frontend(at))),
        }
    }

    /// HNS 15.4 reported success and did nothing.
    fn is_changed(&mut self, id: Guid, document: &ferroxy_hcn::LoadBalancer) -> Result<bool, Refusal> {
        let sorted = |ids: &[Guid]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        let found = self.hcn.load_balancer(id)?;
        Ok(found.is_some_and(|found| {
            sorted(&found.host_compute_endpoints) == sorted(&document.host_compute_endpoints)
        }))
    }

    fn delete_surplus(&mut self, at: &Frontend) -> Result<(), Refusal> {
        self.mirror.surplus_at(at).into_iter().try_for_each(|id| self.delete_balancer(id))
    }

    fn delete_balancer(&mut self, id: Guid) -> Result<(), Refusal> {
        self.hcn.delete(Kind::LoadBalancer, id)?;
        self.mirror.forget_balancer(id);
        Ok(())
    }

    fn enter(&mut self, id: Guid, at: &Frontend, balancer: &Balancer, document: &ferroxy_hcn::LoadBalancer) {
        let mut seen = read_balancer(id, document);
        seen.frontend = Some(*at);
        seen.balancer.role = balancer.role;
        self.mirror.enter_balancer(id, seen);
    }

    /// The ids of the endpoints. Endpoints without an id are noted as incomplete.
    fn ids(&self, at: &Frontend, balancer: &Balancer, applied: &mut Applied) -> Vec<Guid> {
        let mut ids = Vec::with_capacity(balancer.endpoints.len());
        for ip in &balancer.endpoints {
            match self.mirror.id_of(*ip) {
                Some(id) => ids.push(id),
                None => applied.incomplete.push((*at, *ip)),
            }
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn look_again(&mut self, kind: Kind, applied: &mut Applied) -> Result<(), Refusal> {
        if applied.listed.contains(&kind) {
            return Ok(());
        }
        applied.listed.push(kind);
        let looked = match kind {
            Kind::LoadBalancer => self.look_at_balancers(false),
            Kind::Network | Kind::Endpoint => self.look_at_endpoints(false),
        };
        match looked {
            Err(Error::Hns(error)) => Err(error),
            _ => Ok(()),
        }
    }

    fn count(&mut self, op: &Op, error: &Refusal) {
        let call = match op {
            Op::CreateBalancer(..) => Call::Create,
            Op::ChangeBalancer(..) => Call::Update,
            Op::DeleteBalancer(_) => Call::Delete,
            Op::CreateEndpoint(..) | Op::DeleteEndpoint(_) => return,
        };
        let role = match op {
            Op::CreateBalancer(_, balancer) | Op::ChangeBalancer(_, balancer) => Some(balancer.role),
            Op::DeleteBalancer(at) => self.mirror.balancer_at(at).map(|(_, seen)| seen.balancer.role),
            _ => None,
        };
        if let (Some(at), Some(role)) = (op.frontend(), role) {
            self.failures.count(call, at.family, role, error);
        }
    }
}

/// Something that the call names is gone.
fn is_stale(error: &Refusal) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::StaleReference)
}
