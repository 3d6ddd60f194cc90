//! `/debug/pprof/profile`: where this process spends its CPU time, for pprof. Built with the feature `profiling` only, which the
//! container image does not have.

use std::time::Duration;

use ferroxy_platform::profile::{Profile, mappings};
use hyper::StatusCode;

use super::http::{self, Answer, Pending, TEXT};
use super::pprof;
use super::profile;

pub const INDEX: &str = "\
profile   where CPU time is spent, for ?seconds=N (default 30), for pprof; to read it, pprof needs this program
          (`go tool pprof ferroxy profile`): the profile has addresses, and the program has the names
";

/// In seconds.
const LONGEST: u64 = 300;

pub fn answer(query: Option<&str>) -> Pending {
    match seconds(query) {
        Some(seconds) => Box::pin(record(Duration::from_secs(seconds))),
        None => {
            let words = format!("seconds must be a number from 1 to {LONGEST}\n");
            http::at_once(http::answer(StatusCode::BAD_REQUEST, TEXT, words))
        }
    }
}

/// `None` if the query has a number that is out of range.
fn seconds(query: Option<&str>) -> Option<u64> {
    let pairs = query.unwrap_or_default().split('&');
    match pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == "seconds") {
        None => Some(30),
        Some((_, value)) => value.parse().ok().filter(|seconds| (1..=LONGEST).contains(seconds)),
    }
}

async fn record(time: Duration) -> Answer {
    match profile::record(time).await {
        Ok(recorded) => http::elsewhere(move || page(&recorded)).await,
        Err(error) => http::answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("no profile: {error}\n")),
    }
}

fn page(recorded: &Profile) -> Answer {
    let bytes = pprof::encode(recorded, &mappings());
    http::answer(StatusCode::OK, "application/octet-stream", bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_takes_thirty_seconds_or_what_is_asked() {
        assert_eq!(seconds(None), Some(30));
        assert_eq!(seconds(Some("debug=1")), Some(30));
        assert_eq!(seconds(Some("debug=1&seconds=5")), Some(5));
        for wrong in ["seconds=0", "seconds=301", "seconds=x", "seconds=-1", "seconds="] {
            assert_eq!(seconds(Some(wrong)), None, "{wrong}");
        }
    }
}
