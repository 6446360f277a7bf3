//! A network that fails as told: a TCP proxy between a client and a real server.
//!
//! Start it in front of a server, give its URL to what is tested, and change the fault at any moment. A fault
//! holds for connections that are open and for those to come. When `set` has returned, nothing more passes that
//! the fault forbids; connections that it ends have ended. It has one thread of its own, so tests may be `async` or not; dropping it closes everything.
//!
//! ```ignore
//! let server = RedisServer::start(Flavour::Redis7);
//! let proxy = FaultProxy::start(server.address());
//! let store = RedisStore::new(&proxy.url()).unwrap();
//! proxy.set(Fault::CutAfterCommands(1)); // the next command is carried out, its answer is lost
//! assert!(store.admit(&[ask]).await.unwrap_err().outcome_unknown());
//! proxy.set(Fault::BlackHole); // connections stay open and silent
//! proxy.set(Fault::None); // and go on where they stopped
//! ```
//!
//! As in TCP, no byte is lost in the middle of a connection: what a fault holds back is passed when it ends,
//! or is lost with the connection. What waits in the proxy is at most 1,024 reads of 4 KiB in each direction;
//! while nothing may pass it does not read, so senders feel it as they would feel a full network.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::fault_wires::Wires;
use crate::redis_server::lasting_port;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
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
    Deny,
    /// The server sees so many bytes more, of all connections; then the connection of the last is closed,
    /// what was complete is carried out, and no answer follows. Once: the fault is then `None`.
    CutAfterBytes(u64),
    /// As `CutAfterBytes`, by whole commands, also those by which a client introduces itself.
    /// Not for TLS, which hides them.
    CutAfterCommands(u64),
}

pub struct FaultProxy {
    address: SocketAddr,
    wires: Arc<Wires>,
    /// None only while it is dropped, which ends the thread.
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// A fault to set, if any, and whom to tell when what came before is done.
type Order = (Option<Fault>, std::sync::mpsc::Sender<()>);

impl FaultProxy {
    /// On a free port, passing everything to the target.
    pub fn start(target: SocketAddr) -> FaultProxy {
        let wires = Arc::new(Wires::to(target));
        let (orders, inbox) = mpsc::unbounded_channel();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let wires = Arc::clone(&wires);
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let listener =
                        Door::bind((Ipv4Addr::LOCALHOST, lasting_port()).into()).listen(BACKLOG).unwrap();
                    tell.send(listener.local_addr().unwrap()).unwrap();
                    run(&wires, Door::Open(listener), inbox).await;
                });
            }
        });
        let address = told.recv().unwrap();
        FaultProxy { address, wires, orders: Some(orders), thread: Some(thread) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Holds when this returns.
    pub fn set(&self, fault: Fault) {
        self.order(Some(fault));
    }

    /// What holds now: `None` again after a cut.
    pub fn fault(&self) -> Fault {
        self.order(None);
        *self.wires.fault.borrow()
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
    pub fn retarget(&self, target: SocketAddr) {
        *self.wires.target() = target;
    }

    /// Connections accepted since the start.
    pub fn connections(&self) -> u64 {
        self.counted(&self.wires.accepted)
    }

    /// Bytes passed to the server since the start.
    pub fn bytes_to_server(&self) -> u64 {
        self.counted(&self.wires.requested)
    }

    /// Bytes passed to clients since the start.
    pub fn bytes_to_client(&self) -> u64 {
        self.counted(&self.wires.answered)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.orders = None;
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the proxy's thread panicked");
    }
}

const BACKLOG: u32 = 1_024;

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

    fn turned(self, open: bool) -> Door {
        match self {
            Door::Open(listener) if !open => {
                let address = listener.local_addr().unwrap();
                drop(listener);
                Door::Shut(Door::bind(address))
            }
            Door::Shut(socket) if open => Door::Open(socket.listen(BACKLOG).unwrap()),
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

/// Until the proxy is dropped; then its connections are, too.
async fn run(wires: &Arc<Wires>, mut door: Door, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some((fault, done)) = order else { return };
                if let Some(fault) = fault {
                    door = door.turned(fault != Fault::Deny);
                    wires.fault.send_replace(fault);
                    if fault.ends_connections() {
                        // Or one that is not awake yet would miss a fault that is soon over.
                        while let Some(ended) = connections.join_next().await {
                            ended.unwrap();
                        }
                    }
                }
                let _ = done.send(());
            }
            client = door.accept() => {
                wires.accepted.fetch_add(1, Ordering::SeqCst);
                connections.spawn(Arc::clone(wires).connection(client));
            }
            Some(ended) = connections.join_next() => ended.unwrap(),
        }
    }
}
