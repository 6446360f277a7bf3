//! Wire format of the scripts: encodes requests as arguments, and decodes replies to verdicts.
pub(crate) mod reply;

use std::collections::HashMap;

use redis::Value;
use smallvec::SmallVec;

use self::reply::Numbers;
use super::layout::{self, Kind, Names, Part};
use super::restore::{HealLine, Healed, Writer};
use super::script::{Arguments, Parts};
use super::{Expiry, bad_reply};
use crate::settlement::NEVER_SETTLED;
use crate::{
    Algorithm, BatchVerdicts, Check, Checks, Correction, Count, Encoding, Entry, Error, Key, Micros, Outcome,
    Precision, Quota, RampShape, Settled, Settlement, Source, Verdict, Verdicts, WarmUp,
};

/// Encoded batch, and how to decode the reply to it.
pub(super) struct Plan<'a> {
    pub(super) arguments: Arguments,
    pub(super) parts: Parts,
    asks: &'a [Checks],
    order: Order,
    /// Lines whose limit warms up, in their order.
    climbing: Vec<Named<'a>>,
}

/// Order of the replies.
enum Order {
    /// Each reply is for one run of requests; the requests of a run of more than one are equal and have one check.
    Runs(Vec<Run>),
    /// For each request, its run and its index there; for each run, its length and window.
    Grouped(Vec<(u32, u32)>, Vec<(u32, Micros)>),
}

#[derive(Clone, Copy)]
enum Run {
    /// This many equal requests of one check.
    Alike(usize),
    /// One request of any kind.
    One,
}

/// Index in `KEYS` of each key that is already added.
type Numbered<'a> = HashMap<(&'a Key, Part), u64, foldhash::quality::RandomState>;

/// A key and how it is evaluated.
type Named<'a> = (&'a Key, Quota, Encoding);

/// Line number in the plan of each key and quota.
type Lines<'a> = HashMap<Named<'a>, u64, foldhash::quality::RandomState>;

impl<'a> Plan<'a> {
    pub(super) fn new(asks: &'a [Checks], names: &Names, expiry: Expiry) -> Self {
        if let Some(plan) = Plan::of_one_run(asks, names, expiry) {
            return plan;
        }
        if let Some(plan) = Plan::of_windows(asks, names, expiry) {
            return plan;
        }
        let (mut arguments, mut parts) = (Arguments::default(), Parts::default());
        let mut lines = Lines::default();
        let mut keys = Numbered::default();
        let mut table = Arguments::default();
        let (mut climbs, mut climbing) = (Arguments::default(), Vec::new());
        // Requests with ids first: if one of them names the notes key, all lines of that key do.
        let with_ids = asks.iter().filter(|ask| ask.id().is_some());
        let ordered = with_ids.chain(asks.iter().filter(|ask| ask.id().is_none()));
        for (ask, check) in ordered.flat_map(|ask| ask.checks().iter().map(move |check| (ask, check))) {
            let next = lines.len() as u64 + 1;
            lines.entry(named(check)).or_insert_with(|| {
                let kind = Kind::of(check);
                parts.add_kind(kind);
                let noted = ask.id().is_some() || keys.contains_key(&(&check.key, Part::Notes));
                let (counted, notes) = kind.parts(noted);
                let mut number = |part| {
                    *keys
                        .entry((&check.key, part))
                        .or_insert_with(|| arguments.key(names.name(&check.key, part)))
                };
                let (key, notes) = (number(counted), notes.map_or(0, &mut number));
                let warm = check.quota.warm_up().map(|warm_up| (number(Part::Warm), warm_up));
                let shape = arguments.text(layout::shape(&check.quota));
                table.numbers(&line(key, notes, kind, shape, &check.quota, expiry));
                if let Some((key, warm_up)) = warm {
                    parts.add_warm();
                    climbing.push(named(check));
                    climbs.numbers(&climb(next, key, &warm_up));
                }
                next
            });
        }
        arguments.numbers(&[lines.len() as u64]);
        arguments.plan.append(&mut table.plan);
        if !climbing.is_empty() {
            arguments.numbers(&[climbing.len() as u64]);
            arguments.plan.append(&mut climbs.plan);
        }
        let mut runs = Vec::new();
        let mut ops = Arguments::default();
        let mut rest = asks;
        while let Some((ask, after)) = rest.split_first() {
            match alone(ask) {
                Some(check) => {
                    let alike = 1 + after.iter().take_while(|other| is_like(other, check)).count();
                    let alike = if repeats(check) { alike } else { 1 };
                    let line = lines.get(&named(check)).copied().unwrap_or_default();
                    ops.numbers(&[alike as u64, check.cost, line, 0]);
                    runs.push(Run::Alike(alike));
                    rest = &rest[alike..];
                }
                None => {
                    add_ask(ask, &lines, &mut arguments, &mut ops, &mut parts);
                    runs.push(Run::One);
                    rest = after;
                }
            }
        }
        arguments.numbers(&[runs.len() as u64]);
        arguments.plan.append(&mut ops.plan);
        Plan { arguments, parts, asks, order: Order::Runs(runs), climbing }
    }

