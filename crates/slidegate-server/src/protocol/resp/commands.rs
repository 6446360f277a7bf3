//! Commands that decide: their words, and the numbers they are answered with.

use std::time::Duration;

use slidegate::{Decision, Error, Limit, Limiter, Mode, Request, RequestId, Reservation, Store};

use super::encoder::{Answers, Shown};

/// How to ask with a limit of one's own.
const ACQUIRE: &str = "resource limit window-ms [permits] [RESERVE] [ID id]";

/// How to ask by the rules.
const CHECK: &str = "[PERMITS n] [RESERVE] [ID id] attribute value [attribute value ...]";

/// A request, and how its decision is written.
pub(super) struct Asked<'a> {
    pub(super) request: Request<'a>,
    pub(super) shape: Shape,
}

/// Whose numbers a decision is written in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Ours: allowed, limit, remaining, retry after and reset after in milliseconds; and the reservation.
    AdHocLimit { reserve: bool },
    /// redis-cell's: limited, limit, remaining, retry after and reset after in seconds.
    Cell(Bucket),
    /// throttlecrab's: allowed, limit, remaining, reset after and retry after in seconds.
    Crab(Bucket),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// The most that it has.
    limit: u64,
    /// Whether more is asked for than that. It is denied, so all that is asked of the store is how things are.
    never: bool,
}

