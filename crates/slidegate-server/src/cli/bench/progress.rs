//! Progress bar of a run.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressStyle};

use super::workers::Load;

const STEPS: u64 = 1_000;
const REDRAW: Duration = Duration::from_millis(200);

/// Shows the progress on standard error, if that is a terminal, until it is dropped.
pub(super) async fn watch(load: Arc<Load>) {
    let bar = ProgressBar::new(STEPS);
    if bar.is_hidden() {
        return std::future::pending().await;
    }
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}") {
        bar.set_style(style);
    }
    let bar = Cleared(bar);
    let (mut then, mut before) = (load.now(), 0);
    loop {
        tokio::time::sleep(REDRAW).await;
        let (now, asked) = (load.now(), load.tallies.asked());
        let rate = (asked - before) as f64 * 1e6 / (now - then).max(1) as f64;
        bar.0.set_position((load.schedule.done(now, asked) * STEPS as f64) as u64);
        bar.0.set_message(match now < load.schedule.counted() {
            true => "warming up".to_owned(),
            false => format!("{} asked, {} a second", HumanCount(asked), HumanCount(rate as u64)),
        });
        (then, before) = (now, asked);
    }
}

/// Removes the bar on drop, because the summary repeats its numbers.
struct Cleared(ProgressBar);

impl Drop for Cleared {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
