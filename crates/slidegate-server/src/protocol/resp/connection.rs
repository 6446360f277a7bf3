//! One connection: what has arrived is answered in its order, what decides in as few calls as may be.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;

use slidegate::{Clock, Decision, Error, Fault, Request, Settled};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::commands::{self, Asked, Shape};
use super::encoder::{Answers, Shown};
use super::parser::Caps;
use super::session::{Client, Plain, Then};
use super::transaction::{Step, Transaction};
use super::{ConnectionHandler, Name, parser};
use crate::common::protocol::Protocol;
use crate::common::timeout::within;
use crate::protocol::connection_slots::ConnectionState;
use crate::protocol::listener::{Stop, Stream, part};

/// What is read at once, unless one command is more. Of an idle connection this is what it costs.
const TOGETHER: usize = 16 << 10;

/// The most decisions in one call to the store.
const MAX_BATCH: usize = 256;

/// Answers of so many bytes are sent before more are made.
const MAX_ANSWERS: usize = 64 << 10;

/// Pools keep connections for minutes: those of clients that may ask idle for so many times as long as HTTP's.
const IDLE: u32 = 10;

/// Answers commands until the connection ends, idles for too long, sends what cannot be read, or `stop` is told.
pub(super) async fn serve<S: Stream>(
    door: &ConnectionHandler,
    stream: &mut S,
    peer: SocketAddr,
    seat: &ConnectionState,
    stop: &Stop,
) -> io::Result<()> {
    let limits = door.gate.settings.limits;
    let mut stopping = stop.clone();
    let mut stopped = pin!(stopping.changed());
    let mut timer = pin!(tokio::time::sleep(limits.head));
    // When what is waited for began to be: the rest of a command or of a transaction, or the next command.
    let mut since = door.clock.now();
    let mut half = false;
    let mut arrived: Vec<u8> = Vec::with_capacity(TOGETHER);
    let client = Client::new(door.next_id(), peer, &door.gate.settings.access);
    let held = door.gate.budget_share();
    let mut connection =
        Connection { door, stream, seat, client, answers: Answers::default(), transaction: None };
    loop {
        if arrived.len() == arrived.capacity() {
            // Twice as much, each time so much has really come.
            if !held.resize(connection.holds(2 * arrived.capacity())) {
                return connection.over_budget().await;
            }
            arrived.reserve_exact(arrived.capacity());
        }
        tokio::select! {
            biased;
            read = connection.stream.read_buf(&mut arrived) => if read? == 0 { return Ok(()) },
            // Nothing has come that is not answered.
            _ = &mut stopped => return Ok(()),
            () = &mut timer => {
                // One timer for all commands: it is moved on when it rings, not with each of them.
                let patience = match half {
                    true => limits.request,
                    false if connection.client.known => limits.head * IDLE,
                    false => limits.head,
                };
                let waited = Duration::from(door.clock.now()).saturating_sub(since.into());
                if waited >= patience {
                    return Ok(());
                }
                timer.set(tokio::time::sleep(patience - waited));
                continue;
            }
        }
        let (taken, then) = connection.answer(&arrived).await?;
        connection.send().await?;
        let now = door.clock.now();
        if taken > 0 {
            seat.end(now);
        }
        if then == Then::Close || stop.has_changed().unwrap_or(true) {
            part(connection.stream).await;
            return Ok(());
        }
        arrived.drain(..taken);
        if arrived.is_empty() {
            arrived.shrink_to(TOGETHER);
        }
        if !held.resize(connection.holds(arrived.capacity())) {
            return connection.over_budget().await;
        }
        match &connection.transaction {
            // The whole of it has the time of one command: one more command does not let it last longer.
            Some(transaction) => {
                if !half {
                    timer.set(tokio::time::sleep(limits.request));
                }
                (since, half) = (transaction.begun, true);
            }
            None if arrived.is_empty() => (since, half) = (now, false),
            None if taken > 0 || !half => {
                (since, half) = (now, true);
                timer.set(tokio::time::sleep(limits.request));
            }
            None => {}
        }
    }
}

struct Connection<'d, S> {
    door: &'d ConnectionHandler,
    stream: &'d mut S,
    seat: &'d ConnectionState,
    client: Client,
    answers: Answers,
    /// Begun by MULTI.
    transaction: Option<Transaction>,
}

/// Decisions that are asked for together, and what stood between them.
#[derive(Default)]
struct Batch<'a> {
    requests: Vec<Request<'a>>,
    turns: Vec<Turn>,
}

