//! One connection: what has arrived is answered in its order, what decides in as few calls as may be.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;

use slidegate::{Clock, Decision, Error, Fault, Request, Settled};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::answers::{Answers, Shown};
use super::asked::{self, Asked, Shape};
use super::client::{Client, Then};
use super::{Door, Name, words};
use crate::listen::{Stop, Stream, part};
use crate::tls::Protocol;
use crate::within::within;

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
    door: &Door,
    stream: &mut S,
    peer: SocketAddr,
    stop: &Stop,
) -> io::Result<()> {
    let limits = door.gate.limits;
    let mut stopping = stop.clone();
    let mut stopped = pin!(stopping.changed());
    let mut timer = pin!(tokio::time::sleep(limits.head));
    // When what is waited for began to be: the rest of a command, or the next one.
    let mut since = door.clock.now();
    let mut half = false;
    let mut arrived: Vec<u8> = Vec::with_capacity(TOGETHER);
    let client = Client::new(door.next_id(), peer, &door.gate.access);
    let mut connection = Connection { door, stream, client, answers: Answers::default() };
    loop {
        if arrived.len() == arrived.capacity() {
            // Twice as much, each time so much has really come.
            arrived.reserve(TOGETHER);
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
        if then == Then::Close || stop.has_changed().unwrap_or(true) {
            part(connection.stream).await;
            return Ok(());
        }
        arrived.drain(..taken);
        if arrived.is_empty() {
            (since, half) = (door.clock.now(), false);
            arrived.shrink_to(TOGETHER);
        } else if taken > 0 || !half {
            (since, half) = (door.clock.now(), true);
            timer.set(tokio::time::sleep(limits.request));
        }
    }
}

struct Connection<'d, S> {
    door: &'d Door,
    stream: &'d mut S,
    client: Client,
    answers: Answers,
}

/// Decisions that are asked for together, and what stood between them.
#[derive(Default)]
struct Batch<'a> {
    requests: Vec<Request<'a>>,
    turns: Vec<Turn>,
}

enum Turn {
    /// The next decision, written so.
    Decision(Shape),
    /// A command that was not one.
    Mistake(Error),
}

impl<S: Stream> Connection<'_, S> {
    /// Answers every whole command of `arrived`. Returns how many bytes they were, and whether more are to come.
    async fn answer(&mut self, arrived: &[u8]) -> io::Result<(usize, Then)> {
        let mut words = Vec::with_capacity(8);
        let mut batch = Batch::default();
        let mut taken = 0;
        let mut then = Then::GoOn;
        while then == Then::GoOn {
            match words::next(&arrived[taken..], self.client.caps(), &mut words) {
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
            let decides = match name {
                Some(Name::Acquire) => Asked::acquire,
                Some(Name::Check) => Asked::check,
                Some(Name::Cell) => Asked::cell,
                Some(Name::Crab) => Asked::crab,
                _ => {
                    self.decide(&mut batch).await;
                    then = self.other(name, first, rest).await;
                    self.send_if_many().await?;
                    continue;
                }
            };
            if !self.client.known {
                self.unknown();
                continue;
            }
            match decides(rest) {
                Ok(Asked { request, shape }) => {
                    if batch.turns.is_empty() && taken == arrived.len() {
                        // The usual one, alone.
                        self.decide_one(request, shape).await;
                        break;
                    }
                    batch.requests.push(request);
                    batch.turns.push(Turn::Decision(shape));
                }
                Err(mistake) => batch.turns.push(Turn::Mistake(mistake)),
            }
            if batch.turns.len() == MAX_BATCH {
                self.decide(&mut batch).await;
                self.send_if_many().await?;
            }
        }
        self.decide(&mut batch).await;
        Ok((taken, then))
    }

    /// Every command that is not one of a batch.
    async fn other(&mut self, name: Option<Name>, first: &[u8], rest: &[&[u8]]) -> Then {
        match name {
            Some(Name::Plain(command)) if self.client.may(command) => {
                return self.client.answer(command, rest, &self.door.gate.access, &mut self.answers);
            }
            _ if !self.client.known => self.unknown(),
            Some(Name::Peek) => match Asked::peek(rest) {
                Ok(Asked { request, shape }) => {
                    let timeout = self.timeout();
                    let deciding = self.door.gate.deciding(Protocol::Resp);
                    let peeked = pin!(deciding.peek(&request));
                    let peeked = in_time(timeout, peeked).await;
                    self.write(shape, peeked);
                }
                Err(mistake) => self.answers.failure(&mistake),
            },
            Some(Name::Settle) => self.settle(rest).await,
            Some(Name::Release) => self.release(rest).await,
            Some(Name::Extend) => self.extend(rest).await,
            _ => self.answers.error("ERR", format_args!("unknown command '{}'", Shown(first))),
        }
        Then::GoOn
    }

    async fn settle(&mut self, words: &[&[u8]]) {
        let timeout = self.timeout();
        let settled = match asked::settlement(&self.door.gate.limiter, words) {
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
        let released = match asked::held(&self.door.gate.limiter, "SG.RELEASE", words) {
            Ok(reservation) => in_time(timeout, pin!(self.door.gate.limiter.release(&reservation))).await,
            Err(mistake) => Err(mistake),
        };
        self.settled(released);
    }

    async fn extend(&mut self, words: &[&[u8]]) {
        let timeout = self.timeout();
        let extended = match asked::held(&self.door.gate.limiter, "SG.EXTEND", words) {
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
        let deciding = self.door.gate.deciding(Protocol::Resp);
        let decided = pin!(deciding.acquire(&request));
        let decided = in_time(timeout, decided).await;
        self.write(shape, decided);
    }

    /// Decides what is in `batch` in one call, and empties it.
    async fn decide(&mut self, batch: &mut Batch<'_>) {
        let timeout = self.timeout();
        let mut decisions = if batch.requests.is_empty() {
            Ok(Vec::new())
        } else {
            let deciding = self.door.gate.deciding(Protocol::Resp);
            let decided = pin!(deciding.acquire_many(&batch.requests));
            in_time(timeout, decided).await
        }
        .map(Vec::into_iter);
        batch.requests.clear();
        for turn in batch.turns.drain(..) {
            match turn {
                Turn::Mistake(mistake) => self.answers.failure(&mistake),
                Turn::Decision(shape) => {
                    let decided = match &mut decisions {
                        Ok(decisions) => decisions.next().unwrap_or_else(|| Err(missing())),
                        Err(error) => Err(error.clone()),
                    };
                    self.write(shape, decided);
                }
            }
        }
    }

    fn write(&mut self, shape: Shape, decided: Result<Decision, Error>) {
        match decided {
            Ok(decision) => shape.write(&self.door.gate.limiter, &decision, &mut self.answers),
            Err(error) => self.answers.failure(&error),
        }
    }

    fn unknown(&mut self) {
        self.answers.error("NOAUTH", "Authentication required.");
    }

    fn timeout(&self) -> Duration {
        self.door.gate.limits.request
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