    /// Encodes the most common batch: one request, or several equal ones, of one check. Needs no lookups.
    fn of_one_run(asks: &'a [Checks], names: &Names, expiry: Expiry) -> Option<Self> {
        let check = alone(asks.first()?)?;
        if asks.len() > 1 && !(repeats(check) && asks[1..].iter().all(|ask| is_like(ask, check))) {
            return None;
        }
        let (arguments, parts) = run(check, asks.len(), names, expiry);
        let order = Order::Runs(vec![Run::Alike(asks.len())]);
        Some(Plan { arguments, parts, asks, order, climbing: Vec::new() })
    }

    /// Encodes a batch of requests of exact windows in sorted sets, where the requests of one key are equal. Each key
    /// is a line and a run, in the same order. Returns none for any other batch.
    fn of_windows(asks: &'a [Checks], names: &Names, expiry: Expiry) -> Option<Self> {
        let mut firsts: Vec<&Check> = Vec::new();
        let mut lengths: Vec<u32> = Vec::new();
        let mut places = Vec::with_capacity(asks.len());
        let mut known: HashMap<&Key, u32, foldhash::quality::RandomState> = HashMap::default();
        for ask in asks {
            let check = alone(ask).filter(|check| repeats(check) && is_exact(check))?;
            let run = *known.entry(&check.key).or_insert_with(|| {
                firsts.push(check);
                lengths.push(0);
                firsts.len() as u32 - 1
            });
            if !is_like(ask, firsts[run as usize]) {
                return None;
            }
            let length = &mut lengths[run as usize];
            places.push((run, *length));
            *length += 1;
        }
        let (mut arguments, mut parts) = (Arguments::default(), Parts::default());
        parts.add_quick(Kind::Zset);
        arguments.plan.reserve_exact((2 + 17 * firsts.len()) * size_of::<f64>());
        arguments.numbers(&[firsts.len() as u64]);
        let mut shapes: HashMap<Micros, u64, foldhash::quality::RandomState> = HashMap::default();
        for check in &firsts {
            let key = arguments.key(names.name(&check.key, Part::Main));
            let shape = *shapes
                .entry(check.quota.window())
                .or_insert_with(|| arguments.text(layout::shape(&check.quota)));
            arguments.numbers(&line(key, 0, Kind::Zset, shape, &check.quota, expiry));
        }
        arguments.numbers(&[firsts.len() as u64]);
        let mut before = None;
        for ((i, check), length) in firsts.iter().enumerate().zip(&lengths) {
            let same = before.replace(check.quota) == Some(check.quota);
            arguments.numbers(&[u64::from(*length), check.cost, i as u64 + 1, u64::from(same)]);
        }
        let windows = firsts.iter().map(|check| check.quota.window());
        let runs = lengths.into_iter().zip(windows).collect();
        Some(Plan { arguments, parts, asks, order: Order::Grouped(places, runs), climbing: Vec::new() })
    }

