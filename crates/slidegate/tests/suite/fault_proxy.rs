//! A network that fails as told: a TCP proxy between a client and a real server.
//!
//! Start it in front of a server, give its URL to what is tested, and change the fault at any moment. A fault
//! holds for connections that are open and for those to come. When `set` has returned, nothing more passes that
//! the fault forbids. It has one thread of its own, so tests may be `async` or not; dropping it closes everything.
//!
//! ```ignore
//! let server = Server::start(Flavour::Redis7);
//! let proxy = FaultProxy::start(server.address());
//! let store = RedisStore::new(&proxy.url()).unwrap();
//! proxy.set(Fault::CutAfterCommands(1)); // the next command is carried out, its answer is lost
//! assert!(store.admit(&[ask]).await.unwrap_err().outcome_unknown());
//! proxy.set(Fault::BlackHole); // connections stay open and silent
//! proxy.set(Fault::None); // and go on where they stopped
//! ```
//!
//! As in TCP, no byte is lost in the middle of a connection: what a fault holds back is passed when it ends,
//! or is lost with the connection. What waits in the proxy is at most 16 reads of 16 KiB in each direction;
//! while nothing may pass it does not read, so senders feel it as they would feel a full network.
#![allow(dead_code, reason = "shared by tests that each use some of it")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::resp_commands::Commands;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Every byte is this late, in each direction, however many are on their way.
    Delay(Duration),
    /// Connections are accepted and stay open; nothing passes.
    BlackHole,
    /// Connections end with RST, new ones as soon as they are accepted.
    Reset,
    /// A few bytes at a time, in each direction.
    Drip {
        bytes: usize,
        every: Duration,
    },
    /// Requests reach the server; answers do not come back.
    HalfOpen,
    /// Connections are closed, and nobody listens.
    Refuse,
    /// The server sees so many bytes more, of all connections; then the connection of the last is closed,
    /// what was complete is carried out, and no answer follows. Once: the fault is then `None`.
    CutAfterBytes(u64),
    /// As `CutAfterBytes`, by whole commands, also those by which a client introduces itself.
    /// Not for TLS, which hides them.
    CutAfterCommands(u64),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Requests,
    Answers,
}

impl Fault {
    fn stalls(self, side: Side) -> bool {
        match self {
            Fault::BlackHole | Fault::Reset | Fault::Refuse => true,
            Fault::HalfOpen => side == Side::Answers,
            _ => false,
        }
    }

    fn ends_connections(self) -> bool {
        matches!(self, Fault::Reset | Fault::Refuse)
    }
}

pub(crate) struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// None only while it is dropped, which ends the thread.
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// A fault to set, if any, and whom to tell when what came before is done.
type Order = (Option<Fault>, std::sync::mpsc::Sender<()>);

struct Shared {
    /// Changed by the proxy's thread only, so a task that looked at it may act until it next waits.
    fault: watch::Sender<Fault>,
    target: Mutex<SocketAddr>,
    accepted: AtomicU64,
    requested: AtomicU64,
    answered: AtomicU64,
}

impl FaultProxy {
    /// On a free port, passing everything to the target.
    pub(crate) fn start(target: SocketAddr) -> FaultProxy {
        let shared = Arc::new(Shared {
            fault: watch::Sender::new(Fault::None),
            target: Mutex::new(target),
            accepted: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        });
        let (orders, inbox) = mpsc::unbounded_channel();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let door = Door::open((Ipv4Addr::LOCALHOST, 0).into());
                    tell.send(door.address()).unwrap();
                    shared.run(door, inbox).await;
                });
            }
        });
        let address = told.recv().unwrap();
        FaultProxy { address, shared, orders: Some(orders), thread: Some(thread) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Holds when this returns.
    pub(crate) fn set(&self, fault: Fault) {
        self.order(Some(fault));
    }

    /// What holds now: `None` again after a cut.
    pub(crate) fn fault(&self) -> Fault {
        self.order(None);
        *self.shared.fault.borrow()
    }

    fn order(&self, fault: Option<Fault>) {
        let (done, wait) = std::sync::mpsc::channel();
        self.orders.as_ref().unwrap().send((fault, done)).unwrap();
        wait.recv().unwrap();
    }

    /// Between two steps of the proxy, so that what a client has seen is counted.
    fn counted(&self, counter: &AtomicU64) -> u64 {
        self.order(None);
        counter.load(Ordering::SeqCst)
    }

    /// Where new connections go; those that are open stay where they are.
    pub(crate) fn retarget(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap_or_else(PoisonError::into_inner) = target;
    }

    /// Connections accepted since the start.
    pub(crate) fn connections(&self) -> u64 {
        self.counted(&self.shared.accepted)
    }

    /// Bytes passed to the server since the start.
    pub(crate) fn bytes_to_server(&self) -> u64 {
        self.counted(&self.shared.requested)
    }

    /// Bytes passed to clients since the start.
    pub(crate) fn bytes_to_client(&self) -> u64 {
        self.counted(&self.shared.answered)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.orders = None;
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the proxy's thread panicked");
    }
}

