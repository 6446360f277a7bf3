//! Commands that decide: parsing of their arguments, and the integers of their replies.

use std::time::Duration;

use slidegate::http::headers;
use slidegate::{Decision, Error, Limiter, Micros, Request, RequestId, Store};

use super::CommandName;
use super::encoder::{Excerpt, ReplyBuffer};
use crate::telemetry::stats::ReservationChange;

/// Arguments of `SG.ACQUIRE`, which carries its own limit.
const ACQUIRE_USAGE: &str = "resource limit window-ms [permits] [RESERVE] [ID id]";

/// Arguments of `SG.CHECK`, which is decided by the rules.
const CHECK_USAGE: &str = "[PERMITS n] [RESERVE] [ID id] attribute value [attribute value ...]";

/// Request of a command, and the format of its reply.
pub(super) struct DecisionCommand<'a> {
    pub(super) request: Request<'a>,
    pub(super) format: ReplyFormat,
}

/// Format of the reply to a command that decides.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReplyFormat {
    /// Slidegate's format: allowed, limit, remaining, retry after and reset after in milliseconds; with
    /// `reserve`, also the reservation.
    Slidegate { reserve: bool },
    /// redis-cell's format: limited, limit, remaining, retry after and reset after in seconds.
    RedisCell(Bucket),
    /// throttlecrab's format: allowed, limit, remaining, reset after and retry after in seconds.
    Throttlecrab(Bucket),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// Capacity of the bucket.
    limit: u64,
    /// True if the command requests more than the capacity. The command is denied, and the store only returns the
    /// current state.
    exceeds_limit: bool,
}

