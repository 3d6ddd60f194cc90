//! A State as text: a line for each object, in the words of HNS and of its tools.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::Family;
use ferroxy_hcn::mapping_flag;

use crate::state::{Balancer, Endpoint, Frontend, State};

/// `10.96.0.80:80/tcp`; a node port is `*:30080/tcp`, in IPv6 `[*]:30080/tcp`.
pub fn frontend(at: &Frontend) -> String {
    let address = match (at.vip, at.family) {
        (Some(ip), _) => SocketAddr::new(ip, at.port).to_string(),
        (None, Family::V4) => format!("*:{}", at.port),
        (None, Family::V6) => format!("[*]:{}", at.port),
    };
    format!("{address}/{}", at.protocol)
}

pub fn endpoint(ip: IpAddr, endpoint: &Endpoint) -> String {
    let kind = if endpoint.is_remote { "remote" } else { "local" };
    let provider = endpoint.provider.map(|provider| format!(" provider {provider}")).unwrap_or_default();
    format!("endpoint {ip} {kind} mac {}{provider}", endpoint.mac)
}

pub fn balancer(at: &Frontend, balancer: &Balancer) -> String {
    let endpoints: Vec<String> = balancer.endpoints.iter().map(ToString::to_string).collect();
    let mut text =
        format!("loadbalancer {} to port {} of {}", frontend(at), balancer.target_port, endpoints.join(", "));
    for word in words(balancer) {
        text.push_str(&format!(" {word}"));
    }
    text
}

/// The properties that not every load balancer has.
fn words(balancer: &Balancer) -> Vec<String> {
    let flag = |bit: u32, name: &str| (balancer.mapping_flags & bit != 0).then(|| name.to_owned());
    let words = [
        balancer.dsr.then(|| "dsr".to_owned()),
        balancer.is_sticky.then(|| "sticky".to_owned()),
        balancer.source_vip.map(|ip| format!("source-vip {ip}")),
        flag(mapping_flag::EXTERNAL_VIP, "external-vip"),
        flag(mapping_flag::LOCAL_ROUTED_VIP, "local-routed-vip"),
        flag(mapping_flag::USE_MUX, "use-mux"),
        flag(mapping_flag::PRESERVE_DESTINATION, "preserve-dip"),
    ];
    words.into_iter().flatten().collect()
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (ip, it) in &self.endpoints {
            writeln!(f, "{}", endpoint(*ip, it))?;
        }
        for (at, it) in &self.balancers {
            writeln!(f, "{}", balancer(at, it))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_core::Protocol;

    use super::*;
    use crate::state::{Mac, Role};

    #[test]
    fn every_object_is_a_line() {
        let ip = IpAddr::from([10, 244, 2, 5]);
        let mut state = State::default();
        let remote =
            Endpoint { mac: Mac::invented(ip), provider: Some([172, 18, 0, 3].into()), is_remote: true };
        state.endpoints.insert(ip, remote);
        let balancer = Balancer {
            role: Role::NodePort,
            endpoints: [ip].into(),
            target_port: 8080,
            source_vip: Some([10, 244, 1, 9].into()),
            is_sticky: true,
            dsr: true,
            mapping_flags: 18,
        };
        let at = Frontend { family: Family::V6, vip: None, protocol: Protocol::Udp, port: 30053 };
        state.balancers.insert(at, balancer);
        let expected = "endpoint 10.244.2.5 remote mac 02-11-0a-f4-02-05 provider 172.18.0.3\n\
            loadbalancer [*]:30053/udp to port 8080 of 10.244.2.5 dsr sticky source-vip 10.244.1.9 external-vip \
            local-routed-vip\n";
        assert_eq!(state.to_string(), expected);
    }
}
