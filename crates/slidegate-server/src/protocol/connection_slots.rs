//! Bounded slots for the connections of one listener, in total and per client address.
//!
//! When all slots are taken, a new connection evicts the oldest connection that has not sent a whole request
//! yet. If every connection has sent one, the connections that have been idle for longest are evicted. A
//! connection with a request in flight is never closed. So a health check is answered even if clients hold
//! thousands of connections, and no response is lost.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use slidegate::{Clock, Micros, SystemClock};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::config::Limits;

/// Minimum idle time before a connection that has sent a request may be evicted. After this time, its last
/// response has left the server.
const MIN_IDLE: Micros = Micros::from_secs(1);

/// Minimum time between two scans for idle connections. A scan visits every connection, so a flood of new
/// connections must not cause more scans.
const SCAN_INTERVAL: Duration = Duration::from_millis(100);

/// Divisor of the capacity: one scan evicts at most 1/100 of the capacity, the longest idle connections first.
const EVICTION_DIVISOR: usize = 100;

/// Prefix length of the IPv6 network that counts as one client: providers give each customer at least a /64.
const IPV6_PREFIX: u32 = 64;

/// Activity of one connection, updated by its connection handler.
#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    /// Number of requests in flight; [`CLOSED`] once the connection is evicted.
    busy: AtomicUsize,
    /// True once a whole request was received.
    has_sent_request: AtomicBool,
    /// End of the last request, in microseconds.
    idle_since: AtomicU64,
    /// Number of open gRPC streams.
    streams: AtomicUsize,
    /// Number of gRPC calls that wait for their request message.
    waiting_calls: AtomicUsize,
}

const CLOSED: usize = usize::MAX;

impl ConnectionState {
    /// Marks the start of a request, or of several that arrived together. If this returns false, the
    /// connection was evicted and the handler must not decide anything for it.
    #[must_use]
    pub(crate) fn begin(&self) -> bool {
        let begin = |busy| (busy != CLOSED).then(|| busy + 1);
        let begun = self.busy.fetch_update(Ordering::AcqRel, Ordering::Acquire, begin).is_ok();
        if !self.has_sent_request.load(Ordering::Relaxed) {
            self.has_sent_request.store(true, Ordering::Relaxed);
        }
        begun
    }

