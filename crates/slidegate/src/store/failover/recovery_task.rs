//! What goes on beside decisions, one task a server: heartbeats, probes, and writing back.
//!
//! While a server is asked, it is told now and then who is there. When it is given up, it is probed; when it
//! answers, what it lacks is written back, in small steps. Then it is asked together with this node's share
//! until the others have written back too, or have had the time to: until then the shares bound what all of
//! them admit, and from then on the server knows of everything.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Inner;
use super::journal::{Journal, Owed};
use super::membership::Saying;
use super::server_state::{Phase, ServerState};
use crate::store::redis::{RestoreLine, ServerIdentity, Writer};
use crate::{Algorithm, Error, Fault, Key, Micros};

/// The wait between two looks at whether the others have written back.
const LOOK: Duration = Duration::from_millis(20);

/// Keys that are written back in one step.
const STEP: usize = 32;

/// Admissions of one key that are written back in one step.
const STEP_ENTRIES: usize = 500;

/// How often what was admitted meanwhile is written before a server is asked again; the rest follows later.
const ROUNDS: usize = 10;

pub(super) async fn keep(inner: Weak<Inner>, server: Arc<ServerState>) {
    loop {
        let wait = {
            let Some(inner) = inner.upgrade() else { return };
            inner.find_once().await;
            if inner.is_retired(&server) {
                return;
            }
            match server.phase() {
                Phase::Direct => beat(&inner, &server).await,
                Phase::Away => probe(&inner, &server).await,
                Phase::Joining => join(&inner, &server).await,
            }
        };
        let _ = tokio::time::timeout(wait, server.changed.notified()).await;
    }
}

/// Writes what was admitted without the server while it was thought to be there, and says that this process is.
async fn beat(inner: &Arc<Inner>, server: &ServerState) -> Duration {
    let heartbeat = inner.options.heartbeat;
    match beat_once(inner, server).await {
        Ok(()) => {
            let now = server.earliest(inner);
            // It may have been given up meanwhile.
            let back = server.phase() == Phase::Direct;
            inner.mirror.sweep(|key| inner.store.server_of(key) == server.id, now, back);
        }
        Err(error) => server.failed(inner, error.fault().unwrap_or(Fault::Other), 1),
    }
    if server.phase() != Phase::Direct {
        return Duration::ZERO;
    }
    // Spread, so that processes that started together do not speak together.
    heartbeat.mul_f64(0.9 + (inner.chance() % 200) as f64 / 1_000.0)
}

async fn beat_once(inner: &Arc<Inner>, server: &ServerState) -> Result<(), Error> {
    let met = introduce(inner, server).await?;
    write_back(inner, server, &met).await?;
    say(inner, server, Saying::Direct, &met).await
}

/// Makes sure that the server is the one that was met before. The first that are met have lost nothing of ours.
pub(super) async fn introduce(inner: &Inner, server: &ServerState) -> Result<ServerIdentity, Error> {
    let met = inner.store.identify(server.id).await?;
    let known = server.life.load(Ordering::Relaxed);
    let first = known == 0 && inner.is_first(server.id);
    if first {
        inner.store.acknowledge(server.id, met.epoch);
        server.life.store(met.epoch, Ordering::Relaxed);
    }
    if first || met.epoch == known {
        return Ok(met);
    }
    let address = inner.store.server_address(server.id);
    Err(Error::store(Fault::Restarted, format!("Redis at {address} is not the one that counted before")))
}

/// Tries the server, and writes back what it lacks when it answers.
async fn probe(inner: &Arc<Inner>, server: &ServerState) -> Duration {
    let wait = server.until_probe(inner);
    if wait > Micros::ZERO {
        return wait.into();
    }
    let answered = probe_once(inner, server).await;
    if answered.is_err() {
        // Another may have taken over.
        inner.refresh_topology().await;
        let now = server.earliest(inner);
        inner.mirror.sweep(|key| inner.store.server_of(key) == server.id, now, false);
    }
    if !server.probed(inner, answered.is_ok()) {
        return Duration::ZERO;
    }
    match answered {
        Ok(met) if return_to(inner, server, &met).await.is_ok() => {}
        _ => server.failed(inner, Fault::Restarted, 1),
    }
    Duration::ZERO
}

async fn probe_once(inner: &Arc<Inner>, server: &ServerState) -> Result<ServerIdentity, Error> {
    let met = inner.store.identify(server.id).await?;
    say(inner, server, Saying::Away, &met).await?;
    server.answered_again(inner.clock.now());
    Ok(met)
}

/// Writes back what the server lacks, and goes over to asking it.
async fn return_to(inner: &Arc<Inner>, server: &ServerState, met: &ServerIdentity) -> Result<(), Error> {
    let lost = met.epoch != server.life.load(Ordering::Relaxed);
    write_all(inner, server, met, lost).await?;
    for _ in 0..ROUNDS {
        if write_back(inner, server, met).await? == 0 {
            break;
        }
    }
    inner.store.acknowledge(server.id, met.epoch);
    server.life.store(met.epoch, Ordering::Relaxed);
    if !server.is_closed() {
        // Calls that were still on their way to it failed meanwhile.
        return Err(Error::unavailable("it failed again"));
    }
    server.set_phase(inner, Phase::Joining);
    // What was admitted until just now.
    write_back(inner, server, met).await?;
    Ok(())
}

