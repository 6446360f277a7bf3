//! Asynchronous waits with a time limit.

use std::time::Duration;

use tokio::time::{sleep, timeout};

/// Longest wait. The machine may be busy with other work.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until `holds` returns true. Panics with `what` after a minute.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let holding = async {
        while !holds().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(LIMIT, holding).await.is_ok(), "not in {LIMIT:?}: {what}");
}

/// Returns the output of `future`. Panics with `what` after a minute.
pub async fn within_limit<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("not in {LIMIT:?}: {what}"))
}
