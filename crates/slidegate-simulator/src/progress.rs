//! Progress bar of a simulation, and the check for an interrupt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use slidegate::{Clock, Micros, SystemClock};

/// Number of requests between two checks of the clock and the stop flag.
const CHECK_INTERVAL: u64 = 1 << 13;

const REDRAW_INTERVAL: Micros = Micros::from_millis(200);

/// Progress of one pass over the traffic. Ends the pass when the stop flag is set.
pub(crate) struct Progress {
    bar: ProgressBar,
    clock: SystemClock,
    started: Micros,
    drawn: Micros,
    requests: u64,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// Creates a bar on standard error, hidden if that is not a terminal. `length` is the last position, if it is known.
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

    /// Counts one request. Returns false if the pass must end.
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
                "{} requests, {} per second",
                HumanCount(self.requests),
                HumanCount(rate as u64)
            ));
        }
        !self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn elapsed_seconds(&self) -> f64 {
        seconds(self.clock.now().since(self.started))
    }
}

fn seconds(time: Micros) -> f64 {
    time.get().max(1) as f64 / 1e6
}

/// Clears the bar: the report repeats its numbers.
impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