/// The port is bound either way, so that nobody else is given it meanwhile.
enum Door {
    Open(TcpListener),
    Shut(TcpSocket),
}

impl Door {
    fn bind(address: SocketAddr) -> TcpSocket {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        socket
    }

    fn open(address: SocketAddr) -> Door {
        Door::Open(Door::bind(address).listen(1024).unwrap())
    }

    fn address(&self) -> SocketAddr {
        match self {
            Door::Open(listener) => listener.local_addr().unwrap(),
            Door::Shut(socket) => socket.local_addr().unwrap(),
        }
    }

    fn turned(self, open: bool) -> Door {
        match self {
            Door::Open(listener) if !open => {
                let address = listener.local_addr().unwrap();
                drop(listener);
                Door::Shut(Door::bind(address))
            }
            Door::Shut(socket) if open => Door::Open(socket.listen(1024).unwrap()),
            door => door,
        }
    }

    async fn accept(&self) -> TcpStream {
        match self {
            Door::Open(listener) => listener.accept().await.unwrap().0,
            Door::Shut(_) => std::future::pending().await,
        }
    }
}

/// Why a connection ended.
enum End {
    Closed,
    Reset,
    Cut,
}

impl From<std::io::Error> for End {
    fn from(_: std::io::Error) -> End {
        End::Reset
    }
}

