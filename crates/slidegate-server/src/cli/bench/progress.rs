//! Progress bar of a run.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressFinish, ProgressStyle};

use super::workers::SharedState;

const STEPS: u64 = 1_000;
const REDRAW: Duration = Duration::from_millis(200);

/// Shows the progress on standard error, if that is a terminal, until it is dropped.
pub(super) async fn watch(shared: Arc<SharedState>) {
    let bar = ProgressBar::new(STEPS).with_finish(ProgressFinish::AndClear);
    if bar.is_hidden() {
        return std::future::pending().await;
    }
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}") {
        bar.set_style(style);
    }
    let (mut then, mut before) = (shared.now(), 0);
    loop {
        tokio::time::sleep(REDRAW).await;
        let (now, sent) = (shared.now(), shared.counts.requests());
        let rate = (sent - before) as f64 * 1e6 / (now - then).max(1) as f64;
        bar.set_position((shared.schedule.progress(now, sent) * STEPS as f64) as u64);
        bar.set_message(match now < shared.schedule.measured_from {
            true => "warming up".to_owned(),
            false => format!("{} sent, {} per second", HumanCount(sent), HumanCount(rate as u64)),
        });
        (then, before) = (now, sent);
    }
}