    /// Decodes the reply.
    pub(super) fn readings(&self, reply: Value) -> Result<BatchVerdicts, Error> {
        let mut numbers = Numbers::new(reply)?;
        let at = Micros::new(numbers.next()?);
        let mut readings = match &self.order {
            Order::Runs(runs) => self.in_order(at, runs, &mut numbers)?,
            Order::Grouped(places, lengths) => self.in_groups(at, places, lengths, &mut numbers)?,
        };
        self.read_limits(&mut readings, &mut numbers)?;
        numbers.finish()?;
        Ok(readings)
    }

    /// Sets the current limits of lines that warm up.
    fn read_limits(&self, readings: &mut BatchVerdicts, numbers: &mut Numbers) -> Result<(), Error> {
        if self.climbing.is_empty() {
            return Ok(());
        }
        let limits = self.climbing.iter().map(|line| Ok((*line, numbers.next()?)));
        let limits: Lines<'_> = limits.collect::<Result<_, Error>>()?;
        for (ask, reading) in self.asks.iter().zip(readings) {
            for (check, verdict) in ask.checks().iter().zip(&mut reading.verdicts) {
                verdict.limit = limits.get(&named(check)).copied().unwrap_or(verdict.limit);
            }
        }
        Ok(())
    }

    fn in_order(&self, at: Micros, runs: &[Run], numbers: &mut Numbers) -> Result<BatchVerdicts, Error> {
        let mut readings = BatchVerdicts::new();
        let mut asks = self.asks.iter();
        for run in runs {
            match run {
                Run::Alike(times) => {
                    let reply = numbers.take_run(at, *times as u64)?;
                    for i in 0..*times {
                        let ask = asks.next().ok_or_else(bad_reply)?;
                        readings.push(of_run(at, ask, reply, i as u64)?);
                    }
                }
                Run::One => {
                    let ask = asks.next().ok_or_else(bad_reply)?;
                    let verdicts = ask.checks().iter().map(|check| judged(ask, check, numbers.take()?));
                    readings.push(Verdicts {
                        at,
                        source: Source::Store,
                        verdicts: verdicts.collect::<Result<_, _>>()?,
                    });
                }
            }
        }
        Ok(readings)
    }

    fn in_groups(
        &self,
        at: Micros,
        places: &[(u32, u32)],
        lengths: &[(u32, Micros)],
        numbers: &mut Numbers,
    ) -> Result<BatchVerdicts, Error> {
        let mut replies = Vec::with_capacity(lengths.len());
        for (length, window) in lengths {
            let reply: [u64; 7] = if numbers.is_and_a_half() {
                let [granted, used] = numbers.take()?;
                [granted, used, 0, window.get(), at.get(), 0, 0]
            } else {
                numbers.take()?
            };
            if reply[0] > u64::from(*length) {
                return Err(bad_reply());
            }
            replies.push(reply);
        }
        let asked = self.asks.iter().zip(places);
        asked.map(|(ask, (run, i))| of_run(at, ask, replies[*run as usize], u64::from(*i))).collect()
    }
}

/// Arguments for this many equal requests of one check.
fn run(check: &Check, times: usize, names: &Names, expiry: Expiry) -> (Arguments, Parts) {
    let (mut arguments, mut parts) = (Arguments::default(), Parts::default());
    let kind = Kind::of(check);
    parts.add_kind(kind);
    if repeats(check) && (kind == Kind::Packed || is_exact(check)) {
        parts.add_quick(kind);
    }
    let (key, notes) = add_keys(&mut arguments, names, &check.key, kind.parts(false));
    let shape = arguments.text(layout::shape(&check.quota));
    arguments.plan.reserve_exact(19 * size_of::<f64>());
    arguments.numbers(&[1]);
    arguments.numbers(&line(key, notes, kind, shape, &check.quota, expiry));
    arguments.numbers(&[1, times as u64, check.cost, 1, 0]);
    (arguments, parts)
}

