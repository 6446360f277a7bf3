//! Routing of requests to servers: one concurrent call per server; a request with keys on several servers is split.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::{Failover, Inner};
use crate::store::multi_shard::{self, ShardedStore};
use crate::store::remote::{RemoteStore, ServerId};
use crate::store::single;
use crate::{BatchVerdicts, Check, Checks, Error, Micros, Settlement, Source, Verdicts};

impl<R: RemoteStore> Inner<R> {
    pub(super) async fn admit_one(self: &Arc<Self>, checks: &Checks) -> Result<Verdicts, Error> {
        let Some(first) = checks.as_slice().first() else {
            return Ok(Verdicts { at: Micros::ZERO, source: Source::NoRule, verdicts: SmallVec::new() });
        };
        self.ensure_discovered().await;
        if let Some(parts) = multi_shard::split(checks, |check| self.store.server_of(&check.key)) {
            return multi_shard::admit(Arc::new(Failover { inner: Arc::clone(self) }), checks, parts).await;
        }
        let server = self.server_state_of(self.store.server_of(&first.key));
        single(self.admit_on(&server, std::slice::from_ref(checks)).await?)
    }

    /// Discovers the servers before the first key is routed. If that fails, all keys are routed to the first server,
    /// which does not answer.
    pub(super) async fn ensure_discovered(&self) {
        if self.initial_servers.get().is_none() {
            let _ = self.discover_servers().await;
        }
    }

    /// Returns the server of all keys, if there is only one.
    fn single_server(&self, batch: &[Checks]) -> Option<ServerId> {
        let any_empty = batch.iter().any(|checks| checks.as_slice().is_empty());
        let checks = batch.iter().flat_map(Checks::as_slice);
        let mut servers = checks.map(|check| self.store.server_of(&check.key));
        let first = servers.next()?;
        (!any_empty && servers.all(|server| server == first)).then_some(first)
    }

    /// Decides a batch with one concurrent call per server. Requests with keys on several servers are decided
    /// separately.
    pub(super) async fn admit_many(self: &Arc<Self>, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        self.ensure_discovered().await;
        if let Some(server) = self.single_server(batch) {
            return self.admit_on(&self.server_state_of(server), batch).await;
        }
        let mut groups: Vec<(ServerId, Vec<usize>)> = Vec::new();
        let mut multi_server = Vec::new();
        for (i, checks) in batch.iter().enumerate() {
            let server_of = |check: &Check| self.store.server_of(&check.key);
            match checks.as_slice().first() {
                Some(first) if multi_shard::split(checks, server_of).is_none() => {
                    multi_shard::add_to_group(&mut groups, server_of(first), i);
                }
                _ => multi_server.push(i),
            }
        }
        let grouped = groups.into_iter().map(async |(server, indices)| {
            let server = self.server_state_of(server);
            let group: Vec<Checks> = indices.iter().map(|&i| batch[i].clone()).collect();
            let batch_verdicts = self.admit_on(&server, &group).await?;
            Ok::<_, Error>(indices.into_iter().zip(batch_verdicts).collect::<Vec<_>>())
        });
        let single = multi_server
            .into_iter()
            .map(async |i| Ok::<_, Error>(vec![(i, self.admit_one(&batch[i]).await?)]));
        let (grouped, single) = tokio::join!(join_all(grouped), join_all(single));
        let mut batch_verdicts: Vec<(usize, Verdicts)> = Vec::with_capacity(batch.len());
        for part in grouped.into_iter().chain(single) {
            batch_verdicts.extend(part?);
        }
        batch_verdicts.sort_unstable_by_key(|(i, _)| *i);
        if batch_verdicts.len() != batch.len() {
            return Err(Error::short_answer());
        }
        Ok(batch_verdicts.into_iter().map(|(_, verdicts)| verdicts).collect())
    }
}

impl<R: RemoteStore> ShardedStore for Failover<R> {
    type Shard = ServerId;

    async fn admit_part(&self, server: &ServerId, checks: Checks) -> Result<Verdicts, Error> {
        let server = self.inner.server_state_of(*server);
        single(self.inner.admit_on(&server, &[checks]).await?)
    }

    async fn give_back(&self, _: &ServerId, settlements: Vec<Settlement>) -> Result<(), Error> {
        self.inner.settle(&settlements).await.map(|_| ())
    }
}