    /// Marks the end of the request that [`begin`](ConnectionState::begin) started. The response was sent, or
    /// is being sent.
    pub(crate) fn end(&self, now: Micros) {
        self.idle_since.store(now.get(), Ordering::Relaxed);
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts one more open stream. Returns false if `max` streams are open already.
    /// [`close_stream`](ConnectionState::close_stream) undoes the count.
    #[must_use]
    pub(crate) fn open_stream(&self, max: usize) -> bool {
        let open = |open| (open < max).then(|| open + 1);
        self.streams.fetch_update(Ordering::AcqRel, Ordering::Acquire, open).is_ok()
    }

    /// Counts a gRPC call that waits for its request message, and returns how many calls waited before.
    /// [`end_wait`](ConnectionState::end_wait) undoes the count.
    pub(crate) fn begin_wait(&self) -> usize {
        self.waiting_calls.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn end_wait(&self) {
        self.waiting_calls.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn close_stream(&self) {
        self.streams.fetch_sub(1, Ordering::AcqRel);
    }

    fn is_idle(&self, now: Micros) -> bool {
        let since = Micros::new(self.idle_since.load(Ordering::Relaxed));
        self.busy.load(Ordering::Acquire) == 0 && now.since(since) >= MIN_IDLE
    }

    /// Marks the connection as closed, unless a request is in flight.
    fn close(&self) -> bool {
        self.busy.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Connection slots of one listener.
pub(crate) struct ConnectionSlots {
    connections: usize,
    per_address: usize,
    clock: SystemClock,
    table: Mutex<Table>,
    slot_freed: Notify,
}

/// Open connections by number. Each new connection gets a higher number, so the oldest connection has the
/// lowest.
#[derive(Default)]
struct Table {
    next: u64,
    slots: HashMap<u64, Slot>,
    all: Group,
    addresses: HashMap<IpAddr, Group>,
}

struct Slot {
    state: Arc<ConnectionState>,
    address: IpAddr,
    /// Aborts the task that serves the connection.
    abort: Option<AbortHandle>,
}

/// Numbers of all open connections, or of the open connections of one address. Evicted connections are not
/// included.
#[derive(Default)]
struct Group {
    members: BTreeSet<u64>,
    /// Members that may not have sent a request yet.
    without_request: BTreeSet<u64>,
    /// Time of the last scan for idle connections.
    scanned_at: Option<Micros>,
}

/// Slot of one connection; dropping the guard frees it.
pub(crate) struct SlotGuard {
    slots: Arc<ConnectionSlots>,
    pub(crate) number: u64,
    pub(crate) state: Arc<ConnectionState>,
    /// Number of connections that were evicted to make room for this connection.
    pub(crate) evicted: usize,
}

impl ConnectionSlots {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(ConnectionSlots {
            connections: limits.connections.max(1),
            per_address: limits.connections_per_address.unwrap_or(limits.connections.div_ceil(2)).max(1),
            clock: SystemClock::new(),
            table: Mutex::default(),
            slot_freed: Notify::new(),
        })
    }

    /// Waits for a slot for a connection from `peer`. Returns `None` if the address of `peer` has the maximum
    /// number of connections and all of them are in use.
    pub(crate) async fn acquire(self: &Arc<Self>, peer: IpAddr) -> Option<SlotGuard> {
        let address = counted_address(peer);
        let mut evicted = 0;
        loop {
            let mut freed = pin!(self.slot_freed.notified());
            freed.as_mut().enable();
            {
                let mut table = self.table.lock();
                let now = self.clock.now();
                let of_address = table.addresses.get(&address).map_or(0, |group| group.members.len());
                if of_address >= self.per_address {
                    match table.evict(Some(address), self.per_address, now) {
                        0 => return None,
                        some => evicted += some,
                    }
                }
                if table.all.members.len() >= self.connections {
                    evicted += table.evict(None, self.connections, now);
                }
                if table.all.members.len() < self.connections {
                    let (number, state) = table.insert(address, now);
                    return Some(SlotGuard { slots: Arc::clone(self), number, state, evicted });
                }
            }
            let _ = tokio::time::timeout(SCAN_INTERVAL, freed).await;
        }
    }

    /// Sets the handle that ends the connection's task when the connection is evicted.
    pub(crate) fn set_abort_handle(&self, number: u64, abort: AbortHandle) {
        if let Some(slot) = self.table.lock().slots.get_mut(&number) {
            slot.abort = Some(abort);
        }
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.slots.table.lock().remove(self.number);
        self.slots.slot_freed.notify_waiters();
    }
}

impl Table {
    fn insert(&mut self, address: IpAddr, now: Micros) -> (u64, Arc<ConnectionState>) {
        let (number, state) = (self.next, Arc::new(ConnectionState::default()));
        state.idle_since.store(now.get(), Ordering::Relaxed);
        self.next += 1;
        for group in [&mut self.all, self.addresses.entry(address).or_default()] {
            group.members.insert(number);
            group.without_request.insert(number);
        }
        self.slots.insert(number, Slot { state: Arc::clone(&state), address, abort: None });
        (number, state)
    }

    fn remove(&mut self, number: u64) {
        if let Some(slot) = self.slots.remove(&number) {
            self.remove_from_groups(number, slot.address);
        }
    }

    /// Removes a connection from its groups, so that the groups no longer count it.
    fn remove_from_groups(&mut self, number: u64, address: IpAddr) {
        for group in [Some(&mut self.all), self.addresses.get_mut(&address)].into_iter().flatten() {
            group.members.remove(&number);
            group.without_request.remove(&number);
        }
        if self.addresses.get(&address).is_some_and(|group| group.members.is_empty()) {
            self.addresses.remove(&address);
        }
    }

    fn group(&mut self, address: Option<IpAddr>) -> Option<&mut Group> {
        match address {
            Some(address) => self.addresses.get_mut(&address),
            None => Some(&mut self.all),
        }
    }

    /// Evicts unused connections of `address`, or of any address if `address` is `None`. Returns how many it
    /// evicted.
    fn evict(&mut self, address: Option<IpAddr>, capacity: usize, now: Micros) -> usize {
        while let Some(number) = self.group(address).and_then(|group| group.without_request.pop_first()) {
            if self.close(number, |state| !state.has_sent_request.load(Ordering::Relaxed)) {
                return 1;
            }
        }
        let Some(group) = self.group(address) else { return 0 };
        if group.scanned_at.is_some_and(|scanned_at| Duration::from(now.since(scanned_at)) < SCAN_INTERVAL) {
            return 0;
        }
        group.scanned_at = Some(now);
        let members: Vec<u64> = group.members.iter().copied().collect();
        let idle = members.into_iter().filter_map(|number| {
            let state = &self.slots.get(&number)?.state;
            state.is_idle(now).then(|| (state.idle_since.load(Ordering::Relaxed), number))
        });
        let mut idle: Vec<(u64, u64)> = idle.collect();
        idle.sort_unstable();
        let longest = idle.into_iter().take(capacity.div_ceil(EVICTION_DIVISOR));
        longest.filter(|(_, number)| self.close(*number, |state| state.is_idle(now))).count()
    }

    /// Closes a connection if it meets `condition` and has no request in flight. Returns whether it was
    /// closed.
    fn close(&mut self, number: u64, condition: impl Fn(&ConnectionState) -> bool) -> bool {
        let Some(slot) = self.slots.get_mut(&number) else { return false };
        if !condition(&slot.state) || !slot.state.close() {
            return false;
        }
        if let Some(abort) = slot.abort.take() {
            abort.abort();
        }
        let address = slot.address;
        self.remove_from_groups(number, address);
        true
    }
}

/// Returns the address under which the connections of `peer` are counted.
fn counted_address(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & (u128::MAX << (u128::BITS - IPV6_PREFIX));
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection_slots(connections: usize, connections_per_address: usize) -> Arc<ConnectionSlots> {
        let connections_per_address = Some(connections_per_address);
        ConnectionSlots::new(&Limits { connections, connections_per_address, ..Limits::default() })
    }

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn is_closed(guard: &SlotGuard) -> bool {
        guard.state.busy.load(Ordering::Relaxed) == CLOSED
    }

    #[tokio::test]
    async fn evicts_oldest_connection_without_request() {
        let slots = connection_slots(3, 3);
        let [used, silent, younger] = [
            slots.acquire(address(1)).await,
            slots.acquire(address(2)).await,
            slots.acquire(address(3)).await,
        ]
        .map(Option::unwrap);
        assert!(used.state.begin());
        used.state.end(Micros::ZERO);
        let next = slots.acquire(address(4)).await.unwrap();
        assert_eq!([&used, &silent, &younger, &next].map(is_closed), [false, true, false, false]);
        assert!(!silent.state.begin(), "nothing is decided for an evicted connection");
    }

    #[tokio::test]
    async fn evicts_longest_idle_and_never_one_in_use() {
        let slots = connection_slots(3, 3);
        let mut guards = Vec::new();
        for n in 0..3 {
            guards.push(slots.acquire(address(n)).await.unwrap());
            assert!(guards[n as usize].state.begin());
        }
        let now = slots.clock.now().get();
        // Connection 0 has a request in flight, and connection 2 was active just now.
        guards[1].state.end(Micros::new(now - 5_000_000));
        guards[2].state.end(Micros::new(now));
        let next = slots.acquire(address(4)).await.unwrap();
        assert_eq!(guards.iter().map(is_closed).collect::<Vec<_>>(), [false, true, false]);
        // All connections are in use now, so the next connection waits for a free slot.
        assert!(next.state.begin());
        assert!(guards[2].state.begin());
        let waiting = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move { slots.acquire(address(5)).await.is_some() }
        });
        drop(guards.remove(0));
        assert!(waiting.await.unwrap());
    }

    #[tokio::test]
    async fn bounds_connections_per_address() {
        let slots = connection_slots(4, 2);
        let first = slots.acquire(address(1)).await.unwrap();
        let second = slots.acquire(address(1)).await.unwrap();
        assert!(first.state.begin() && second.state.begin());
        assert!(slots.acquire(address(1)).await.is_none(), "both connections are in use");
        let other = slots.acquire(address(2)).await.unwrap();
        first.state.end(Micros::ZERO);
        tokio::time::sleep(2 * SCAN_INTERVAL).await;
        let third = slots.acquire(address(1)).await.unwrap();
        assert_eq!([&first, &second, &other, &third].map(is_closed), [true, false, false, false]);
        drop((first, second, other, third));
        let table = slots.table.lock();
        assert!(table.slots.is_empty() && table.addresses.is_empty() && table.all.members.is_empty());
        assert!(table.all.without_request.is_empty());
    }

    #[test]
    fn counts_ipv6_addresses_by_network() {
        let v6 = |text: &str| counted_address(text.parse().unwrap());
        assert_eq!(v6("2001:db8:1:2::1"), v6("2001:db8:1:2:ffff::9"));
        assert_ne!(v6("2001:db8:1:2::1"), v6("2001:db8:1:3::1"));
        assert_eq!(v6("::ffff:10.0.0.1"), address(1));
    }
}