/// Arguments for the same request repeated `times`, if a run can express it.
pub(super) fn run_plan(
    ask: &Checks,
    times: usize,
    names: &Names,
    expiry: Expiry,
) -> Option<(Arguments, Parts)> {
    alone(ask).filter(|check| repeats(check)).map(|check| run(check, times, names, expiry))
}

/// Decodes the reply to [`run_plan`].
pub(super) fn run_readings(ask: &Checks, times: usize, reply: Value) -> Result<BatchVerdicts, Error> {
    let mut numbers = Numbers::new(reply)?;
    let at = Micros::new(numbers.next()?);
    let reply = numbers.take_run(at, times as u64)?;
    numbers.finish()?;
    (0..times as u64).map(|i| of_run(at, ask, reply, i)).collect()
}

/// Verdicts of the `i`-th request of a run.
fn of_run(at: Micros, ask: &Checks, reply: [u64; 7], i: u64) -> Result<Verdicts, Error> {
    let check = ask.checks().first().ok_or_else(bad_reply)?;
    let verdict = in_run(check, reply, i)?;
    Ok(Verdicts { at, source: Source::Store, verdicts: SmallVec::from_buf([verdict]) })
}

/// Returns true for a window of single admissions in a sorted set.
fn is_exact(check: &Check) -> bool {
    let exact = matches!(check.quota.algorithm(), Algorithm::SlidingWindow | Algorithm::Concurrency);
    exact && Kind::of(check) == Kind::Zset
}

/// Returns how many requests go into one call: `size`, or more if they are equal.
pub(super) fn first_batch(asks: &[Checks], size: usize) -> usize {
    let alike = |check| asks.iter().take_while(|ask| is_like(ask, check)).count();
    let run = asks.first().and_then(alone).filter(|check| repeats(check)).map_or(0, alike);
    run.max(size).min(asks.len())
}

/// Adds the key that counts and the key for notes, and returns their indexes; 0 if the notes are not needed.
fn add_keys(
    arguments: &mut Arguments,
    names: &Names,
    key: &Key,
    (counted, notes): (Part, Option<Part>),
) -> (u64, u64) {
    let counted = arguments.key(names.name(key, counted));
    (counted, notes.map_or(0, |notes| arguments.key(names.name(key, notes))))
}

fn line(key: u64, notes: u64, kind: Kind, shape: u64, quota: &Quota, expiry: Expiry) -> [u64; 13] {
    let (extra, per) = match quota.algorithm() {
        Algorithm::TimeSlice { .. } => (quota.grain().get(), 0),
        Algorithm::TokenBucket { .. } => quota.rate(),
        _ => (0, 0),
    };
    [
        key,
        notes,
        kind as u64,
        shape,
        u64::from(quota.count() == Count::Attempts),
        extra,
        per,
        quota.horizon().get(),
        quota.window().get(),
        quota.capacity(),
        expiry.period(quota).get(),
        expiry.life(quota).get(),
        layout::modulus(quota),
    ]
}

/// Numbers of a warm-up, for `lua/warm.lua`.
fn climb(line: u64, key: u64, warm_up: &WarmUp) -> [u64; 6] {
    let steps = u64::from(warm_up.climb() == RampShape::Steps);
    [line, key, warm_up.start(), warm_up.over().get(), warm_up.idle_for().get(), steps]
}

fn named(check: &Check) -> Named<'_> {
    (&check.key, check.quota, check.encoding)
}

