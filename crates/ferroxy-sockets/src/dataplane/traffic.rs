//! Reads how many connections were made at sockets, for each frontend and endpoint, and adds them to what packets counted.

use std::collections::HashMap;

use ferroxy_core::Protocol;
use ferroxy_dataplane::Failure;
use ferroxy_dataplane::capability::traffic::{CountsTraffic, Flow, Traffic};

use super::report::Report;
use crate::flow::flow_of;

#[derive(Debug)]
pub struct Reader {
    pub packets: Box<dyn CountsTraffic>,
    pub report: Report,
}

impl CountsTraffic for Reader {
    fn read(&mut self) -> Result<HashMap<Flow, Traffic>, Failure> {
        let mut flows = self.packets.read()?;
        // Do not read while the lock is held: the dataplane needs it as well.
        let Some(map) = self.report.lock().flows.clone() else { return Ok(flows) };
        let read = map.for_each(|key, values| {
            let Some((frontend, endpoint)) = flow_of(key) else { return };
            let flow = Flow { protocol: Protocol::Tcp, frontend, endpoint };
            flows.entry(flow).or_default().at_sockets = super::report::sum(values);
        });
        read.map_err(Failure::other)?;
        Ok(flows)
    }

    fn limit(&self) -> u64 {
        self.packets.limit()
    }
}
