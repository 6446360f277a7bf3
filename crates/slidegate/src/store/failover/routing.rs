//! Asks on several servers: one call each, all at once; an ask over several of them by its parts.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::{Failover, Inner};
use crate::store::multi_shard::{self, Places};
use crate::store::redis::ServerId;
use crate::{BatchVerdicts, Check, Checks, Error, Micros, Settlement, Source, Verdicts};

impl Inner {
    pub(super) async fn admit_one(self: &Arc<Self>, ask: &Checks) -> Result<Verdicts, Error> {
        let Some(first) = ask.checks().first() else {
            return Ok(Verdicts { at: Micros::ZERO, source: Source::NoRule, verdicts: SmallVec::new() });
        };
        self.find_once().await;
        if let Some(parts) = multi_shard::split(ask, |check| self.store.server_of(&check.key)) {
            return multi_shard::admit(Arc::new(Failover { inner: Arc::clone(self) }), ask, parts).await;
        }
        let server = self.watched(self.store.server_of(&first.key));
        let readings = self.admit_on(&server, std::slice::from_ref(ask)).await?;
        readings.into_iter().next().ok_or_else(Error::short_answer)
    }

    /// Which servers there are must be known before keys are given to them. If that cannot be found out, the first
    /// stands for them all, and does not answer.
    pub(super) async fn find_once(&self) {
        if self.first.get().is_none() {
            let _ = self.find().await;
        }
    }

    /// The server of all of them, if it is one.
    fn only_server(&self, asks: &[Checks]) -> Option<ServerId> {
        let mut servers = asks.iter().map(|ask| {
            let mut servers = ask.checks().iter().map(|check| self.store.server_of(&check.key));
            let first = servers.next()?;
            servers.all(|server| server == first).then_some(first)
        });
        let first = servers.next()??;
        servers.all(|server| server == Some(first)).then_some(first)
    }

    /// One call per server, all at once; asks over several servers by themselves.
    pub(super) async fn admit_many(self: &Arc<Self>, asks: &[Checks]) -> Result<BatchVerdicts, Error> {
        self.find_once().await;
        if let Some(server) = self.only_server(asks) {
            return self.admit_on(&self.watched(server), asks).await;
        }
        let mut groups: Vec<(ServerId, Vec<usize>)> = Vec::new();
        let mut alone = Vec::new();
        for (i, ask) in asks.iter().enumerate() {
            let server_of = |check: &Check| self.store.server_of(&check.key);
            match ask.checks().first() {
                Some(first) if multi_shard::split(ask, server_of).is_none() => {
                    let server = server_of(first);
                    match groups.iter_mut().find(|(known, _)| *known == server) {
                        Some((_, places)) => places.push(i),
                        None => groups.push((server, vec![i])),
                    }
                }
                _ => alone.push(i),
            }
        }
        let grouped = groups.into_iter().map(async |(server, places)| {
            let server = self.watched(server);
            let group: Vec<Checks> = places.iter().map(|&i| asks[i].clone()).collect();
            let readings = self.admit_on(&server, &group).await?;
            Ok::<_, Error>(places.into_iter().zip(readings).collect::<Vec<_>>())
        });
        let single =
            alone.into_iter().map(async |i| Ok::<_, Error>(vec![(i, self.admit_one(&asks[i]).await?)]));
        let (grouped, single) = tokio::join!(join_all(grouped), join_all(single));
        let mut readings: Vec<(usize, Verdicts)> = Vec::with_capacity(asks.len());
        for part in grouped.into_iter().chain(single) {
            readings.extend(part?);
        }
        readings.sort_unstable_by_key(|(i, _)| *i);
        if readings.len() != asks.len() {
            return Err(Error::short_answer());
        }
        Ok(readings.into_iter().map(|(_, reading)| reading).collect())
    }
}

impl Places for Failover {
    type Place = ServerId;

    async fn admit_part(&self, server: &ServerId, ask: Checks) -> Result<Verdicts, Error> {
        let server = self.inner.watched(*server);
        let readings = self.inner.admit_on(&server, std::slice::from_ref(&ask)).await?;
        readings.into_iter().next().ok_or_else(Error::short_answer)
    }

    async fn give_back(&self, _: &ServerId, settlements: Vec<Settlement>) -> Result<(), Error> {
        self.inner.settle(&settlements).await.map(|_| ())
    }
}
