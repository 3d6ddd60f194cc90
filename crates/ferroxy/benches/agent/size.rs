//! How large the cluster of a benchmark is.

use std::fmt;
use std::str::FromStr;

use ferroxy_lab::api::cluster::Cluster;

/// The number of Services, and of endpoints of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    pub services: usize,
    pub endpoints: usize,
}

impl Size {
    pub const ONE: Size = Size { services: 1, endpoints: 1 };

    /// Limits, because Services and endpoints get consecutive addresses from ranges of this size. Moved endpoints have another range.
    const MOST_SERVICES: usize = 100_000;
    const MOST_ENDPOINTS: usize = 1_000_000;

    pub fn cluster(self) -> Cluster {
        Cluster::new(self.services, self.endpoints)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Size, String> {
        let numbers = text.split_once('x').and_then(|(services, endpoints)| {
            Some(Size { services: services.trim().parse().ok()?, endpoints: endpoints.trim().parse().ok()? })
        });
        match numbers {
            Some(size) if size.services == 0 || size.endpoints == 0 => {
                Err("there must be some of each".into())
            }
            Some(size) if size.services > Size::MOST_SERVICES => {
                Err(format!("at most {} Services", Size::MOST_SERVICES))
            }
            Some(size) if size.services.saturating_mul(size.endpoints) > Size::MOST_ENDPOINTS => {
                Err(format!("at most {} endpoints in all", Size::MOST_ENDPOINTS))
            }
            Some(size) => Ok(size),
            None => Err("a size is Services x endpoints of each, such as 1000x10".into()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.services, self.endpoints)
    }
}