impl Shared {
    /// Until the proxy is dropped; then its connections are, too.
    async fn run(self: &Arc<Self>, mut door: Door, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                order = orders.recv() => {
                    let Some((fault, done)) = order else { return };
                    if let Some(fault) = fault {
                        door = door.turned(fault != Fault::Refuse);
                        self.fault.send_replace(fault);
                    }
                    let _ = done.send(());
                }
                client = door.accept() => {
                    self.accepted.fetch_add(1, Ordering::SeqCst);
                    connections.spawn(Arc::clone(self).connection(client));
                }
                Some(ended) = connections.join_next() => ended.unwrap(),
            }
        }
    }

    async fn connection(self: Arc<Self>, mut client: TcpStream) {
        // In a black hole there is nobody behind the proxy.
        let first = *self.fault.subscribe().wait_for(|fault| *fault != Fault::BlackHole).await.unwrap();
        if first.ends_connections() {
            return close(first == Fault::Reset, [client]);
        }
        let target = *self.target.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(mut server) = TcpStream::connect(target).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let end = {
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            let requests = self.pass(Side::Requests, from_client, to_server);
            let answers = self.pass(Side::Answers, from_server, to_client);
            let passed = async { tokio::try_join!(requests, answers).err().unwrap_or(End::Closed) };
            let mut fault = self.fault.subscribe();
            tokio::select! {
                biased;
                fault = fault.wait_for(|fault| fault.ends_connections()) => match *fault.unwrap() {
                    Fault::Reset => End::Reset,
                    _ => End::Closed,
                },
                end = passed => end,
            }
        };
        if let End::Cut = end {
            drop(client);
            // The server may still be at it: it reads to the end, answers into the void, and hangs up.
            let _ = server.shutdown().await;
            let mut void = [0; 4096];
            let hang_up = async { while let Ok(1..) = server.read(&mut void).await {} };
            let _ = tokio::time::timeout(Duration::from_secs(10), hang_up).await;
        } else {
            close(matches!(end, End::Reset), [client, server]);
        }
    }

    /// One direction, until its sender closes it.
    async fn pass(&self, side: Side, from: ReadHalf<'_>, to: WriteHalf<'_>) -> Result<(), End> {
        let (sender, receiver) = mpsc::channel(16);
        tokio::try_join!(self.read(side, from, sender), self.write(side, to, receiver))?;
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "a delay is counted from when a byte came")]
    async fn read(&self, side: Side, from: ReadHalf<'_>, queue: mpsc::Sender<Chunk>) -> Result<(), End> {
        let mut fault = self.fault.subscribe();
        let mut buffer = vec![0; 16 * 1024];
        // Never fails: the writer ends later, or both end.
        while let Ok(place) = queue.reserve().await {
            if fault.borrow_and_update().stalls(side) {
                let _ = fault.changed().await;
                continue;
            }
            tokio::select! {
                biased;
                _ = fault.changed() => continue,
                ready = from.readable() => ready?,
            }
            match from.try_read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => place.send((Instant::now(), buffer[..read].to_vec())),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn write(
        &self,
        side: Side,
        mut to: WriteHalf<'_>,
        mut queue: mpsc::Receiver<Chunk>,
    ) -> Result<(), End> {
        let mut fault = self.fault.subscribe();
        let mut commands = Commands::default();
        while let Some((came, chunk)) = queue.recv().await {
            let mut rest = &chunk[..];
            while !rest.is_empty() {
                let now = *fault.borrow_and_update();
                if now.stalls(side) {
                    let _ = fault.changed().await;
                    continue;
                }
                let wait = match now {
                    Fault::Delay(delay) => delay.saturating_sub(came.elapsed()),
                    Fault::Drip { every, .. } => every,
                    _ => Duration::ZERO,
                };
                let turn = async {
                    if !wait.is_zero() {
                        tokio::time::sleep(wait).await;
                    }
                    to.writable().await
                };
                tokio::select! {
                    biased;
                    _ = fault.changed() => continue,
                    ready = turn => ready?,
                }
                let most = match now {
                    Fault::Drip { bytes, .. } => bytes.max(1),
                    Fault::CutAfterBytes(left) if side == Side::Requests => left as usize,
                    Fault::CutAfterCommands(left) if side == Side::Requests => commands.end_of(left, rest),
                    _ => rest.len(),
                };
                let written = match to.try_write(&rest[..most.min(rest.len())]) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                    written => written?,
                };
                let complete = commands.read(&rest[..written]);
                rest = &rest[written..];
                self.count(side, written, complete)?;
            }
        }
        to.shutdown().await?;
        Ok(())
    }

    /// What was passed; whether that was the last before a cut.
    fn count(&self, side: Side, bytes: usize, commands: u64) -> Result<(), End> {
        let counter = if side == Side::Requests { &self.requested } else { &self.answered };
        counter.fetch_add(bytes as u64, Ordering::SeqCst);
        if side == Side::Answers {
            return Ok(());
        }
        let now = *self.fault.borrow();
        let next = match now {
            Fault::CutAfterBytes(left) => Fault::CutAfterBytes(left - bytes as u64),
            Fault::CutAfterCommands(left) => Fault::CutAfterCommands(left - commands),
            _ => return Ok(()),
        };
        let cut = matches!(next, Fault::CutAfterBytes(0) | Fault::CutAfterCommands(0));
        self.fault.send_if_modified(|fault| {
            *fault = if cut { Fault::None } else { next };
            *fault != now
        });
        if cut { Err(End::Cut) } else { Ok(()) }
    }
}

/// When it came, and what.
type Chunk = (Instant, Vec<u8>);

fn close<const N: usize>(reset: bool, streams: [TcpStream; N]) {
    for stream in streams {
        if reset {
            let _ = stream.set_zero_linger();
        }
    }
}
