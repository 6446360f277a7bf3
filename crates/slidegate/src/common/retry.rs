//! Retries with a doubling pause, for calls that may be repeated.

use std::future::Future;
use std::time::Duration;

/// Maximum number of calls.
const MAX_TRIES: u32 = 6;

/// Pause before the first retry. It doubles with each retry.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Repeats `call` until it succeeds, at most [`MAX_TRIES`] times. `sleep` waits between two calls.
pub(crate) async fn until_ok<T, E, C, S>(mut call: impl FnMut() -> C, sleep: impl Fn(Duration) -> S)
where
    C: Future<Output = Result<T, E>>,
    S: Future<Output = ()>,
{
    let mut pause = FIRST_PAUSE;
    for _ in 0..MAX_TRIES {
        if call().await.is_ok() {
            return;
        }
        sleep(pause).await;
        pause *= 2;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures_util::FutureExt;

    use super::*;

    /// Returns the number of calls and the pauses, in milliseconds, if the first `failures` calls fail.
    fn pauses(failures: u32) -> (u32, Vec<u64>) {
        let (calls, pauses) = (RefCell::new(0), RefCell::new(Vec::new()));
        let call = || {
            *calls.borrow_mut() += 1;
            std::future::ready(if *calls.borrow() > failures { Ok(()) } else { Err(()) })
        };
        let sleep = |pause: Duration| {
            pauses.borrow_mut().push(pause.as_millis() as u64);
            std::future::ready(())
        };
        until_ok(call, sleep).now_or_never().unwrap();
        (calls.into_inner(), pauses.into_inner())
    }

    #[test]
    fn pauses_double_and_calls_are_bounded() {
        assert_eq!(pauses(0), (1, vec![]));
        assert_eq!(pauses(2), (3, vec![20, 40]));
        assert_eq!(pauses(100), (6, vec![20, 40, 80, 160, 320, 640]));
    }
}
