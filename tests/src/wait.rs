//! Waiting for something to happen, rather than for some time to pass.

use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

/// Far longer than anything takes: a test that waits so long hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// The same for one of many rounds.
const ROUND_LIMIT: Duration = Duration::from_millis(50);
/// Sooner than the limit of what is around it, so that the failure says what was waited for.
const CONDITION_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks the machine belongs to what is waited for.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Waits until `condition` holds; `what` names it.
///
/// # Panics
/// It does not come to hold.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !condition().await {
        assert!(begin.elapsed() < CONDITION_LIMIT, "waited in vain until {what}");
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

/// The same without a runtime, for so long. False: `condition` has not come to hold.
pub fn until_blocking(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !condition() {
        if begin.elapsed() > limit {
            return false;
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    true
}

/// How often a test repeats itself: `usual`, or as often as `TELEXEC_ROUNDS` says.
///
/// # Panics
/// That is no number.
pub fn rounds(usual: u32) -> u32 {
    std::env::var("TELEXEC_ROUNDS").map_or(usual, |text| text.parse().expect("TELEXEC_ROUNDS is a number"))
}

/// What `future` gives.
///
/// # Panics
/// It hangs.
#[track_caller]
pub fn within<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let here = Location::caller();
    async move {
        let limit = LIMIT.max(ROUND_LIMIT * rounds(0));
        match tokio::time::timeout(limit, future).await {
            Ok(output) => output,
            Err(_) => panic!("hangs: what is awaited at {here}"),
        }
    }
}
