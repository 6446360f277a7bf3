//! `slidegate bench`: measures throughput and latency of a server or a store.
//!
//! # Layout
//!
//! `options` parses the arguments. `target` is a server (`server`, over HTTP) or a store in this process. `keys`
//! chooses the key of each request, `schedule` its time. `workers` runs the callers, `counts` counts their results,
//! `summary` prints them.

mod counts;
mod keys;
mod options;
mod progress;
mod schedule;
mod server;
mod summary;
mod target;
mod workers;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use slidegate::{Clock, SystemClock};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::counts::ShardedCounts;
pub(crate) use self::options::BenchArgs;
use self::options::Plan;
use self::schedule::Schedule;
use self::summary::Summary;
use self::target::{Caller, Target};
use self::workers::{SharedState, Signal};
use crate::common::console::finish;
use crate::common::signals;

/// Time limit for responses after Ctrl-C.
const GRACE: Duration = Duration::from_secs(1);

/// Runs the benchmark and prints its summary. Exit code 0 if there were decisions, 1 if there was none, 2 if nothing
/// was sent.
pub(crate) fn run(args: BenchArgs) -> ExitCode {
    finish(measure(args))
}

/// Returns the text to print, and whether there was any decision.
fn measure(args: BenchArgs) -> Result<(String, bool), String> {
    let json = args.json;
    let plan = args.check()?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| format!("cannot start: {error}"))?;
    let summary = runtime.block_on(bench(plan))?;
    Ok((
        if json {
            serde_json::to_string(&summary).map_err(|error| error.to_string())?
        } else {
            summary.to_string()
        },
        summary.answered(),
    ))
}

async fn bench(plan: Plan) -> Result<Summary, String> {
    let target = Arc::new(Target::open(&plan.target, &plan.template).await?);
    // A first request that charges nothing reveals problems that all requests would have.
    let mut first = target.caller(&plan.template).await?;
    first.peek(plan.keys.of(0)).await.map_err(|error| format!("{} answers {error}", target.location()))?;
    let callers = callers(&target, &plan, first).await?;
    let clock = SystemClock::new();
    let schedule = Schedule::new(&plan, clock.now().get());
    let shared = Arc::new(SharedState::new(clock, plan.keys, schedule, ShardedCounts::new(plan.callers)?));
    work(&shared, callers).await;
    let now = shared.now();
    target.close().await;
    Ok(Summary::new(target.location(), &shared.schedule, shared.counts.total()?, now))
}

/// Opens all connections before the clock starts, so that no request waits for one.
async fn callers(target: &Arc<Target>, plan: &Plan, first: Caller) -> Result<Vec<Caller>, String> {
    let mut opening = JoinSet::new();
    for _ in 1..plan.callers {
        let (target, template) = (Arc::clone(target), plan.template.clone());
        opening.spawn(async move { target.caller(&template).await });
    }
    let mut callers = vec![first];
    while let Some(opened) = opening.join_next().await {
        let caller = opened.map_err(|error| error.to_string())?.map_err(|error| {
            format!("only {} of {} callers could connect: {error}", callers.len(), plan.callers)
        })?;
        callers.push(caller);
    }
    Ok(callers)
}

/// Runs the callers until the schedule ends, or a signal ends the run.
async fn work(shared: &Arc<SharedState>, callers: Vec<Caller>) {
    let (signal, receiver) = watch::channel(Signal::Continue);
    let mut working: JoinSet<()> = callers
        .into_iter()
        .enumerate()
        .map(|(number, caller)| Arc::clone(shared).work(caller, number, receiver.clone()))
        .collect();
    let mut done = async || while working.join_next().await.is_some() {};
    tokio::select! {
        () = done() => return,
        () = progress::watch(Arc::clone(shared)) => {}
        () = signals::signalled() => {}
    }
    shared.schedule.stop(shared.now());
    // The callers hold the receivers.
    let _ = signal.send(Signal::Finish);
    if tokio::time::timeout(GRACE, done()).await.is_err() {
        let _ = signal.send(Signal::GiveUp);
        done().await;
    }
}
