//! Rule: session affinity. A client keeps its endpoint until it has made no new connection for the timeout.

use crate::facts::Service;

/// Three hours, the API's default.
const DEFAULT_SECONDS: u32 = 10_800;

pub(crate) fn seconds(service: &Service) -> Option<u32> {
    service.client_ip_affinity.then(|| service.affinity_timeout.unwrap_or(DEFAULT_SECONDS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event;
    use crate::resolve::tests::read;

    fn check(affinity: &str, timeout: Option<i64>, expected: Option<u32>) {
        let service = read(event::Service {
            session_affinity: affinity.into(),
            affinity_timeout_seconds: timeout,
            ..Default::default()
        });
        assert_eq!(seconds(&service), expected);
    }

    #[test]
    fn the_timeout_is_exact_and_has_a_default() {
        check("None", Some(10), None);
        check("", None, None);
        check("ClientIP", None, Some(10_800));
        check("ClientIP", Some(1), Some(1));
        check("ClientIP", Some(86_400), Some(86_400));
        for outside in [0, -1, 86_401, i64::MAX] {
            check("ClientIP", Some(outside), Some(10_800));
        }
    }
}
