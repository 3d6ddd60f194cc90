//! Records a CPU profile of this process. The platform takes the samples; `pprof.rs` encodes them.

use std::io;
use std::time::Duration;

use ferroxy_platform::profile::{Profile, Recording};
use tokio::time::sleep;

/// Takes samples for this long, one profile at a time. Recording also stops if the client disconnects, which drops this future.
pub async fn record(time: Duration) -> io::Result<Profile> {
    let recording = Recording::start()?;
    sleep(time).await;
    recording.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_profile_at_a_time_and_the_next_can_begin_when_a_client_leaves() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let long = tokio::spawn(record(Duration::from_secs(3600)));
            tokio::task::yield_now().await;
            assert!(record(Duration::ZERO).await.is_err(), "one at a time");
            long.abort();
            assert!(long.await.unwrap_err().is_cancelled());
            record(Duration::ZERO).await.unwrap();
        });
    }
}
