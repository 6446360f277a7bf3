//! Forwarding of bytes through the fault proxy: one task for each connection.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};

use crate::fault::Fault;
use crate::resp_commands::Commands;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Requests,
    Answers,
}

impl Fault {
    fn stalls(self, side: Side) -> bool {
        match self {
            Fault::BlackHole | Fault::Reset | Fault::Deny => true,
            Fault::HalfOpen => side == Side::Answers,
            _ => false,
        }
    }

    pub(crate) fn ends_connections(self) -> bool {
        matches!(self, Fault::Reset | Fault::Deny)
    }
}

/// State that the connections of a proxy share.
pub(crate) struct Wires {
    /// Current fault. Only the thread of the proxy changes it, so a task that has read it may act until its next wait.
    pub fault: watch::Sender<Fault>,
    target: Mutex<SocketAddr>,
    pub accepted: AtomicU64,
    pub requested: AtomicU64,
    pub answered: AtomicU64,
}

/// Reason for the end of a connection.
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

impl Wires {
    pub(crate) fn to(target: SocketAddr) -> Wires {
        Wires {
            fault: watch::Sender::new(Fault::None),
            target: Mutex::new(target),
            accepted: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        }
    }

    pub(crate) fn target(&self) -> MutexGuard<'_, SocketAddr> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forwards between a client and the target until one of them or a fault ends the connection.
    pub(crate) async fn connection(self: Arc<Self>, mut client: TcpStream) {
        // During a black hole the proxy does not connect to the target.
        let first = *self.fault.subscribe().wait_for(|fault| *fault != Fault::BlackHole).await.unwrap();
        if first.ends_connections() {
            return close(first == Fault::Reset, [client]);
        }
        let target = *self.target();
        let Ok(mut server) = TcpStream::connect(target).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let mut fault = self.fault.subscribe();
        let ended = fault.wait_for(|fault| fault.ends_connections());
        let mut ended = std::pin::pin!(ended);
        let end = {
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            let requests = self.pass(Side::Requests, from_client, to_server);
            let answers = self.pass(Side::Answers, from_server, to_client);
            let passed = async { tokio::try_join!(requests, answers).err().unwrap_or(End::Closed) };
            tokio::select! {
                biased;
                fault = &mut ended => match *fault.unwrap() {
                    Fault::Reset => End::Reset,
                    _ => End::Closed,
                },
                end = passed => end,
            }
        };
        if let End::Cut = end {
            drop(client);
            // The server may still execute commands: it reads to the end, and the proxy discards its replies.
            let _ = server.shutdown().await;
            let mut void = [0; 4096];
            let hang_up = async { while let Ok(1..) = server.read(&mut void).await {} };
            tokio::select! {
                _ = ended => {}
                _ = tokio::time::timeout(Duration::from_secs(10), hang_up) => {}
            }
        } else {
            close(matches!(end, End::Reset), [client, server]);
        }
    }

    /// Forwards one direction until its sender closes it.
    async fn pass(&self, side: Side, from: ReadHalf<'_>, to: WriteHalf<'_>) -> Result<(), End> {
        let (sender, receiver) = mpsc::channel(1_024);
        tokio::try_join!(self.read(side, from, sender), self.write(side, to, receiver))?;
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "a delay counts from the arrival of a byte")]
    async fn read(&self, side: Side, from: ReadHalf<'_>, queue: mpsc::Sender<Chunk>) -> Result<(), End> {
        let mut fault = self.fault.subscribe();
        let mut buffer = vec![0; 4 * 1_024];
        // `reserve` never fails: the writer ends later, or both end.
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
                if *self.fault.borrow() != now {
                    continue;
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

    /// Counts the passed bytes and commands. Returns an error if they were the last before a cut.
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

/// Arrival time and bytes of one read.
type Chunk = (Instant, Vec<u8>);

fn close<const N: usize>(reset: bool, streams: [TcpStream; N]) {
    for stream in streams {
        if reset {
            let _ = stream.set_zero_linger();
        }
    }
}