/// Waits for the others, a while.
async fn join(inner: &Arc<Inner>, server: &ServerState) -> Duration {
    let started = inner.clock.now();
    let patience = Micros::from(inner.options.write_back);
    let since = server.answered_again(started);
    loop {
        match join_once(inner, server).await {
            Ok(met) => {
                let back = server.peers.lock().are_back(&met.run_id, since);
                if back || inner.clock.now().since(started) >= patience {
                    server.set_phase(inner, Phase::Direct);
                    return Duration::ZERO;
                }
            }
            Err(error) => server.failed(inner, error.fault().unwrap_or(Fault::Other), 1),
        }
        if server.phase() != Phase::Joining {
            return Duration::ZERO;
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn join_once(inner: &Arc<Inner>, server: &ServerState) -> Result<ServerIdentity, Error> {
    let met = introduce(inner, server).await?;
    write_back(inner, server, &met).await?;
    // A bucket is refilled for all, also with what the others have not yet said that they took.
    write_all(inner, server, &met, false).await?;
    say(inner, server, Saying::Joined, &met).await?;
    Ok(met)
}

/// Tells the server where this process stands, and reads where the others do.
async fn say(
    inner: &Arc<Inner>,
    server: &ServerState,
    what: Saying,
    met: &ServerIdentity,
) -> Result<(), Error> {
    let said = server.peers.lock().say(what, &met.run_id);
    let heartbeat = Micros::from(inner.options.heartbeat);
    let sent = inner.clock.now();
    let (at, all) = inner.store.publish_presence(server.id, &inner.name, &said, heartbeat).await?;
    let now = inner.clock.now();
    server.told_time(sent, now, at);
    let forgotten = {
        let mut peers = server.peers.lock();
        peers.heard(all, now, heartbeat, what == Saying::Direct);
        inner.mirror.set_nodes(peers.share().0);
        peers.forgotten(now)
    };
    if !forgotten.is_empty() {
        inner.store.remove_presence(server.id, &forgotten).await?;
    }
    Ok(())
}

pub(super) async fn leave(inner: &Arc<Inner>, server: &ServerState) -> Result<(), Error> {
    let met = inner.store.identify(server.id).await?;
    say(inner, server, Saying::Left, &met).await
}

/// Writes all that counts and that the server may have `lost`; if it did not, what is missing from buckets, which it
/// has refilled meanwhile as if nobody had taken from them.
async fn write_all(
    inner: &Arc<Inner>,
    server: &ServerState,
    met: &ServerIdentity,
    lost: bool,
) -> Result<(), Error> {
    let ours = |key: &Key| inner.store.server_of(key) == server.id;
    for step in 0..Journal::STEPS {
        let now = server.now(inner);
        let owed = inner.mirror.all(step, ours, lost, now);
        write(inner, server, met, true, &owed).await?;
        for owed in &owed {
            match owed.quota.algorithm() {
                Algorithm::TokenBucket { .. } => inner.mirror.written_whole(&owed.key, now),
                _ => inner.mirror.written(owed),
            }
        }
    }
    Ok(())
}

/// Writes what the server does not have; how many keys.
async fn write_back(inner: &Arc<Inner>, server: &ServerState, met: &ServerIdentity) -> Result<usize, Error> {
    let owed = inner.mirror.unwritten(|key| inner.store.server_of(key) == server.id);
    let written = write(inner, server, met, false, &owed).await;
    if written.is_err() {
        inner.mirror.not_written(&owed);
    }
    written.map(|()| owed.len())
}

async fn write(
    inner: &Arc<Inner>,
    server: &ServerState,
    met: &ServerIdentity,
    lost: bool,
    owed: &[Owed],
) -> Result<(), Error> {
    if !inner.store.can_restore() {
        return Ok(());
    }
    let (nodes, _) = server.peers.lock().share();
    let since = server.outage(inner).since;
    let writer = Writer { node: &inner.name, run_id: &met.run_id, lost, since, nodes };
    let lines: Vec<(usize, RestoreLine)> =
        (0..).zip(owed).flat_map(|(i, owed)| lines(owed).map(move |line| (i, line))).collect();
    let mut rest = lines.as_slice();
    while !rest.is_empty() {
        let (some, after) = rest.split_at(step_of(rest));
        let some_lines: Vec<&RestoreLine> = some.iter().map(|(_, line)| line).collect();
        for ((i, _), healed) in some.iter().zip(inner.store.restore(writer, &some_lines).await?) {
            server.written_back.fetch_add(healed.added, Ordering::Relaxed);
            let over = healed.used.saturating_sub(owed[*i].quota.capacity()).min(healed.added);
            server.excess.fetch_add(over, Ordering::Relaxed);
        }
        rest = after;
    }
    Ok(())
}

/// How many lines go in one step.
fn step_of(lines: &[(usize, RestoreLine)]) -> usize {
    let mut entries = 0;
    let fit = lines.iter().take(STEP).take_while(|(_, line)| {
        entries += line.entries.len();
        entries <= STEP_ENTRIES
    });
    fit.count().max(1)
}

/// A key with many admissions in parts, if they can be told apart.
fn lines(owed: &Owed) -> impl Iterator<Item = RestoreLine> {
    let exact = matches!(owed.quota.algorithm(), Algorithm::SlidingWindow | Algorithm::Concurrency);
    // An exact window knows what it has by the instant, so it is told all of an instant; a sum, what to add to it.
    let entries = if exact { owed.whole.clone() } else { owed.instants() };
    let size = if exact { STEP_ENTRIES } else { entries.len().max(1) };
    let parts: Vec<Vec<(Micros, u64, bool)>> = entries.chunks(size).map(<[_]>::to_vec).collect();
    let (key, quota, encoding) = (owed.key.clone(), owed.quota, owed.encoding);
    parts.into_iter().map(move |entries| RestoreLine { key: key.clone(), quota, encoding, entries })
}