/// Returns the only check of a request that a run can express: no id, no peek, no warm-up, and a cost that could fit.
fn alone(ask: &Checks) -> Option<&Check> {
    match ask.checks() {
        [check]
            if ask.id().is_none()
                && !ask.is_peek()
                && check.cost > 0
                && check.cost <= check.quota.capacity()
                && check.quota.warm_up().is_none() =>
        {
            Some(check)
        }
        _ => None,
    }
}

/// Returns true if equal requests of this check can be answered together: the replies follow from one another.
fn repeats(check: &Check) -> bool {
    let bucket = matches!(check.quota.algorithm(), Algorithm::TokenBucket { .. });
    check.quota.count() == Count::Admitted && !bucket
}

fn is_like(ask: &Checks, check: &Check) -> bool {
    alone(ask).is_some_and(|other| other.cost == check.cost && named(other) == named(check))
}

fn add_ask(
    ask: &Checks,
    lines: &Lines<'_>,
    arguments: &mut Arguments,
    ops: &mut Arguments,
    parts: &mut Parts,
) {
    if ask.id().is_some() {
        parts.add_notes();
    }
    let has_id = u64::from(ask.id().is_some());
    ops.numbers(&[0, u64::from(ask.is_peek()), ask.checks().len() as u64, has_id]);
    for check in ask.checks() {
        let line = lines.get(&named(check)).copied().unwrap_or_default();
        let digits = match ask.id() {
            Some(id) => arguments.text(layout::digits(id, check.cost).to_string()),
            None => 0,
        };
        ops.numbers(&[line, check.cost, u64::from(check.enforced), digits]);
    }
}

/// Verdict of the `i`-th request of a run.
fn in_run(check: &Check, reply: [u64; 7], i: u64) -> Result<Verdict, Error> {
    let [granted, used, retry_after, reset_after, date, place, bound] = reply;
    let mut verdict = Verdict {
        outcome: Outcome::Denied,
        limit: check.quota.capacity(),
        used,
        retry_after: Micros::new(retry_after),
        precision: precision(bound)?,
        reset_after: Micros::new(reset_after),
        entry: Entry::default(),
    };
    if i < granted {
        verdict.outcome = Outcome::Charged;
        let later = (granted - 1 - i).checked_mul(check.cost);
        verdict.used = later.and_then(|later| used.checked_sub(later)).ok_or_else(bad_reply)?;
        verdict.retry_after = Micros::ZERO;
        verdict.precision = Precision::Exact;
        let seq = settleable(check, place.saturating_add(i));
        verdict.entry = Entry { at: Micros::new(date), seq, cost: check.cost };
    }
    Ok(verdict)
}

/// Decodes the precision of a wait.
fn precision(bound: u64) -> Result<Precision, Error> {
    match bound {
        0 => Ok(Precision::Exact),
        1 => Ok(Precision::LowerBound),
        _ => Err(bad_reply()),
    }
}

fn judged(ask: &Checks, check: &Check, reply: [u64; 7]) -> Result<Verdict, Error> {
    let [outcome, used, retry_after, reset_after, date, place, bound] = reply;
    let outcome = match outcome {
        0 => Outcome::Charged,
        1 => Outcome::Fits,
        2 => Outcome::Denied,
        3 if check.quota.adapts() => Outcome::Denied,
        3 => Outcome::Impossible,
        _ => return Err(bad_reply()),
    };
    let seq = match ask.id() {
        Some(id) => layout::digits(id, check.cost) * 100 + place.min(99),
        None => place,
    };
    let entry = match outcome {
        Outcome::Charged => Entry { at: Micros::new(date), seq: settleable(check, seq), cost: check.cost },
        _ => Entry::default(),
    };
    Ok(Verdict {
        outcome,
        limit: check.quota.capacity(),
        used,
        retry_after: Micros::new(retry_after),
        precision: precision(bound)?,
        reset_after: Micros::new(reset_after),
        entry,
    })
}