impl<'a> DecisionCommand<'a> {
    /// Parses the arguments of `SG.ACQUIRE`.
    pub(super) fn acquire(words: &[&'a [u8]]) -> Result<Self, Error> {
        let [resource, limit, window, rest @ ..] = words else {
            return Err(usage_error("SG.ACQUIRE", ACQUIRE_USAGE));
        };
        let window = Duration::from_millis(parse_number("window-ms", window)?);
        let request = Request::resource(parse_text("resource", resource)?);
        let request = request.limit(parse_number("limit", limit)?).window(window);
        let (permits, rest) = match rest {
            [first, rest @ ..] if first.first().is_some_and(u8::is_ascii_digit) => {
                (parse_number("permits", first)?, rest)
            }
            _ => (1, rest),
        };
        let (options, rest) = Options::parse(rest)?;
        match rest {
            [] => Ok(options.apply_to(request.permits(permits))),
            [word, ..] => {
                Err(Error::invalid(format!("{} is not an option: SG.ACQUIRE {ACQUIRE_USAGE}", Excerpt(word))))
            }
        }
    }

    /// Parses the arguments of `SG.CHECK`.
    pub(super) fn check(words: &[&'a [u8]]) -> Result<Self, Error> {
        let (options, attributes) = Options::parse(words)?;
        if attributes.is_empty() || attributes.len() % 2 != 0 {
            return Err(usage_error("SG.CHECK", CHECK_USAGE));
        }
        let mut invalid = None;
        let request = Request::new(attributes.chunks_exact(2).map_while(|pair| {
            let read =
                parse_text("attribute", pair[0]).and_then(|name| Ok((name, parse_text("value", pair[1])?)));
            read.map_err(|error| invalid = Some(error)).ok()
        }));
        match invalid {
            None => Ok(options.apply_to(request)),
            Some(error) => Err(error),
        }
    }

    /// Parses the arguments of `SG.PEEK`: the name of another command without its `SG.` prefix, and the
    /// arguments of that command.
    pub(super) fn peek(words: &[&'a [u8]]) -> Result<Self, Error> {
        match words {
            [subcommand, rest @ ..] if subcommand.eq_ignore_ascii_case(b"ACQUIRE") => {
                DecisionCommand::acquire(rest)
            }
            [subcommand, rest @ ..] if subcommand.eq_ignore_ascii_case(b"CHECK") => {
                DecisionCommand::check(rest)
            }
            _ => {
                Err(Error::invalid(format!("SG.PEEK takes ACQUIRE {ACQUIRE_USAGE}, or CHECK {CHECK_USAGE}")))
            }
        }
    }

    /// Parses the arguments of `CL.THROTTLE`.
    pub(super) fn redis_cell(words: &[&'a [u8]]) -> Result<Self, Error> {
        // In redis-cell, the capacity of the bucket is the burst plus 1.
        let (request, bucket) = parse_throttle("CL.THROTTLE", words, 1)?;
        Ok(DecisionCommand { request, format: ReplyFormat::RedisCell(bucket) })
    }

    /// Parses the arguments of `THROTTLE`.
    pub(super) fn throttlecrab(words: &[&'a [u8]]) -> Result<Self, Error> {
        let (request, bucket) = parse_throttle("THROTTLE", words, 0)?;
        Ok(DecisionCommand { request, format: ReplyFormat::Throttlecrab(bucket) })
    }
}

/// Options of `SG.ACQUIRE` and `SG.CHECK`. Option names are upper case only, so that `id` can be the name of an
/// attribute.
#[derive(Default)]
struct Options {
    permits: Option<u64>,
    reserve: bool,
    id: Option<RequestId>,
}

impl Options {
    /// Parses the options that `words` starts with. Returns them and the remaining words.
    fn parse<'w, 'a>(mut words: &'w [&'a [u8]]) -> Result<(Self, &'w [&'a [u8]]), Error> {
        let mut options = Options::default();
        loop {
            words = match words {
                [b"PERMITS", permits, rest @ ..] => {
                    options.permits = Some(parse_number("PERMITS", permits)?);
                    rest
                }
                [b"ID", id, rest @ ..] => {
                    options.id = Some(RequestId::new(parse_text("ID", id)?)?);
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

    fn apply_to(self, mut request: Request<'_>) -> DecisionCommand<'_> {
        if let Some(permits) = self.permits {
            request = request.permits(permits);
        }
        if let Some(id) = self.id {
            request = request.id(id);
        }
        DecisionCommand { request, format: ReplyFormat::Slidegate { reserve: self.reserve } }
    }
}

fn parse_throttle<'a>(name: &str, words: &[&'a [u8]], extra: u64) -> Result<(Request<'a>, Bucket), Error> {
    let (key, burst, count, period, quantity) = match words {
        [key, burst, count, period] => (key, burst, count, period, 1),
        [key, burst, count, period, quantity] => {
            (key, burst, count, period, parse_number("quantity", quantity)?)
        }
        _ => return Err(usage_error(name, "key max_burst count_per_period period [quantity]")),
    };
    let limit = parse_number("max_burst", burst)?.saturating_add(extra);
    let window = Duration::from_secs(parse_number("period", period)?);
    let request = Request::resource(parse_text("key", key)?).limit(parse_number("count_per_period", count)?);
    let exceeds_limit = quantity > limit;
    let request = request.window(window).burst(limit).permits(if exceeds_limit { 0 } else { quantity });
    Ok((request, Bucket { limit, exceeds_limit }))
}

/// Parses the arguments of `SG.SETTLE`, `SG.RELEASE` or `SG.EXTEND`. Returns the text of the reservation, and
/// the change to make.
pub(super) fn parse_change<'a>(
    name: CommandName,
    words: &[&'a [u8]],
) -> Result<(&'a str, ReservationChange), Error> {
    let (reservation, change) = match (name, words) {
        (CommandName::Settle, [reservation, permits]) => {
            (reservation, ReservationChange::Settle { permits: parse_number("permits", permits)? })
        }
        (CommandName::Release, [reservation]) => (reservation, ReservationChange::Release),
        (CommandName::Extend, [reservation]) => (reservation, ReservationChange::Extend),
        (CommandName::Settle, _) => return Err(usage_error(name.as_str(), "reservation permits")),
        _ => return Err(usage_error(name.as_str(), "reservation")),
    };
    Ok((parse_text("reservation", reservation)?, change))
}

impl ReplyFormat {
    pub(super) fn write<S: Store>(
        self,
        limiter: &Limiter<S>,
        decision: &Decision,
        replies: &mut ReplyBuffer,
    ) {
        let numbers = match self {
            ReplyFormat::Slidegate { .. } => {
                let (limit, remaining, reset) = match headers::tightest(decision) {
                    Some(limit) => (signed(limit.limit()), signed(limit.remaining()), limit.reset_after()),
                    // No rule matches.
                    None => (-1, -1, Micros::ZERO),
                };
                let [retry, reset] = [decision.retry_after(), reset].map(|wait| signed(wait.ceil_millis()));
                [i64::from(decision.allowed()), limit, remaining, retry, reset]
            }
            ReplyFormat::RedisCell(bucket) => {
                let (allowed, [limit, remaining, retry, reset]) = bucket.state_after(decision);
                let retry = if allowed || bucket.exceeds_limit { -1 } else { retry };
                [i64::from(!allowed), limit, remaining, retry, reset]
            }
            ReplyFormat::Throttlecrab(bucket) => {
                let (allowed, [limit, remaining, retry, reset]) = bucket.state_after(decision);
                [i64::from(allowed), limit, remaining, reset, retry]
            }
        };
        let reserve = matches!(self, ReplyFormat::Slidegate { reserve: true });
        replies.array(numbers.len() + usize::from(reserve));
        numbers.into_iter().for_each(|number| replies.integer(number));
        if reserve {
            replies.reservation(limiter, decision);
        }
    }
}

impl Bucket {
    /// Returns whether the request was allowed, and the limit, the remaining permits, the wait and the time until the bucket is
    /// full, in seconds, rounded up. The wait is 0 if the request was allowed, and the time to fill an empty bucket if it can never
    /// be allowed.
    fn state_after(self, decision: &Decision) -> (bool, [i64; 4]) {
        let limit = decision.limits().next();
        let retry = match limit {
            Some(limit) if self.exceeds_limit => limit.quota().horizon(),
            _ => decision.retry_after(),
        };
        let remaining = limit.map_or(self.limit, |limit| limit.remaining());
        let reset = limit.map_or(0, |limit| limit.reset_after().ceil_secs());
        let allowed = decision.allowed() && !self.exceeds_limit;
        (allowed, [self.limit, remaining, retry.ceil_secs(), reset].map(signed))
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn usage_error(name: &str, words: &str) -> Error {
    Error::invalid(format!("wrong number of arguments: {name} {words}"))
}

fn parse_text<'a>(name: &str, word: &'a [u8]) -> Result<&'a str, Error> {
    str::from_utf8(word).map_err(|_| Error::invalid(format!("{name} must be UTF-8")))
}

fn parse_number(name: &str, word: &[u8]) -> Result<u64, Error> {
    let digits = (1..=19).contains(&word.len()) && word.iter().all(u8::is_ascii_digit);
    if !digits {
        return Err(Error::invalid(format!("{name} must be a whole number, not '{}'", Excerpt(word))));
    }
    Ok(word.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use slidegate::{ManualClock, MemoryStore, Rules};

    use super::*;

    /// Asserts the replies to commands at given times: `(milliseconds, command, integers)`.
    async fn assert_replies(cases: &[(u64, &str, [i64; 5])]) {
        let start = Micros::from_secs(1_000);
        let clock = ManualClock::at(start);
        let limiter = Limiter::new(MemoryStore::with_clock(clock.clone(), 100), Rules::new([]).unwrap());
        for (at, command, numbers) in cases {
            clock.set(Micros::new(start.get() + at * 1_000));
            let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
            let read = if words[0] == b"THROTTLE" {
                DecisionCommand::throttlecrab
            } else {
                DecisionCommand::redis_cell
            };
            let DecisionCommand { request, format } = read(&words[1..]).unwrap();
            let decision = limiter.acquire(request).await.unwrap();
            let (mut actual, mut expected) = (ReplyBuffer::default(), ReplyBuffer::default());
            format.write(&limiter, &decision, &mut actual);
            expected.array(numbers.len());
            numbers.iter().for_each(|number| expected.integer(*number));
            let [actual, expected] =
                [actual, expected].map(|replies| String::from_utf8(replies.bytes).unwrap());
            assert_eq!(actual, expected, "{command} at {at} ms");
        }
    }

    /// Cases from redis-cell's README and its own tests. Times are rounded up to seconds, as redis-cell does.
    #[tokio::test]
    async fn replies_as_redis_cell_does() {
        assert_replies(&[(0, "CL.THROTTLE user123 15 30 60", [0, 16, 15, -1, 2])]).await;
        assert_replies(&[
            (0, "CL.THROTTLE user123 0 1 2 1", [0, 1, 0, -1, 2]),
            (0, "CL.THROTTLE user123 0 1 2 1", [1, 1, 0, 2, 2]),
            (2_000, "CL.THROTTLE user123 0 1 2 1", [0, 1, 0, -1, 2]),
        ])
        .await;
        assert_replies(&[
            // More than the bucket can ever hold.
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
            // A quantity of 0 only reads.
            (9_500, "CL.THROTTLE foo 4 1 1 0", [0, 5, 4, -1, 1]),
            (9_500, "CL.THROTTLE foo 4 1 1 2", [0, 5, 2, -1, 3]),
            (9_500, "CL.THROTTLE foo 4 1 1 5", [1, 5, 2, 3, 3]),
        ])
        .await;
    }

    /// Compared with redis-cell, throttlecrab replies `allowed` first, its burst is the whole capacity, and its last
    /// two numbers are swapped.
    #[tokio::test]
    async fn replies_as_throttlecrab_does() {
        assert_replies(&[
            (0, "THROTTLE user:123 2 100 60", [1, 2, 1, 1, 0]),
            (0, "THROTTLE user:123 2 1 60", [1, 2, 0, 120, 0]),
            (0, "THROTTLE user:123 2 1 60", [0, 2, 0, 120, 60]),
            (0, "THROTTLE user:123 2 1 60 0", [1, 2, 0, 120, 0]),
            // The request can never be allowed, so the retry time is the time to fill an empty bucket.
            (0, "THROTTLE user:123 2 1 60 3", [0, 2, 0, 120, 120]),
            (60_000, "THROTTLE user:123 2 1 60", [1, 2, 0, 120, 0]),
        ])
        .await;
    }
}
