//! Network that fails on demand: a TCP proxy between a client and a real server.
//!
//! A test starts the proxy in front of a server, gives its URL to the code under test, and changes the fault at any
//! moment. A fault applies to open and to new connections. When `set` has returned, the proxy passes nothing that the
//! fault forbids, and connections that the fault ends have ended. The proxy has its own thread, so tests may be `async`
//! or not. Dropping the proxy closes all connections.
//!
//! ```ignore
//! let server = RedisServer::start(Flavour::Redis7);
//! let proxy = FaultProxy::start(server.address());
//! let store = RedisStore::new(&proxy.url()).unwrap();
//! proxy.set(Fault::CutAfterCommands(1)); // the next command is executed, its reply is lost
//! assert!(store.admit(&[checks]).await.unwrap_err().outcome_unknown());
//! proxy.set(Fault::BlackHole); // connections stay open and silent
//! proxy.set(Fault::None); // and go on where they stopped
//! ```
//!
//! As in TCP, no byte is lost in the middle of a connection: bytes that a fault holds back are passed when it ends, or are
//! lost with the connection. The proxy buffers at most 1,024 reads of 4 KiB in each direction. While nothing may pass, it
//! does not read, so senders see the back-pressure of a full network.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::fault::Fault;
use crate::fault_wires::Wires;
use crate::redis_server::lasting_port;

/// TCP proxy with a [`Fault`]. See the top of this file.
pub struct FaultProxy {
    address: SocketAddr,
    wires: Arc<Wires>,
    /// `None` only during drop, which ends the thread.
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// Fault to set, if any, and a channel that is notified when all earlier orders are done.
type Order = (Option<Fault>, std::sync::mpsc::Sender<()>);

impl FaultProxy {
    /// Starts a proxy on a free port that passes everything to the target.
    pub fn start(target: SocketAddr) -> FaultProxy {
        let wires = Arc::new(Wires::to(target));
        let (orders, inbox) = mpsc::unbounded_channel();
        let (address_sender, address_receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let wires = Arc::clone(&wires);
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let listener =
                        Listener::bind((Ipv4Addr::LOCALHOST, lasting_port()).into()).listen(BACKLOG).unwrap();
                    address_sender.send(listener.local_addr().unwrap()).unwrap();
                    run(&wires, Listener::Open(listener), inbox).await;
                });
            }
        });
        let address = address_receiver.recv().unwrap();
        FaultProxy { address, wires, orders: Some(orders), thread: Some(thread) }
    }

    /// Returns the address of the proxy.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL of the proxy for Redis clients.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Sets the fault, which applies when this returns.
    pub fn set(&self, fault: Fault) {
        self.order(Some(fault));
    }

    /// Returns the current fault, which is `None` again after a cut.
    pub fn fault(&self) -> Fault {
        self.order(None);
        *self.wires.fault.borrow()
    }

    fn order(&self, fault: Option<Fault>) {
        let (done, wait) = std::sync::mpsc::channel();
        self.orders.as_ref().unwrap().send((fault, done)).unwrap();
        wait.recv().unwrap();
    }

    /// Reads a counter between two steps of the proxy, so that it includes everything that a client has seen.
    fn counted(&self, counter: &AtomicU64) -> u64 {
        self.order(None);
        counter.load(Ordering::SeqCst)
    }

    /// Sets the target of new connections. Open connections keep their target.
    pub fn retarget(&self, target: SocketAddr) {
        *self.wires.target() = target;
    }

    /// Returns the number of connections accepted since the start.
    pub fn connections(&self) -> u64 {
        self.counted(&self.wires.accepted)
    }

    /// Returns the number of bytes passed to the server since the start.
    pub fn bytes_to_server(&self) -> u64 {
        self.counted(&self.wires.requested)
    }

    /// Returns the number of bytes passed to clients since the start.
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

/// Socket of the proxy. The port is bound in both states, so that no other process gets it meanwhile.
enum Listener {
    Open(TcpListener),
    Closed(TcpSocket),
}

impl Listener {
    fn bind(address: SocketAddr) -> TcpSocket {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        socket
    }

    fn set_open(self, open: bool) -> Listener {
        match self {
            Listener::Open(listener) if !open => {
                let address = listener.local_addr().unwrap();
                drop(listener);
                Listener::Closed(Listener::bind(address))
            }
            Listener::Closed(socket) if open => Listener::Open(socket.listen(BACKLOG).unwrap()),
            unchanged => unchanged,
        }
    }

    async fn accept(&self) -> TcpStream {
        match self {
            Listener::Open(listener) => listener.accept().await.unwrap().0,
            Listener::Closed(_) => std::future::pending().await,
        }
    }
}

/// Runs the proxy until it is dropped, which drops its connections too.
async fn run(wires: &Arc<Wires>, mut listener: Listener, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some((fault, done)) = order else { return };
                if let Some(fault) = fault {
                    listener = listener.set_open(fault != Fault::Deny);
                    wires.fault.send_replace(fault);
                    if fault.ends_connections() {
                        // Lets every task run, so that a task that is not awake yet does not miss a short fault.
                        while let Some(ended) = connections.join_next().await {
                            ended.unwrap();
                        }
                    }
                }
                let _ = done.send(());
            }
            client = listener.accept() => {
                wires.accepted.fetch_add(1, Ordering::SeqCst);
                connections.spawn(Arc::clone(wires).connection(client));
            }
            Some(ended) = connections.join_next() => ended.unwrap(),
        }
    }
}
