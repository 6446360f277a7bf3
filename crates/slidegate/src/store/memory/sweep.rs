//! Background thread that drops idle keys once a second, for as long as the store lives.

use std::sync::Weak;
use std::thread;
use std::time::Duration;

use super::Inner;
use crate::Clock;

pub(super) const PERIOD: Duration = Duration::from_secs(1);

pub(super) fn in_background<C: Clock + 'static>(store: Weak<Inner<C>>) {
    let sweeper = thread::Builder::new().name("slidegate-sweep".into());
    let spawned = sweeper.spawn(move || {
        loop {
            thread::park_timeout(PERIOD);
            match store.upgrade() {
                Some(store) => store.sweep(),
                None => return,
            }
        }
    });
    // If the thread could not be started, the store is still correct and bounded: a full shard drops idle keys itself.
    drop(spawned);
}