/// Requests that are decided in as few calls as may be.
struct Parts<'b, 'a> {
    left: &'b [Request<'a>],
    /// The most requests of one call.
    most: usize,
}

impl Parts<'_, '_> {
    /// Decides the next of them; none if there are none.
    async fn decide(
        &mut self,
        door: &ConnectionHandler,
        timeout: Duration,
    ) -> Result<Vec<Result<Decision, Error>>, Error> {
        let deciding = door.gate.instrumented(Protocol::Resp);
        loop {
            let (now, later) = self.left.split_at(self.most.min(self.left.len()));
            let decided = in_time(timeout, pin!(deciding.acquire_many(now))).await;
            match decided {
                // One request alone never meets too many.
                Err(error) if error.is_too_many_checks() && now.len() > 1 => {
                    self.most = now.len().div_ceil(2)
                }
                decided => {
                    self.left = later;
                    return decided;
                }
            }
        }
    }
}

enum Turn {
    /// The next decision, written so.
    Decision(Shape),
    /// A command that was not one.
    Mistake(Error),
}

impl<'a> Batch<'a> {
    fn push(&mut self, asked: Result<Asked<'a>, Error>) {
        self.turns.push(match asked {
            Ok(Asked { request, shape }) => {
                self.requests.push(request);
                Turn::Decision(shape)
            }
            Err(mistake) => Turn::Mistake(mistake),
        });
    }
}

/// Reads the words of a command that decides.
type Decides<'a> = fn(&[&'a [u8]]) -> Result<Asked<'a>, Error>;

fn decides<'a>(name: Name) -> Option<Decides<'a>> {
    Some(match name {
        Name::Acquire => Asked::acquire,
        Name::Check => Asked::check,
        Name::Cell => Asked::cell,
        Name::Crab => Asked::crab,
        _ => return None,
    })
}

/// Whether a command is answered at once within a transaction, and not queued.
fn leaves_transaction(name: Option<Name>) -> bool {
    use Name::{Plain as Other, Transaction};
    matches!(
        name,
        Some(Transaction(Step::Multi | Step::Exec | Step::Discard) | Other(Plain::Quit | Plain::Reset))
    )
}

