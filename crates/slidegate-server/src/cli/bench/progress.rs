//! Progress bar of a run.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressStyle};

use super::workers::SharedState;

const STEPS: u64 = 1_000;
const REDRAW: Duration = Duration::from_millis(200);

/// Shows the progress on standard error, if that is a terminal, until it is dropped.
pub(super) async fn watch(shared: Arc<SharedState>) {
    let bar = ProgressBar::new(STEPS);
    if bar.is_hidden() {
        return std::future::pending().await;
    }
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}") {
        bar.set_style(style);
    }
    let bar = ClearOnDrop(bar);
    let (mut then, mut before) = (shared.now(), 0);
    loop {
        tokio::time::sleep(REDRAW).await;
        let (now, sent) = (shared.now(), shared.counts.requests());
        let rate = (sent - before) as f64 * 1e6 / (now - then).max(1) as f64;
        bar.0.set_position((shared.schedule.progress(now, sent) * STEPS as f64) as u64);
        bar.0.set_message(match now < shared.schedule.measured_from() {
            true => "warming up".to_owned(),
            false => format!("{} sent, {} per second", HumanCount(sent), HumanCount(rate as u64)),
        });
        (then, before) = (now, sent);
    }
}

/// Removes the bar on drop, because the summary repeats its numbers.
struct ClearOnDrop(ProgressBar);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
