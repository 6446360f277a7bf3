//! A bar for whoever watches, and an ear for whoever has seen enough.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use slidegate::{Clock, Micros, SystemClock};

/// Requests between two looks.
const CHECK_INTERVAL: u64 = 1 << 13;

const REDRAW_INTERVAL: Micros = Micros::from_millis(200);

/// How far a run is; ends it when somebody interrupts.
pub(crate) struct Progress {
    bar: ProgressBar,
    clock: SystemClock,
    started: Micros,
    drawn: Micros,
    requests: u64,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// Shown on standard error if that is a terminal. `length` is what positions go up to, if it is known.
    pub(crate) fn new(length: Option<u64>, stop: &Arc<AtomicBool>) -> Self {
        let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let template = if length.is_some() { "{bar:40} {percent:>3} %  {msg}" } else { "{spinner} {msg}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let clock = SystemClock::new();
        let started = clock.now();
        Progress { bar, clock, started, drawn: started, requests: 0, stop: Arc::clone(stop) }
    }

    /// One request more; false if it is to be the last.
    #[inline]
    pub(crate) fn advance(&mut self, position: u64) -> bool {
        self.requests += 1;
        !self.requests.is_multiple_of(CHECK_INTERVAL) || self.update(position)
    }

    #[cold]
    fn update(&mut self, position: u64) -> bool {
        let now = self.clock.now();
        if !self.bar.is_hidden() && now.since(self.drawn) > REDRAW_INTERVAL {
            self.drawn = now;
            self.bar.set_position(position);
            let rate = self.requests as f64 / seconds(now.since(self.started));
            self.bar.set_message(format!(
                "{} requests, {} a second",
                HumanCount(self.requests),
                HumanCount(rate as u64)
            ));
        }
        !self.stop.load(Ordering::Relaxed)
    }

    /// How long it took so far, in seconds.
    pub(crate) fn elapsed_seconds(&self) -> f64 {
        seconds(self.clock.now().since(self.started))
    }
}

fn seconds(time: Micros) -> f64 {
    time.get().max(1) as f64 / 1e6
}

/// The report says it all again, so the bar goes.
impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
