//! Permits that a request holds while it is in progress: extended periodically, and released when it ends.
//!
//! One task serves all permits of a layer, so a request needs no task and no timer.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::background::{Ending, Runtime, end};
use crate::{Limiter, Micros, Reservation, Settled, Store};

/// All permits that a layer holds.
pub(super) struct Holds<S: Store> {
    limiter: Arc<Limiter<S>>,
    book: Mutex<Book>,
    /// Wakes the extension task if something is due before its next planned run.
    sooner: Notify,
}

#[derive(Default)]
struct Book {
    next: u64,
    held: HashMap<u64, Held>,
    /// Next planned run of the extension task; `None` if the task is not running.
    looks: Option<Micros>,
}

impl Book {
    /// Adds a held reservation. Returns its number, and true if the extension task must be started.
    fn add(&mut self, held: Held, sooner: &Notify) -> (u64, bool) {
        let (number, due) = (self.next, held.due);
        self.next += 1;
        self.held.insert(number, held);
        let unkept = self.looks.is_none();
        match self.looks {
            Some(looks) if looks <= due => {}
            Some(_) => sooner.notify_one(),
            None => self.looks = Some(due),
        }
        (number, unkept)
    }
}

struct Held {
    reservation: Reservation,
    /// Interval between extensions, and the instant of the next.
    every: Micros,
    due: Micros,
}

/// One held reservation, released on drop.
pub(super) struct Hold {
    number: u64,
    holds: Arc<dyn Release>,
    runtime: Runtime,
}

/// Type-erased `Holds`, so that a body does not depend on the store type.
trait Release: Send + Sync {
    fn release(&self, number: u64, runtime: &Runtime);
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.holds.release(self.number, &self.runtime);
    }
}

impl<S: Store + 'static> Holds<S> {
    pub(super) fn new(limiter: Arc<Limiter<S>>) -> Self {
        Holds { limiter, book: Mutex::default(), sooner: Notify::new() }
    }

    /// Holds a reservation whose permits would expire after `window`: it is extended after every third of it.
    pub(super) fn hold(self: &Arc<Self>, reservation: Reservation, window: Micros, runtime: Runtime) -> Hold {
        let every = Micros::new(window.get() / 3);
        let due = self.limiter.clock().now().plus(every);
        let (number, unkept) = self.book.lock().add(Held { reservation, every, due }, &self.sooner);
        if unkept {
            let keeper = Keeper { holds: Arc::clone(self), ended: false };
            runtime.spawn(keeper.keep());
        }
        Hold { number, holds: Arc::clone(self) as _, runtime }
    }

    /// Extends reservations that are due now or soon, so that the task runs only a few times per window, however many there
    /// are. Reservations that are no longer held are removed; failed extensions are retried.
    async fn extend(&self) {
        let now = self.limiter.clock().now();
        let due: Vec<(u64, Reservation)> = {
            let mut book = self.book.lock();
            let due = book
                .held
                .iter_mut()
                .filter(|(_, held)| held.due <= now.plus(Micros::new(held.every.get() / 8)));
            due.map(|(number, held)| {
                held.due = now.plus(held.every);
                (*number, held.reservation.clone())
            })
            .collect()
        };
        let extending = due.iter().map(async |(number, reservation)| {
            let lost = matches!(self.limiter.extend(reservation).await, Ok(Settled::Already | Settled::Gone));
            lost.then_some(*number)
        });
        let lost = join_all(extending).await;
        let mut book = self.book.lock();
        lost.iter().flatten().for_each(|number| drop(book.held.remove(number)));
    }
}

impl<S: Store + 'static> Release for Holds<S> {
    fn release(&self, number: u64, runtime: &Runtime) {
        let held = self.book.lock().held.remove(&number);
        if let Some(Held { reservation, .. }) = held {
            runtime.carry(end(Arc::clone(&self.limiter), reservation, Ending::Release));
        }
    }
}

/// Task that extends held reservations until there are none.
struct Keeper<S: Store + 'static> {
    holds: Arc<Holds<S>>,
    ended: bool,
}

impl<S: Store + 'static> Keeper<S> {
    async fn keep(mut self) {
        while let Some(wait) = self.next() {
            tokio::select! {
                () = self.holds.limiter.clock().sleep(wait) => self.holds.extend().await,
                () = self.holds.sooner.notified() => {}
            }
        }
        self.ended = true;
    }

    /// Returns the time until the next extension; `None` if nothing is held.
    fn next(&self) -> Option<Micros> {
        let mut book = self.holds.book.lock();
        book.looks = book.held.values().map(|held| held.due).min();
        Some(book.looks?.since(self.holds.limiter.clock().now()))
    }
}

/// Resets the state if the task is dropped before it ends, because its runtime ended or there is none.
impl<S: Store + 'static> Drop for Keeper<S> {
    fn drop(&mut self) {
        if !self.ended {
            self.holds.book.lock().looks = None;
        }
    }
}