/// Returns the number of an admission. An attempt is not settled, so it has none.
fn settleable(check: &Check, seq: u64) -> u64 {
    if check.quota.count() == Count::Attempts { NEVER_SETTLED } else { seq }
}

/// Stands for a cost in `lua/settle.lua` and means extend; no cost is as large.
const EXTEND: u64 = 1 << 52;

/// Arguments of the script that settles.
pub(super) fn settlement_plan(settlements: &[Settlement], names: &Names, expiry: Expiry) -> Arguments {
    let mut arguments = Arguments::default();
    let channel = arguments.text(names.freed());
    arguments.numbers(&[expiry.min.get(), expiry.buffer.get(), channel, settlements.len() as u64]);
    for Settlement { key, entry, correction } in settlements {
        let keys = names.counted(key).map(|name| arguments.key(name));
        let seq = arguments.text(entry.seq.to_string());
        arguments.numbers(&keys);
        let name = arguments.text(key.as_str().to_owned());
        let permits = match correction {
            Correction::Cost(permits) => *permits,
            Correction::Extend => EXTEND,
        };
        arguments.numbers(&[entry.at.get(), entry.cost, permits, seq, name]);
    }
    arguments
}

/// Decodes the instant and the outcomes of settlements; none for those to send again.
pub(super) fn settled(reply: Value, expected: usize) -> Result<(Micros, Vec<Option<Settled>>), Error> {
    let mut numbers = Numbers::new(reply)?;
    let at = Micros::new(numbers.next()?);
    let mut settled = Vec::with_capacity(expected);
    for _ in 0..expected {
        settled.push(match numbers.next()? {
            0 => Some(Settled::Done),
            1 => Some(Settled::Already),
            2 => Some(Settled::Gone),
            3 => None,
            _ => return Err(bad_reply()),
        });
    }
    numbers.finish()?;
    Ok((at, settled))
}

/// Arguments of `lua/restore.lua` for admissions of a node.
pub(super) fn heal_plan(writer: Writer<'_>, lines: &[&HealLine], names: &Names, expiry: Expiry) -> Arguments {
    let mut arguments = Arguments::default();
    let node = arguments.text(writer.node.to_owned());
    // Eight digits are enough to tell one run id from another.
    let run = arguments.text(writer.run.chars().take(8).collect());
    let batch = arguments.text(batch(writer, lines));
    let Writer { lost, since, nodes, .. } = writer;
    arguments.numbers(&[node, run, batch, u64::from(lost), since.get(), nodes, lines.len() as u64]);
    for HealLine { key, quota, encoding, entries } in lines {
        let check = Check { encoding: *encoding, ..Check::new(key.clone(), *quota, 0) };
        let kind = Kind::of(&check);
        let (key, notes) = add_keys(&mut arguments, names, &check.key, kind.parts(true));
        let shape = arguments.text(layout::shape(quota));
        arguments.numbers(&line(key, notes, kind, shape, quota, expiry));
        arguments.numbers(&[entries.len() as u64]);
        for (at, cost, admitted) in entries {
            arguments.numbers(&[at.get(), *cost, u64::from(*admitted)]);
        }
    }
    arguments
}

/// Id of a batch, the same for the same lines, so that the script recognizes one that is sent again.
fn batch(writer: Writer<'_>, lines: &[&HealLine]) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    writer.run.hash(&mut hasher);
    for line in lines {
        (line.key.as_str(), &line.entries).hash(&mut hasher);
    }
    format!("{:x}", hasher.finish())
}

/// Decodes the result for each line.
pub(super) fn healed(reply: Value, expected: usize) -> Result<Vec<Healed>, Error> {
    let mut numbers = Numbers::new(reply)?;
    numbers.next()?;
    let mut healed = Vec::with_capacity(expected);
    for _ in 0..expected {
        let [added, used] = numbers.take()?;
        healed.push(Healed { added, used });
    }
    numbers.finish()?;
    Ok(healed)
}