impl<S: Stream> Connection<'_, S> {
    /// Answers every whole command of `arrived`. Returns how many bytes they were, and whether more are to come.
    async fn answer(&mut self, arrived: &[u8]) -> io::Result<(usize, Then)> {
        let mut words = Vec::with_capacity(8);
        let mut batch = Batch::default();
        let mut taken = 0;
        let mut then = Then::GoOn;
        while then == Then::GoOn {
            let start = taken;
            match parser::next(&arrived[taken..], self.client.caps(), &mut words) {
                Ok(Some(_)) if taken == 0 && !self.seat.begin() => return Ok((0, Then::Close)),
                Ok(Some(length)) => taken += length,
                Ok(None) => break,
                Err(malformed) => {
                    self.decide(&mut batch).await;
                    self.answers.error("ERR", malformed);
                    return Ok((taken, Then::Close));
                }
            }
            let [first, rest @ ..] = words.as_slice() else { continue };
            let name = Name::of(first);
            if self.transaction.is_some() && !leaves_transaction(name) {
                self.queue(name, first, rest, &arrived[start..taken]);
                self.send_if_many().await?;
                continue;
            }
            let Some(decides) = name.and_then(decides) else {
                self.decide(&mut batch).await;
                then = match name {
                    Some(Name::Transaction(step)) if self.client.known => self.step(step, rest).await?,
                    _ => self.other(name, first, rest).await,
                };
                self.send_if_many().await?;
                continue;
            };
            if !self.client.known {
                self.unknown();
                continue;
            }
            match decides(rest) {
                Ok(Asked { request, shape }) if batch.turns.is_empty() && taken == arrived.len() => {
                    // The usual one, alone.
                    self.decide_one(request, shape).await;
                    break;
                }
                asked => batch.push(asked),
            }
            if batch.turns.len() == MAX_BATCH {
                self.decide(&mut batch).await;
                self.send_if_many().await?;
            }
        }
        self.decide(&mut batch).await;
        Ok((taken, then))
    }

    /// Bytes of the budget for what has not arrived whole, if the buffer has this capacity. The buffer and a transaction have
    /// [`TOGETHER`] each for nothing, so that small commands never depend on what other clients hold.
    fn holds(&self, capacity: usize) -> usize {
        let queued = self.transaction.as_ref().map_or(0, |transaction| transaction.bytes.capacity());
        capacity.saturating_sub(TOGETHER) + queued.saturating_sub(TOGETHER)
    }

    /// Denies to wait for the rest of a command, and ends the connection.
    async fn over_budget(&mut self) -> io::Result<()> {
        self.answers.error(
            "UNAVAILABLE",
            "the unfinished commands of all clients hold more than listen.limits.unfinished-bytes: nothing of this \
             one was done, send it again later",
        );
        self.send().await?;
        part(self.stream).await;
        Ok(())
    }

    /// Queues a command of the transaction, and says so.
    fn queue(&mut self, name: Option<Name>, first: &[u8], rest: &[&[u8]], bytes: &[u8]) {
        let Some(transaction) = &mut self.transaction else { return };
        match name.map(|name| transaction.queue(&self.door.gate.limiter, name, rest, bytes)) {
            Some(Ok(())) => self.answers.simple("QUEUED"),
            Some(Err(mistake)) => self.answers.failure(&mistake),
            None => {
                transaction.abort();
                self.unknown_command(first);
            }
        }
    }

    /// Begins or ends a transaction.
    async fn step(&mut self, step: Step, words: &[&[u8]]) -> io::Result<Then> {
        match (step, words) {
            (Step::Watch | Step::Unwatch, _) => self.answers.error(
                "ERR",
                format_args!(
                    "{} is not supported: decisions between MULTI and EXEC are made in one call and need no watch",
                    format!("{step:?}").to_ascii_uppercase()
                ),
            ),
            (_, [_, ..]) => {
                let name = format!("{step:?}").to_ascii_lowercase();
                self.answers.error("ERR", format_args!("wrong number of arguments for '{name}' command"));
            }
            (Step::Multi, []) if self.transaction.is_some() => {
                self.answers.error("ERR", "MULTI calls can not be nested");
            }
            (Step::Multi, []) => {
                self.transaction = Some(Transaction::begin(self.door.clock.now()));
                self.answers.simple("OK");
            }
            (Step::Exec | Step::Discard, []) => match self.transaction.take() {
                None => {
                    let name = format!("{step:?}").to_ascii_uppercase();
                    self.answers.error("ERR", format_args!("{name} without MULTI"));
                }
                Some(_) if step == Step::Discard => self.answers.simple("OK"),
                Some(transaction) if transaction.aborted => {
                    self.answers.error("EXECABORT", "Transaction discarded because of previous errors.");
                }
                Some(transaction) => self.execute(&transaction).await?,
            },
        }
        Ok(Then::GoOn)
    }

    /// Answers the queued commands in one array. Decisions that follow one another are made in one call.
    async fn execute(&mut self, transaction: &Transaction) -> io::Result<()> {
        self.answers.array(transaction.commands);
        let (mut words, mut batch, mut rest) = (Vec::with_capacity(8), Batch::default(), &*transaction.bytes);
        // Each was read before it was queued.
        while let Ok(Some(length)) = parser::next(rest, Caps::KNOWN, &mut words) {
            rest = &rest[length..];
            let [first, arguments @ ..] = words.as_slice() else { continue };
            let name = Name::of(first);
            match name.and_then(decides) {
                Some(decides) => batch.push(decides(arguments)),
                None => {
                    self.decide(&mut batch).await;
                    self.other(name, first, arguments).await;
                    self.send_if_many().await?;
                }
            }
        }
        self.decide(&mut batch).await;
        Ok(())
    }

    /// Every command that is not one of a batch.
    async fn other(&mut self, name: Option<Name>, first: &[u8], rest: &[&[u8]]) -> Then {
        match name {
            Some(Name::Plain(command)) if self.client.may(command) => {
                if command == Plain::Reset {
                    self.transaction = None;
                }
                return self.client.answer(command, rest, &self.door.gate.settings.access, &mut self.answers);
            }
            _ if !self.client.known => self.unknown(),
            Some(Name::Peek) => match Asked::peek(rest) {
                Ok(Asked { request, shape }) => {
                    let timeout = self.timeout();
                    let deciding = self.door.gate.instrumented(Protocol::Resp);
                    let peeked = pin!(deciding.peek(&request));
                    let peeked = in_time(timeout, peeked).await;
                    self.write(shape, peeked);
                }
                Err(mistake) => self.answers.failure(&mistake),
            },
            Some(Name::Settle) => self.settle(rest).await,
            Some(Name::Release) => self.release(rest).await,
            Some(Name::Extend) => self.extend(rest).await,
            _ => self.unknown_command(first),
        }
        Then::GoOn
    }

    async fn settle(&mut self, words: &[&[u8]]) {
        let timeout = self.timeout();
        let settled = match commands::settlement(&self.door.gate.limiter, words) {
            Ok((reservation, permits)) => {
                let settled = pin!(self.door.gate.limiter.settle(&reservation, permits));
                in_time(timeout, settled).await
            }
            Err(mistake) => Err(mistake),
        };
        self.settled(settled);
    }

    async fn release(&mut self, words: &[&[u8]]) {
        let timeout = self.timeout();
        let released = match commands::held(&self.door.gate.limiter, "SG.RELEASE", words) {
            Ok(reservation) => in_time(timeout, pin!(self.door.gate.limiter.release(&reservation))).await,
            Err(mistake) => Err(mistake),
        };
        self.settled(released);
    }

    async fn extend(&mut self, words: &[&[u8]]) {
        let timeout = self.timeout();
        let extended = match commands::held(&self.door.gate.limiter, "SG.EXTEND", words) {
            Ok(reservation) => in_time(timeout, pin!(self.door.gate.limiter.extend(&reservation))).await,
            Err(mistake) => Err(mistake),
        };
        self.settled(extended);
    }

    fn settled(&mut self, settled: Result<Settled, Error>) {
        match settled {
            Ok(Settled::Done) => self.answers.simple("done"),
            Ok(Settled::Already) => self.answers.simple("already"),
            Ok(Settled::Gone) => self.answers.simple("gone"),
            Err(error) => self.answers.failure(&error),
        }
    }

    async fn decide_one(&mut self, request: Request<'_>, shape: Shape) {
        let timeout = self.timeout();
        let deciding = self.door.gate.instrumented(Protocol::Resp);
        let decided = pin!(deciding.acquire(&request));
        let decided = in_time(timeout, decided).await;
        self.write(shape, decided);
    }

    /// Decides what is in `batch` in one call, and empties it. In several, if the requests meet too many limits for one.
    async fn decide(&mut self, batch: &mut Batch<'_>) {
        let mut parts = Parts { left: &batch.requests, most: batch.requests.len() };
        let mut decisions = Ok(Vec::new().into_iter());
        for turn in batch.turns.drain(..) {
            match turn {
                Turn::Mistake(mistake) => self.answers.failure(&mistake),
                Turn::Decision(shape) => {
                    if decisions.as_ref().is_ok_and(|decisions| decisions.len() == 0) {
                        decisions = parts.decide(self.door, self.timeout()).await.map(Vec::into_iter);
                    }
                    let decided = match &mut decisions {
                        Ok(decisions) => decisions.next().unwrap_or_else(|| Err(missing())),
                        Err(error) => Err(error.clone()),
                    };
                    self.write(shape, decided);
                }
            }
        }
        batch.requests.clear();
    }

    fn write(&mut self, shape: Shape, decided: Result<Decision, Error>) {
        match decided {
            Ok(decision) => shape.write(&self.door.gate.limiter, &decision, &mut self.answers),
            Err(error) => self.answers.failure(&error),
        }
    }

    fn unknown_command(&mut self, name: &[u8]) {
        self.answers.error("ERR", format_args!("unknown command '{}'", Shown(name)));
    }

    fn unknown(&mut self) {
        self.answers.error("NOAUTH", "Authentication required.");
    }

    fn timeout(&self) -> Duration {
        self.door.gate.settings.limits.request
    }

    async fn send_if_many(&mut self) -> io::Result<()> {
        if self.answers.bytes.len() < MAX_ANSWERS { Ok(()) } else { self.send().await }
    }

    /// Sends the answers there are. Nothing is read meanwhile: who does not take them is not asked for more.
    async fn send(&mut self) -> io::Result<()> {
        let timeout = self.timeout();
        let Connection { stream, answers, .. } = self;
        let sending = pin!(async {
            stream.write_all(&answers.bytes).await?;
            stream.flush().await
        });
        within(timeout, sending).await.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
        answers.bytes.clear();
        answers.bytes.shrink_to(MAX_ANSWERS);
        Ok(())
    }
}

/// What a store answers, if it does so in time.
async fn in_time<T, F>(timeout: Duration, answer: Pin<&mut F>) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let late = || Err(Error::store(Fault::Timeout, "the store took too long"));
    within(timeout, answer).await.unwrap_or_else(late)
}

fn missing() -> Error {
    Error::unavailable("the store answered fewer requests than it was given")
}
