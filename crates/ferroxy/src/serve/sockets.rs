//! Connections of accelerated sockets, which bypass the packet rules: in the metrics and on `/statusz`.

use std::sync::{Mutex, PoisonError};

use ferroxy_dataplane::{SocketReport, TranslatesSockets};
use serde_json::{Value, json};

use super::exposition::{Exposition, Kind};

/// The dataplane's report, if it translates sockets.
#[derive(Debug, Default)]
pub struct Sockets(Mutex<Option<Box<dyn TranslatesSockets>>>);

/// How many Services the report names.
const MOST_LISTED: usize = 20;

impl Sockets {
    pub fn new(reader: Option<Box<dyn TranslatesSockets>>) -> Sockets {
        Sockets(Mutex::new(reader))
    }

    fn read(&self) -> Option<SocketReport> {
        let mut reader = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reader.as_mut().map(|reader| reader.read())
    }

    pub fn write(&self, page: &mut Exposition) {
        let Some(report) = self.read() else { return };
        let name = "ferroxy_sockets_translated";
        page.begin(
            Kind::Gauge,
            name,
            "Whether connections of these clients are translated at the socket, without NAT.",
        );
        for it in &report.clients {
            page.sample(name, &[("clients", it.clients)], u8::from(it.inactive.is_none()));
        }
        let name = "ferroxy_sockets_connections_total";
        page.begin(Kind::Counter, name, "Connections that were translated at the socket, without NAT.");
        for it in &report.clients {
            page.sample(name, &[("clients", it.clients)], it.connections);
        }
        let name = "ferroxy_sockets_elements";
        page.begin(Kind::Gauge, name, "Elements in the kernel's maps of accelerated sockets.");
        for (map, elements) in [("frontends", report.frontends), ("endpoints", report.endpoints)] {
            page.sample(name, &[("map", map)], elements);
        }
        let name = "ferroxy_sockets_services_left_out";
        let help = "Services that only packet rules serve, because the maps of accelerated sockets have no room for them.";
        page.single(Kind::Gauge, name, help, report.left_out.len());
    }

    /// A line for each kind of clients; empty if sockets are not translated.
    pub fn text(&self) -> String {
        let Some(report) = self.read() else { return String::new() };
        let line = |it: &ferroxy_dataplane::ClientReport| match &it.inactive {
            None => format!("Sockets of {}: translated, {} connections so far\n", it.clients, it.connections),
            Some(reason) => format!("Sockets of {}: not translated: {reason}\n", it.clients),
        };
        let mut text: String = report.clients.iter().map(line).collect();
        for (service, why) in report.left_out.iter().take(MOST_LISTED) {
            text.push_str(&format!("Only by packet rules: {service}: {why}\n"));
        }
        text
    }

    pub fn value(&self) -> Value {
        let Some(report) = self.read() else { return Value::Null };
        let clients = report.clients.iter().map(|it| {
            json!({
                "clients": it.clients,
                "translated": it.inactive.is_none(),
                "reason": it.inactive,
                "connections": it.connections,
            })
        });
        let left_out = report.left_out.iter().take(MOST_LISTED);
        json!({
            "clients": clients.collect::<Vec<_>>(),
            "frontends": report.frontends,
            "endpoints": report.endpoints,
            "leftOutCount": report.left_out.len(),
            "leftOut": left_out.map(|(service, why)| json!({ "service": service, "reason": why })).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_dataplane::ClientReport;

    use super::*;

    #[derive(Debug)]
    struct Fixed;

    impl TranslatesSockets for Fixed {
        fn read(&mut self) -> SocketReport {
            let client = |clients, inactive: Option<&str>, connections| ClientReport {
                clients,
                inactive: inactive.map(str::to_owned),
                connections,
            };
            SocketReport {
                clients: vec![client("host", None, 7), client("pods", Some("no cgroup"), 0)],
                frontends: 3,
                endpoints: 9,
                left_out: vec![("default/web".into(), "no room".into())],
            }
        }
    }

    #[test]
    fn every_page_says_whether_sockets_are_really_translated() {
        let sockets = Sockets::new(Some(Box::new(Fixed)));
        let mut page = Exposition::default();
        sockets.write(&mut page);
        let page = page.finish();
        for line in [
            "ferroxy_sockets_translated{clients=\"host\"} 1",
            "ferroxy_sockets_translated{clients=\"pods\"} 0",
            "ferroxy_sockets_connections_total{clients=\"host\"} 7",
            "ferroxy_sockets_elements{map=\"endpoints\"} 9",
            "ferroxy_sockets_services_left_out 1",
        ] {
            assert!(page.lines().any(|it| it == line), "{line} is not in:\n{page}");
        }
        assert_eq!(
            sockets.text(),
            "Sockets of host: translated, 7 connections so far\nSockets of pods: not translated: no cgroup\n\
             Only by packet rules: default/web: no room\n"
        );
        assert_eq!(sockets.value()["clients"][1]["reason"], "no cgroup");
        assert_eq!((Sockets::default().text(), Sockets::default().value()), (String::new(), Value::Null));
    }
}
