//! Spin lock for critical sections of tens of nanoseconds.
//!
//! Under contention, most of the cost of a short critical section is the move of its cache line between cores. So a
//! thread that finds the lock taken backs off exponentially: meanwhile the holder's core can take the lock several
//! times in a row, and the cache line stays there. Unlocking is a plain store, because no waiting thread has to be
//! woken by the kernel. A thread that has waited long yields its core, and later sleeps for a moment, so that it does
//! not spin at full speed while the scheduler has suspended the holder. The rows for one key and two threads in
//! `benchmarks/src/decision.rs` measure this.

use std::thread;
use std::time::Duration;

pub(crate) type LockGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;

#[derive(Debug)]
pub(crate) struct Lock<T>(spin::mutex::SpinMutex<T>);

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Lock(spin::mutex::SpinMutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> LockGuard<'_, T> {
        #[cfg(test)]
        holds::begin();
        match self.0.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> LockGuard<'_, T> {
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

/// Buckets that this thread visits under each hold of a lock.
#[cfg(test)]
pub(crate) mod holds {
    use std::cell::RefCell;

    thread_local! {
        static VISITS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn begin() {
        VISITS.with_borrow_mut(|visits| visits.push(0));
    }

    pub(crate) fn visit() {
        VISITS.with_borrow_mut(|visits| *visits.last_mut().expect("a bucket is visited under a lock") += 1);
    }

    /// Returns the number of visits of each hold since the last call.
    pub(crate) fn take() -> Vec<usize> {
        VISITS.take()
    }
}