impl<'a> Asked<'a> {
    /// `SG.ACQUIRE`, without that word.
    pub(super) fn acquire(words: &[&'a [u8]]) -> Result<Self, Error> {
        let [resource, limit, window, rest @ ..] = words else { return Err(usage("SG.ACQUIRE", ACQUIRE)) };
        let window = Duration::from_millis(number("window-ms", window)?);
        let request = Request::resource(text("resource", resource)?);
        let request = request.limit(number("limit", limit)?).window(window);
        let (permits, rest) = match rest {
            [first, rest @ ..] if first.first().is_some_and(u8::is_ascii_digit) => {
                (number("permits", first)?, rest)
            }
            _ => (1, rest),
        };
        let (options, rest) = Options::read(rest)?;
        match rest {
            [] => Ok(options.of(request.permits(permits))),
            [word, ..] => Err(Error::invalid(format!("{} is no option: SG.ACQUIRE {ACQUIRE}", Shown(word)))),
        }
    }

    /// `SG.CHECK`, without that word.
    pub(super) fn check(words: &[&'a [u8]]) -> Result<Self, Error> {
        let (options, attributes) = Options::read(words)?;
        if attributes.is_empty() || attributes.len() % 2 != 0 {
            return Err(usage("SG.CHECK", CHECK));
        }
        let mut wrong = None;
        let request = Request::new(attributes.chunks_exact(2).map_while(|pair| {
            let read = text("attribute", pair[0]).and_then(|name| Ok((name, text("value", pair[1])?)));
            read.map_err(|error| wrong = Some(error)).ok()
        }));
        match wrong {
            None => Ok(options.of(request)),
            Some(error) => Err(error),
        }
    }

    /// `SG.PEEK`, without that word: another command without its `SG.`.
    pub(super) fn peek(words: &[&'a [u8]]) -> Result<Self, Error> {
        match words {
            [what, rest @ ..] if what.eq_ignore_ascii_case(b"ACQUIRE") => Asked::acquire(rest),
            [what, rest @ ..] if what.eq_ignore_ascii_case(b"CHECK") => Asked::check(rest),
            _ => Err(Error::invalid(format!("SG.PEEK takes ACQUIRE {ACQUIRE}, or CHECK {CHECK}"))),
        }
    }

    /// `CL.THROTTLE`, without that word.
    pub(super) fn cell(words: &[&'a [u8]]) -> Result<Self, Error> {
        // Of redis-cell, a burst comes on top of the one that is always allowed.
        let (request, bucket) = throttle("CL.THROTTLE", words, 1)?;
        Ok(Asked { request, shape: Shape::Cell(bucket) })
    }

    /// `THROTTLE`, without that word.
    pub(super) fn crab(words: &[&'a [u8]]) -> Result<Self, Error> {
        let (request, bucket) = throttle("THROTTLE", words, 0)?;
        Ok(Asked { request, shape: Shape::Crab(bucket) })
    }
}

/// What may stand after or before what is asked about. In upper case: `id` is an attribute's name.
#[derive(Default)]
struct Options {
    permits: Option<u64>,
    reserve: bool,
    id: Option<RequestId>,
}

impl Options {
    /// The options that `words` starts with, and the other words.
    fn read<'w, 'a>(mut words: &'w [&'a [u8]]) -> Result<(Self, &'w [&'a [u8]]), Error> {
        let mut options = Options::default();
        loop {
            words = match words {
                [b"PERMITS", permits, rest @ ..] => {
                    options.permits = Some(number("PERMITS", permits)?);
                    rest
                }
                [b"ID", id, rest @ ..] => {
                    options.id = Some(RequestId::new(text("ID", id)?)?);
                    rest
                }
                [b"RESERVE", rest @ ..] => {
                    options.reserve = true;
                    rest
                }
                rest => return Ok((options, rest)),
            };
        }
    }

    fn of(self, mut request: Request<'_>) -> Asked<'_> {
        if let Some(permits) = self.permits {
            request = request.permits(permits);
        }
        if let Some(id) = self.id {
            request = request.id(id);
        }
        Asked { request, shape: Shape::AdHocLimit { reserve: self.reserve } }
    }
}

fn throttle<'a>(name: &str, words: &[&'a [u8]], extra: u64) -> Result<(Request<'a>, Bucket), Error> {
    let (key, burst, count, period, quantity) = match words {
        [key, burst, count, period] => (key, burst, count, period, 1),
        [key, burst, count, period, quantity] => (key, burst, count, period, number("quantity", quantity)?),
        _ => return Err(usage(name, "key max_burst count_per_period period [quantity]")),
    };
    let limit = number("max_burst", burst)?.saturating_add(extra);
    let window = Duration::from_secs(number("period", period)?);
    let request = Request::resource(text("key", key)?).limit(number("count_per_period", count)?);
    let never = quantity > limit;
    let request = request.window(window).burst(limit).permits(if never { 0 } else { quantity });
    Ok((request, Bucket { limit, never }))
}

/// `SG.SETTLE`, without that word.
pub(super) fn settlement<S: Store>(
    limiter: &Limiter<S>,
    words: &[&[u8]],
) -> Result<(Reservation, u64), Error> {
    match words {
        [reservation, permits] => {
            Ok((limiter.verify(text("reservation", reservation)?)?, number("permits", permits)?))
        }
        _ => Err(usage("SG.SETTLE", "reservation permits")),
    }
}

/// What `SG.RELEASE` and `SG.EXTEND` take, without those words.
pub(super) fn held<S: Store>(
    limiter: &Limiter<S>,
    name: &str,
    words: &[&[u8]],
) -> Result<Reservation, Error> {
    match words {
        [reservation] => limiter.verify(text("reservation", reservation)?),
        _ => Err(usage(name, "reservation")),
    }
}

impl Shape {
    pub(super) fn write<S: Store>(self, limiter: &Limiter<S>, decision: &Decision, answers: &mut Answers) {
        match self {
            Shape::AdHocLimit { reserve } => own(decision, reserve.then_some(limiter), answers),
            Shape::Cell(bucket) => {
                let numbers = bucket.read(decision);
                let limited = i64::from(!numbers.allowed);
                let retry = if numbers.allowed || bucket.never { -1 } else { numbers.retry };
                write(answers, [limited, numbers.limit, numbers.remaining, retry, numbers.reset]);
            }
            Shape::Crab(bucket) => {
                let numbers = bucket.read(decision);
                let allowed = i64::from(numbers.allowed);
                write(answers, [allowed, numbers.limit, numbers.remaining, numbers.reset, numbers.retry]);
            }
        }
    }
}

/// With the reservation if there is a limiter to sign it.
fn own<S: Store>(decision: &Decision, reserve: Option<&Limiter<S>>, answers: &mut Answers) {
    answers.array(if reserve.is_some() { 6 } else { 5 });
    let (limit, remaining, reset) = match tightest(decision) {
        Some(limit) => {
            (signed(limit.limit()), signed(limit.remaining()), signed(limit.reset_after().ceil_millis()))
        }
        // No rule applies.
        None => (-1, -1, 0),
    };
    let retry = signed(decision.retry_after().ceil_millis());
    for number in [i64::from(decision.allowed()), limit, remaining, retry, reset] {
        answers.integer(number);
    }
    if let Some(limiter) = reserve {
        match limiter.sign_decision(decision) {
            Some(reservation) => answers.bulk(reservation.as_bytes()),
            None => answers.nil(),
        }
    }
}

/// The limit that denied, or has least left. Only enforced rules show: a shadow is not the client's business.
fn tightest(decision: &Decision) -> Option<Limit<'_>> {
    let enforced = || decision.limits().filter(|limit| limit.mode() == Mode::Enforce);
    let denied = enforced().find(|limit| limit.outcome().denies());
    denied.or_else(|| enforced().min_by_key(|limit| limit.remaining()))
}

/// Of a bucket, after a decision; times in seconds, rounded up.
struct Numbers {
    allowed: bool,
    limit: i64,
    remaining: i64,
    /// 0 if it was allowed; if it never will be, the time to fill.
    retry: i64,
    reset: i64,
}

impl Bucket {
    fn read(self, decision: &Decision) -> Numbers {
        let limit = decision.limits().next();
        let retry = match limit {
            Some(limit) if self.never => limit.quota().horizon(),
            _ => decision.retry_after(),
        };
        Numbers {
            allowed: decision.allowed() && !self.never,
            limit: signed(self.limit),
            remaining: signed(limit.map_or(self.limit, |limit| limit.remaining())),
            retry: signed(retry.ceil_secs()),
            reset: signed(limit.map_or(0, |limit| limit.reset_after().ceil_secs())),
        }
    }
}

fn write(answers: &mut Answers, numbers: [i64; 5]) {
    answers.array(numbers.len());
    for number in numbers {
        answers.integer(number);
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn usage(name: &str, words: &str) -> Error {
    Error::invalid(format!("wrong number of arguments: {name} {words}"))
}

fn text<'a>(what: &str, word: &'a [u8]) -> Result<&'a str, Error> {
    str::from_utf8(word).map_err(|_| Error::invalid(format!("{what} must be UTF-8")))
}

fn number(what: &str, word: &[u8]) -> Result<u64, Error> {
    let digits = (1..=19).contains(&word.len()) && word.iter().all(u8::is_ascii_digit);
    if !digits {
        return Err(Error::invalid(format!("{what} must be a whole number, not '{}'", Shown(word))));
    }
    Ok(word.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use slidegate::{ManualClock, MemoryStore, Micros, Rules};

    use super::*;

    /// What commands are answered at given milliseconds: `(ms, command, numbers)`.
    async fn told(cases: &[(u64, &str, [i64; 5])]) {
        let start = Micros::from_secs(1_000);
        let clock = ManualClock::at(start);
        let limiter = Limiter::new(MemoryStore::with_clock(clock.clone(), 100), Rules::new([]).unwrap());
        for (at, command, numbers) in cases {
            clock.set(Micros::new(start.get() + at * 1_000));
            let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
            let read = if words[0] == b"THROTTLE" { Asked::crab } else { Asked::cell };
            let Asked { request, shape } = read(&words[1..]).unwrap();
            let decision = limiter.acquire(request).await.unwrap();
            let (mut got, mut expected) = (Answers::default(), Answers::default());
            shape.write(&limiter, &decision, &mut got);
            write(&mut expected, *numbers);
            let [got, expected] = [got, expected].map(|answers| String::from_utf8(answers.bytes).unwrap());
            assert_eq!(got, expected, "{command} at {at} ms");
        }
    }

    /// The cases of redis-cell's README and of its own tests, its times rounded up to seconds as its command does.
    #[tokio::test]
    async fn redis_cell_would_say_the_same() {
        told(&[(0, "CL.THROTTLE user123 15 30 60", [0, 16, 15, -1, 2])]).await;
        told(&[
            (0, "CL.THROTTLE user123 0 1 2 1", [0, 1, 0, -1, 2]),
            (0, "CL.THROTTLE user123 0 1 2 1", [1, 1, 0, 2, 2]),
            (2_000, "CL.THROTTLE user123 0 1 2 1", [0, 1, 0, -1, 2]),
        ])
        .await;
        told(&[
            // More than there can ever be.
            (0, "CL.THROTTLE foo 4 1 1 6", [1, 5, 5, -1, 0]),
            (0, "CL.THROTTLE foo 4 1 1 1", [0, 5, 4, -1, 1]),
            (0, "CL.THROTTLE foo 4 1 1 1", [0, 5, 3, -1, 2]),
            (0, "CL.THROTTLE foo 4 1 1", [0, 5, 2, -1, 3]),
            (0, "CL.THROTTLE foo 4 1 1", [0, 5, 1, -1, 4]),
            (0, "CL.THROTTLE foo 4 1 1", [0, 5, 0, -1, 5]),
            (0, "CL.THROTTLE foo 4 1 1", [1, 5, 0, 1, 5]),
            (3_000, "CL.THROTTLE foo 4 1 1", [0, 5, 2, -1, 3]),
            (3_100, "CL.THROTTLE foo 4 1 1", [0, 5, 1, -1, 4]),
            (4_000, "CL.THROTTLE foo 4 1 1", [0, 5, 1, -1, 4]),
            (8_000, "CL.THROTTLE foo 4 1 1", [0, 5, 4, -1, 1]),
            (9_500, "CL.THROTTLE foo 4 1 1", [0, 5, 4, -1, 1]),
            // Nothing only looks.
            (9_500, "CL.THROTTLE foo 4 1 1 0", [0, 5, 4, -1, 1]),
            (9_500, "CL.THROTTLE foo 4 1 1 2", [0, 5, 2, -1, 3]),
            (9_500, "CL.THROTTLE foo 4 1 1 5", [1, 5, 2, 3, 3]),
        ])
        .await;
    }

    /// Allowed first, the burst is all there is, and the last two numbers change places.
    #[tokio::test]
    async fn throttlecrab_has_its_own_numbers() {
        told(&[
            (0, "THROTTLE user:123 2 100 60", [1, 2, 1, 1, 0]),
            (0, "THROTTLE user:123 2 1 60", [1, 2, 0, 120, 0]),
            (0, "THROTTLE user:123 2 1 60", [0, 2, 0, 120, 60]),
            (0, "THROTTLE user:123 2 1 60 0", [1, 2, 0, 120, 0]),
            // Never: so long a full bucket takes to fill.
            (0, "THROTTLE user:123 2 1 60 3", [0, 2, 0, 120, 120]),
            (60_000, "THROTTLE user:123 2 1 60", [1, 2, 0, 120, 0]),
        ])
        .await;
    }
}
