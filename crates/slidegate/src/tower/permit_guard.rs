//! Permits that are held while a request goes on: extended as long as it does, given back when it ends.
//!
//! One task looks after all that a layer holds, so a request costs no task and no timer.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::background::{Ending, Runtime, end};
use crate::{Limiter, Micros, Reservation, Settled, Store};

/// What a layer holds.
pub(super) struct Holds<S: Store> {
    limiter: Arc<Limiter<S>>,
    book: Mutex<Book>,
    /// Something has to be extended before the keeper would look again.
    sooner: Notify,
}

#[derive(Default)]
struct Book {
    next: u64,
    held: HashMap<u64, Held>,
    /// When the keeper looks again; none if there is no keeper.
    looks: Option<Micros>,
}

impl Book {
    /// The number of what is held from now on, and whether it needs a keeper.
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
    /// How often it is extended, and when next.
    every: Micros,
    due: Micros,
}

/// One reservation, given back when this is dropped.
pub(super) struct Hold {
    number: u64,
    holds: Arc<dyn Release>,
    runtime: Runtime,
}

/// So that a body need not know how its permits are counted.
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

    /// Holds a reservation whose permits would be lost after `window`: it is extended at every third of it.
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

    /// Extends what is due, or soon will be: the keeper then looks a few times in a window, however much is held. What is
    /// not held any more is let go; what could not be extended is tried again.
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

/// Whoever looks after what is held, until there is nothing.
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

    /// How long until something has to be extended.
    fn next(&self) -> Option<Micros> {
        let mut book = self.holds.book.lock();
        book.looks = book.held.values().map(|held| held.due).min();
        Some(book.looks?.since(self.holds.limiter.clock().now()))
    }
}

/// Its runtime may end before it does, or be none.
impl<S: Store + 'static> Drop for Keeper<S> {
    fn drop(&mut self) {
        if !self.ended {
            self.holds.book.lock().looks = None;
        }
    }
}
