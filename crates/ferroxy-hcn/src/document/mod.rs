//! The documents of the API, as far as they are read or written here. Unknown fields are ignored; a field that is absent, or
//! null, has its zero value, which is never written.

mod balancer;
mod endpoint;
mod lenient;
mod listed;
mod network;
mod query;

pub use balancer::{LoadBalancer, PortMapping, load_balancer_flag, mapping_flag};
pub use endpoint::{Endpoint, IpConfiguration, endpoint_flag};
pub use listed::Listed;
pub use network::{Network, RemoteSubnetRoute};
pub use query::Query;

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SchemaVersion {
    pub major: u32,
    pub minor: u32,
}

/// The version that every HNS with this API accepts.
impl Default for SchemaVersion {
    fn default() -> SchemaVersion {
        SchemaVersion { major: 2, minor: 0 }
    }
}

/// A policy of a network or an endpoint. Most kinds are not read here.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct PolicyDocument {
    #[serde(rename = "Type", default, deserialize_with = "lenient::text")]
    pub kind: String,
    #[serde(default)]
    pub settings: Value,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
