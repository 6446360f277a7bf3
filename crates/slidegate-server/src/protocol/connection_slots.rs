//! Room for connections: how many there are of a door, in all and of one client address, and which one is closed for another.
//!
//! A door has room for a number of connections. When all of it is taken, a new connection takes the place of the oldest one
//! that has not sent a whole request yet. If every connection has sent one, those that have been idle for longest make room. A
//! connection that is being answered is never closed, so a health check is answered though thousands of clients hold
//! connections, and no answer is lost.

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

/// A connection that has sent a request is closed only after it was idle for so long: its last answer has left by then.
const MIN_IDLE: Micros = Micros::from_secs(1);

/// How often idle connections are looked for. It takes a step for each connection, so a flood of new ones does not do it more
/// often.
const SCAN_INTERVAL: Duration = Duration::from_millis(100);

/// Of the room, the share that is freed at once when idle connections are closed.
const EVICTION_DIVISOR: usize = 100;

/// Bits of an IPv6 address that are one client: providers give each customer at least that network.
const IPV6_PREFIX: u32 = 64;

/// State of one connection, kept by its door: whether it is being answered.
#[derive(Debug, Default)]
pub struct ConnectionState {
    /// Requests under way; [`CLOSED`] once the connection makes room.
    busy: AtomicUsize,
    /// Whether a whole request has come.
    has_sent_request: AtomicBool,
    /// End of the last request, in microseconds.
    idle_since: AtomicU64,
    /// gRPC streams that are open.
    streams: AtomicUsize,
    /// gRPC calls that wait for their messages.
    waiting_calls: AtomicUsize,
}

const CLOSED: usize = usize::MAX;

impl ConnectionState {
    /// Marks the start of a request, or of several that came together. If this returns false, the connection has to make room:
    /// nothing must be decided for it any more.
    #[must_use]
    pub(crate) fn begin(&self) -> bool {
        let begin = |busy| (busy != CLOSED).then(|| busy + 1);
        let begun = self.busy.fetch_update(Ordering::AcqRel, Ordering::Acquire, begin).is_ok();
        if !self.has_sent_request.load(Ordering::Relaxed) {
            self.has_sent_request.store(true, Ordering::Relaxed);
        }
        begun
    }

    /// Marks the end of what [`begin`](ConnectionState::begin) started. The answer was sent, or is on its way.
    pub(crate) fn end(&self, now: Micros) {
        self.idle_since.store(now.get(), Ordering::Relaxed);
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes one of `most` places for streams. Give it back with [`close_stream`](ConnectionState::close_stream).
    #[must_use]
    pub(crate) fn open_stream(&self, max: usize) -> bool {
        let open = |open| (open < max).then(|| open + 1);
        self.streams.fetch_update(Ordering::AcqRel, Ordering::Acquire, open).is_ok()
    }

    /// Counts a gRPC call that waits for its message. Returns how many did before. It ends with [`end_wait`](ConnectionState::end_wait).
    pub(crate) fn begin_wait(&self) -> usize {
        self.waiting_calls.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn end_wait(&self) {
        self.waiting_calls.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn close_stream(&self) {
        self.streams.fetch_sub(1, Ordering::AcqRel);
    }

    fn has_sent_request(&self) -> bool {
        self.has_sent_request.load(Ordering::Relaxed)
    }

    fn is_idle(&self, now: Micros) -> bool {
        let since = Micros::new(self.idle_since.load(Ordering::Relaxed));
        self.busy.load(Ordering::Acquire) == 0 && now.since(since) >= MIN_IDLE
    }

    /// Lets it make room, unless it is being answered.
    fn close(&self) -> bool {
        self.busy.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Room of one door.
pub(crate) struct ConnectionSlots {
    connections: usize,
    per_address: usize,
    clock: SystemClock,
    table: Mutex<Table>,
    slot_freed: Notify,
}

/// Connections by their numbers, which grow: the lowest is the oldest.
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
    /// Ends the task of the connection.
    abort: Option<AbortHandle>,
}

/// Connections in all, or of one address, without those that were closed to make room.
#[derive(Default)]
struct Group {
    members: BTreeSet<u64>,
    /// Those that may not have sent a request yet.
    without_request: BTreeSet<u64>,
    /// When idle ones were looked for.
    scanned_at: Option<Micros>,
}

/// Place of one connection, until it is dropped.
pub(crate) struct SlotGuard {
    slots: Arc<ConnectionSlots>,
    number: u64,
    pub(crate) state: Arc<ConnectionState>,
    /// How many connections were closed for it.
    pub(crate) evicted: usize,
}

impl ConnectionSlots {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(ConnectionSlots {
            connections: limits.connections.max(1),
            per_address: limits.connections_per_address.max(1),
            clock: SystemClock::new(),
            table: Mutex::default(),
            slot_freed: Notify::new(),
        })
    }

    /// Takes a place for a connection from `peer`, as soon as there is one. Returns none if that address has as many as one may
    /// have, all of them in use.
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

    /// Says how to end a connection when another one needs its place.
    pub(crate) fn set_abort_handle(&self, number: u64, abort: AbortHandle) {
        if let Some(slot) = self.table.lock().slots.get_mut(&number) {
            slot.abort = Some(abort);
        }
    }
}

impl SlotGuard {
    pub(crate) fn number(&self) -> u64 {
        self.number
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

    /// Takes a connection out of the groups; it no longer counts.
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

    /// Closes connections of an address, or of all, that are not in use. Returns how many.
    fn evict(&mut self, address: Option<IpAddr>, capacity: usize, now: Micros) -> usize {
        while let Some(number) = self.group(address).and_then(|group| group.without_request.pop_first()) {
            if self.close(number, |state| !state.has_sent_request()) {
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

    /// Closes a connection, if it is as it should be and not being answered.
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

/// Address under which connections are counted.
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
        assert!(!silent.state.begin(), "nothing is decided for it any more");
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
        // The first is being answered, the last was just now.
        guards[1].state.end(Micros::new(now - 5_000_000));
        guards[2].state.end(Micros::new(now));
        let next = slots.acquire(address(4)).await.unwrap();
        assert_eq!(guards.iter().map(is_closed).collect::<Vec<_>>(), [false, true, false]);
        // All of them are in use now: the next one waits until a place is free.
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
        assert!(slots.acquire(address(1)).await.is_none(), "both are in use");
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
