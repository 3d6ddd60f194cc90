//! Rule: which Services this proxy handles.

use super::cluster_ips;
use crate::facts::{Service, ServiceKind};

/// Why a Service is not handled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotOurs {
    /// The label `service.kubernetes.io/service-proxy-name`, with any value, assigns it to another proxy.
    OtherProxy(String),
    ExternalName,
    Headless,
    NoClusterIp,
}

impl NotOurs {
    pub fn words(&self) -> String {
        match self {
            NotOurs::OtherProxy(name) => {
                format!("the label service.kubernetes.io/service-proxy-name assigns it to the proxy `{name}`")
            }
            NotOurs::ExternalName => "its type is ExternalName, which only creates a DNS name".to_owned(),
            NotOurs::Headless => {
                "it is headless (clusterIP: None), and DNS returns the addresses of its pods".to_owned()
            }
            NotOurs::NoClusterIp => "it has no usable cluster IP".to_owned(),
        }
    }
}

pub(crate) fn check(service: &Service) -> Result<(), NotOurs> {
    if let Some(name) = &service.proxy_name {
        Err(NotOurs::OtherProxy(name.to_string()))
    } else if service.kind == ServiceKind::ExternalName {
        Err(NotOurs::ExternalName)
    } else if service.headless {
        Err(NotOurs::Headless)
    } else if cluster_ips::chosen(service).is_empty() {
        Err(NotOurs::NoClusterIp)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event;
    use crate::resolve::tests::read;

    #[test]
    fn only_services_with_a_cluster_ip_and_no_other_proxy_are_ours() {
        let ours = event::Service { cluster_ip: "10.96.0.80".into(), ..Default::default() };
        assert_eq!(check(&read(ours.clone())), Ok(()));
        let other = event::Service { proxy_name: Some(String::new()), ..ours.clone() };
        assert_eq!(check(&read(other)), Err(NotOurs::OtherProxy(String::new())));
        let dns = event::Service { kind: "ExternalName".into(), ..ours.clone() };
        assert_eq!(check(&read(dns)), Err(NotOurs::ExternalName));
        let headless = event::Service { cluster_ip: "None".into(), ..ours.clone() };
        assert_eq!(check(&read(headless)), Err(NotOurs::Headless));
        let headless = event::Service { cluster_ips: vec!["None".into()], ..ours.clone() };
        assert_eq!(check(&read(headless)), Err(NotOurs::Headless));
        let pending = event::Service { cluster_ip: String::new(), ..ours.clone() };
        assert_eq!(check(&read(pending)), Err(NotOurs::NoClusterIp));
        let special = event::Service { cluster_ip: "127.0.0.1".into(), ..ours };
        assert_eq!(check(&read(special)), Err(NotOurs::NoClusterIp));
    }
}
