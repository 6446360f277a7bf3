//! Permits that a request holds while it is in progress: extended periodically, and released when it ends.
//!
//! One task serves all permits of a layer, so a request needs no task and no timer.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::background::{FinalCorrection, Runtime, settle_with_retries};
use crate::{Limiter, Micros, Reservation, Settled, Store};

/// All permits that a layer holds.
pub(super) struct HeldPermits<S: Store> {
    limiter: Arc<Limiter<S>>,
    schedule: Mutex<Schedule>,
    /// Wakes the extension task if an extension is due before the next planned run of the task.
    wake: Notify,
}

#[derive(Default)]
struct Schedule {
    next: u64,
    held: HashMap<u64, HeldReservation>,
    /// Next planned run of the extension task; `None` if the task is not running.
    next_run: Option<Micros>,
}

impl Schedule {
    /// Adds a held reservation. Returns its number, and true if the extension task must be started.
    fn add(&mut self, held: HeldReservation, wake: &Notify) -> (u64, bool) {
        let (number, due) = (self.next, held.due);
        self.next += 1;
        self.held.insert(number, held);
        let needs_task = self.next_run.is_none();
        match self.next_run {
            Some(next_run) if next_run <= due => {}
            Some(_) => wake.notify_one(),
            None => self.next_run = Some(due),
        }
        (number, needs_task)
    }
}

struct HeldReservation {
    reservation: Reservation,
    /// Interval between extensions; `due` is the instant of the next extension.
    every: Micros,
    due: Micros,
}

/// One held reservation, released on drop.
pub(super) struct PermitGuard {
    number: u64,
    holds: Arc<dyn Release>,
    runtime: Runtime,
}

/// Type-erased `HeldPermits`, so that a body does not depend on the store type.
trait Release: Send + Sync {
    fn release(&self, number: u64, runtime: &Runtime);
}

impl Drop for PermitGuard {
    fn drop(&mut self) {
        self.holds.release(self.number, &self.runtime);
    }
}

impl<S: Store + 'static> HeldPermits<S> {
    pub(super) fn new(limiter: Arc<Limiter<S>>) -> Self {
        HeldPermits { limiter, schedule: Mutex::default(), wake: Notify::new() }
    }

    /// Holds a reservation whose permits would expire after `window`. The task extends it each time a third of `window`
    /// has passed.
    pub(super) fn hold(
        self: &Arc<Self>,
        reservation: Reservation,
        window: Micros,
        runtime: Runtime,
    ) -> PermitGuard {
        let every = Micros::new(window.get() / 3);
        let due = self.limiter.clock().now().plus(every);
        let (number, needs_task) =
            self.schedule.lock().add(HeldReservation { reservation, every, due }, &self.wake);
        if needs_task {
            let task = ExtensionTask { holds: Arc::clone(self), ended: false };
            runtime.spawn(task.run());
        }
        PermitGuard { number, holds: Arc::clone(self) as _, runtime }
    }

    /// Extends reservations that are due now or soon, so that the task runs only a few times per window, for any number
    /// of reservations. Reservations that are no longer held are removed; failed extensions are retried.
    async fn extend(&self) {
        let now = self.limiter.clock().now();
        let due: Vec<(u64, Reservation)> = {
            let mut schedule = self.schedule.lock();
            let due = schedule
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
        let mut schedule = self.schedule.lock();
        lost.iter().flatten().for_each(|number| drop(schedule.held.remove(number)));
    }
}

impl<S: Store + 'static> Release for HeldPermits<S> {
    fn release(&self, number: u64, runtime: &Runtime) {
        let held = self.schedule.lock().held.remove(&number);
        if let Some(HeldReservation { reservation, .. }) = held {
            runtime.run_in_background(settle_with_retries(
                Arc::clone(&self.limiter),
                reservation,
                FinalCorrection::Release,
            ));
        }
    }
}

/// Task that extends held reservations until there are none.
struct ExtensionTask<S: Store + 'static> {
    holds: Arc<HeldPermits<S>>,
    ended: bool,
}

impl<S: Store + 'static> ExtensionTask<S> {
    async fn run(mut self) {
        while let Some(wait) = self.next() {
            tokio::select! {
                () = self.holds.limiter.clock().sleep(wait) => self.holds.extend().await,
                () = self.holds.wake.notified() => {}
            }
        }
        self.ended = true;
    }

    /// Returns the time until the next extension; `None` if nothing is held.
    fn next(&self) -> Option<Micros> {
        let mut schedule = self.holds.schedule.lock();
        schedule.next_run = schedule.held.values().map(|held| held.due).min();
        Some(schedule.next_run?.since(self.holds.limiter.clock().now()))
    }
}

/// Resets `next_run` if the task is dropped before it ends, because its runtime has ended or there is no runtime.
impl<S: Store + 'static> Drop for ExtensionTask<S> {
    fn drop(&mut self) {
        if !self.ended {
            self.holds.schedule.lock().next_run = None;
        }
    }
}
