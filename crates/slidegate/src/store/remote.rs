//! The [`RemoteStore`] trait: the operations that [`Failover`](crate::Failover) needs of a store that several nodes share.
//!
//! A store that implements the trait can be wrapped by failover without any change there. [`RedisStore`](crate::RedisStore)
//! implements it; the tests of failover implement it with a simulated server.

use std::future::Future;

use crate::{Encoding, Error, Key, Micros, Quota, Receipt, Settlement, Store};

/// Number of one server of a store. A number keeps the same address for the lifetime of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(pub u16);

/// Epoch and run id of a server, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Epoch of the server, counted by this process. It increases when the server may have lost data, and is never 0.
    pub epoch: u64,
    /// Run id of the server: the same for every process, and new after each restart.
    pub run_id: String,
}

/// Node that restores its admissions to a server.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'w> {
    /// Name of the node.
    pub node: &'w str,
    /// Run id of the server.
    pub run_id: &'w str,
    /// True if the server may have lost its data.
    pub lost: bool,
    /// Instant since which the server was unreachable.
    pub since: Micros,
    /// Number of nodes that restore.
    pub nodes: u64,
}

/// Admissions of one key by a node.
#[derive(Clone, Debug)]
pub struct RestoreLine {
    /// The key.
    pub key: Key,
    /// Quota that the key counts by.
    pub quota: Quota,
    /// Form in which Redis stores the key.
    pub encoding: Encoding,
    /// Instant, cost, and whether the server had already counted the admission, oldest first. For exact windows the
    /// cost is everything that the node admitted at that instant, and replaces an earlier total. For other algorithms
    /// the cost is the amount to add.
    pub entries: Vec<(Micros, u64, bool)>,
}

/// Result of restoring one line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Permits that were missing and were added.
    pub added: u64,
    /// Permits in use now.
    pub used: u64,
}

/// Current time of a server, and the message of each node by the node's name.
pub type Presences = (Micros, Vec<(String, String)>);

/// Lowest sequence number of admissions that a node made without the store and wrote back. Only failover assigns these
/// numbers, so only [`RemoteStore::settle_restored`] settles them.
pub const FIRST_RESTORED_SEQ: u64 = 10_000_000_000_000_000_000;

/// A [`Store`] on one or more servers that several nodes share. Clones share all state.
///
/// # Contract
///
/// - A call that cannot be answered fails with a [`Fault`](crate::Fault). Its outcome may be unknown.
/// - While holding is on, calls that charge or give back permits fail with [`Fault::Restarted`](crate::Fault::Restarted)
///   unless the current epoch of the server is acknowledged. The other methods of this trait work in every epoch.
/// - If the same lines are restored twice, the second time adds nothing.
pub trait RemoteStore: Store + Clone + 'static {
    /// Returns the server that counts `key`, by the topology that was last read.
    fn server_of(&self, key: &Key) -> ServerId;

    /// Returns the servers that count keys, by the topology that was last read.
    fn servers(&self) -> Vec<ServerId>;

    /// Returns the address of a server, without passwords.
    fn server_address(&self, server: ServerId) -> String;

    /// Reads the topology, if it was never read before.
    fn discover(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Reads the topology again.
    fn refresh_topology(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Turns holding on or off. While holding is on, a server decides only in an epoch that was acknowledged.
    fn hold(&self, on: bool);

    /// Returns the current identity of a server; connects if necessary.
    fn identify(&self, server: ServerId) -> impl Future<Output = Result<ServerIdentity, Error>> + Send;

    /// Acknowledges this epoch of the server: decisions are allowed, because the admissions that the server lost are
    /// written back.
    fn acknowledge(&self, server: ServerId, epoch: u64);

    /// Returns whether the store can restore admissions.
    fn can_restore(&self) -> bool;

    /// Restores admissions of a node. Returns one result per line.
    fn restore(
        &self,
        writer: Writer<'_>,
        lines: &[&RestoreLine],
    ) -> impl Future<Output = Result<Vec<Restored>, Error>> + Send;

    /// Publishes a message of this node to all nodes that use a server, and reads the messages of all nodes.
    fn publish_presence(
        &self,
        server: ServerId,
        node: &str,
        message: &str,
        heartbeat: Micros,
    ) -> impl Future<Output = Result<Presences, Error>> + Send;

    /// Removes the messages of these nodes.
    fn remove_presence(
        &self,
        server: ServerId,
        nodes: &[String],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Settles as [`Store::settle`] does, and also settles admissions that a node wrote back, which have numbers from
    /// [`FIRST_RESTORED_SEQ`] on.
    fn settle_restored(
        &self,
        settlements: &[Settlement],
    ) -> impl Future<Output = Result<Receipt, Error>> + Send;
}
