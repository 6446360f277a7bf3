//! A lock for what is held for tens of nanoseconds.
//!
//! Under contention the cost of a short critical section is the cache line that travels between cores, so
//! who finds the lock taken steps back for exponentially longer and lets the holder finish a burst: two
//! threads on one key then decide several times as fast as with a lock that hands over each time. Letting go
//! is a plain store, a third of the price of a lock that may have to wake someone. Whoever has waited long
//! yields, then sleeps, so a holder that lost its core is not waited for at full speed.

use std::thread;
use std::time::Duration;

pub(super) type Guard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;

#[derive(Debug)]
pub(super) struct Lock<T>(spin::mutex::SpinMutex<T>);

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Lock(spin::mutex::SpinMutex::new(value))
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        match self.0.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        for round in 0u32.. {
            match round {
                0..4 => (0..16 << round).for_each(|_| std::hint::spin_loop()),
                4..64 => thread::yield_now(),
                _ => thread::sleep(Duration::from_micros(50)),
            }
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
        }
        self.0.lock()
    }
}
