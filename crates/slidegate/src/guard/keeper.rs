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
use super::mirror::{Mirror, Owed};
use super::peers::Saying;
use super::watched::{Phase, Watched};
use crate::redis::{HealLine, Met, Writer};
use crate::{Error, Fault, Micros};

/// The wait between two looks at whether the others have written back.
const LOOK: Duration = Duration::from_millis(20);

/// Keys that are written back in one step.
const STEP: usize = 32;

/// Admissions of one key that are written back in one step.
const STEP_ENTRIES: usize = 1_000;

/// How often what was admitted meanwhile is written before a server is asked again; the rest follows later.
const ROUNDS: usize = 10;

pub(super) async fn keep(inner: Weak<Inner>, server: Arc<Watched>) {
    loop {
        let wait = {
            let Some(inner) = inner.upgrade() else { return };
            match server.phase() {
                Phase::Direct => beat(&inner, &server).await,
                Phase::Away => probe(&inner, &server).await,
                Phase::Joining => join(&inner, &server).await,
            }
        };
        let _ = tokio::time::timeout(wait, server.changed.notified()).await;
    }
}

/// Says that this process is there, and writes what was admitted without the server while it was thought to be.
async fn beat(inner: &Arc<Inner>, server: &Watched) -> Duration {
    let heartbeat = inner.options.heartbeat;
    let written = match introduce(inner, server).await {
        Ok(()) => match say(inner, server, Saying::Direct).await {
            Ok(met) => write_back(inner, server, &met.run, false).await.map(|_| ()),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    match written {
        Ok(()) => {
            let now = server.now(inner);
            inner.mirror.sweep(|key| inner.store.server_of(key) == server.id, now);
        }
        Err(error) => server.failed(inner, error.fault().unwrap_or(Fault::Other)),
    }
    if server.phase() != Phase::Direct {
        return Duration::ZERO;
    }
    // Spread, so that processes that started together do not speak together.
    heartbeat.mul_f64(0.9 + (inner.chance() % 200) as f64 / 1_000.0)
}

/// Makes sure that the server is the one that was met before. The first that are met have lost nothing of ours.
pub(super) async fn introduce(inner: &Inner, server: &Watched) -> Result<(), Error> {
    let met = inner.store.meet(server.id).await?;
    let known = server.life.load(Ordering::Relaxed);
    let first = known == 0 && inner.is_first(server.id);
    if first {
        inner.store.acknowledge(server.id, met.life);
        server.life.store(met.life, Ordering::Relaxed);
    }
    if first || met.life == known {
        return Ok(());
    }
    let address = inner.store.server_address(server.id);
    Err(Error::store(Fault::Restarted, format!("Redis at {address} is not the one that counted before")))
}

/// Tries the server, and writes back what it lacks when it answers.
async fn probe(inner: &Arc<Inner>, server: &Watched) -> Duration {
    let wait = server.until_probe(inner);
    if wait > Micros::ZERO {
        return wait.into();
    }
    let answered = say(inner, server, Saying::Away).await;
    if answered.is_err() {
        // Another may have taken over from it: nobody asks this one, so nobody else finds out.
        let _ = inner.store.look_again().await;
    }
    if !server.probed(inner, answered.is_ok()) {
        return Duration::ZERO;
    }
    match answered {
        Ok(met) if return_to(inner, server, &met).await.is_ok() => {}
        _ => server.failed(inner, Fault::Restarted),
    }
    Duration::ZERO
}

/// Writes back what the server lacks, and goes over to asking it.
async fn return_to(inner: &Arc<Inner>, server: &Watched, met: &Met) -> Result<(), Error> {
    let known = server.life.load(Ordering::Relaxed);
    let lost = known != 0 && met.life != known;
    write_back(inner, server, &met.run, lost || known == 0).await?;
    for _ in 0..ROUNDS {
        if write_back(inner, server, &met.run, false).await? == 0 {
            break;
        }
    }
    inner.store.acknowledge(server.id, met.life);
    server.life.store(met.life, Ordering::Relaxed);
    server.set_phase(Phase::Joining);
    // What was admitted until just now.
    write_back(inner, server, &met.run, false).await?;
    Ok(())
}

/// Waits for the others, a while.
async fn join(inner: &Arc<Inner>, server: &Watched) -> Duration {
    let started = inner.clock.now();
    let patience = Micros::from(inner.options.write_back);
    loop {
        match say(inner, server, Saying::Joined).await {
            Ok(met) => {
                // What was read when it was probed may have been said before it went away.
                let back = server.peers.lock().are_back(&met.run, started);
                if back || inner.clock.now().since(started) >= patience {
                    server.set_phase(Phase::Direct);
                    return Duration::ZERO;
                }
            }
            Err(error) => server.failed(inner, error.fault().unwrap_or(Fault::Other)),
        }
        if server.phase() != Phase::Joining {
            return Duration::ZERO;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Tells the server where this process stands, and reads where the others do.
async fn say(inner: &Arc<Inner>, server: &Watched, what: Saying) -> Result<Met, Error> {
    let met = inner.store.meet(server.id).await?;
    let said = server.peers.lock().say(what, &met.run);
    let heartbeat = Micros::from(inner.options.heartbeat);
    let all = inner.store.say(server.id, &inner.name, &said, heartbeat).await?;
    let now = inner.clock.now();
    let forgotten = {
        let mut peers = server.peers.lock();
        peers.heard(all, now, heartbeat, what == Saying::Direct);
        peers.forgotten(now)
    };
    if !forgotten.is_empty() {
        inner.store.unsay(server.id, &forgotten).await?;
    }
    Ok(met)
}

pub(super) async fn leave(inner: &Arc<Inner>, server: &Watched) -> Result<(), Error> {
    say(inner, server, Saying::Left).await.map(|_| ())
}

/// Writes what the server does not have, or all of it if it may have `lost` what it had; how many keys.
async fn write_back(inner: &Arc<Inner>, server: &Watched, run: &str, lost: bool) -> Result<usize, Error> {
    let mut written = 0;
    let writer = Writer { node: &inner.name, run, lost, since: server.outage(inner).since };
    for step in 0..Mirror::STEPS {
        let now = server.now(inner);
        let ours = |key: &crate::Key| inner.store.server_of(key) == server.id;
        let owed = inner.mirror.owed(step, ours, lost, now);
        let owed: Vec<Owed> = owed.into_iter().flat_map(in_steps).collect();
        for some in owed.chunks(STEP) {
            let lines: Vec<HealLine> = some.iter().map(line).collect();
            let batch = format!("{:x}", inner.chance());
            // While they are on their way they are the server's: a late answer must not find them here.
            some.iter().for_each(|owed| inner.mirror.mark(owed, true));
            let healed = inner.store.heal(writer, &batch, &lines).await;
            if healed.is_err() {
                some.iter().for_each(|owed| inner.mirror.mark(owed, false));
            }
            for (owed, healed) in some.iter().zip(healed?) {
                server.written_back.fetch_add(healed.added, Ordering::Relaxed);
                let over = healed.used.saturating_sub(owed.quota.capacity()).min(healed.added);
                server.excess.fetch_add(over, Ordering::Relaxed);
                written += 1;
            }
        }
    }
    Ok(written)
}

/// A key with many admissions in parts, if they can be told apart.
fn in_steps(owed: Owed) -> Vec<Owed> {
    use crate::Algorithm::SlidingWindow;
    if owed.entries.len() <= STEP_ENTRIES || owed.quota.algorithm() != SlidingWindow {
        return vec![owed];
    }
    let part = |entries: &[super::log::Noted]| Owed {
        key: owed.key.clone(),
        quota: owed.quota,
        encoding: owed.encoding,
        entries: entries.to_vec(),
    };
    owed.entries.chunks(STEP_ENTRIES).map(part).collect()
}

fn line(owed: &Owed) -> HealLine {
    HealLine { key: owed.key.clone(), quota: owed.quota, encoding: owed.encoding, entries: condensed(owed) }
}

/// Instants, costs, and whether the server had admitted them. A sum does not need them one by one.
fn condensed(owed: &Owed) -> Vec<(Micros, u64, bool)> {
    let mut entries: Vec<(Micros, u64, bool)> = Vec::new();
    let summed = matches!(owed.quota.algorithm(), crate::Algorithm::TimeSlice { .. });
    for noted in &owed.entries {
        match entries.last_mut() {
            Some((at, cost, _)) if summed && *at == noted.at => *cost += noted.cost,
            Some((at, cost, written)) if *at == noted.at && *written == noted.written => *cost += noted.cost,
            _ => entries.push((noted.at, noted.cost, noted.written)),
        }
    }
    entries
}
