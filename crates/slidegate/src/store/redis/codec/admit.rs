//! Encodes batches of requests for the script that admits, and decodes its reply.

use std::collections::HashMap;

use redis::Value;

use super::line::{LineKey, add_keys, line_key, line_numbers};
use super::reply::Numbers;
use super::verdict::{check_verdict, run_verdicts};
use crate::store::redis::layout::{self, KeyPart, Kind, Names};
use crate::store::redis::script::{Arguments, Parts};
use crate::store::redis::{Expiry, bad_reply};
use crate::{
    Algorithm, BatchVerdicts, Check, Checks, Count, Error, Key, Micros, RampShape, Source, Verdicts, WarmUp,
};

/// Encoded batch, and how to decode the reply to it.
pub(in crate::store::redis) struct Plan<'a> {
    pub(in crate::store::redis) arguments: Arguments,
    pub(in crate::store::redis) parts: Parts,
    batch: &'a [Checks],
    order: Order,
    /// Lines whose limit warms up, in their order.
    warming: Vec<LineKey<'a>>,
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
    Equal(usize),
    /// One request of any kind.
    One,
}

/// Index in `KEYS` of each key that is already added.
type KeyIndexes<'a> = HashMap<(&'a Key, KeyPart), u64, foldhash::quality::RandomState>;

/// Line number in the plan of each key and quota.
type Lines<'a> = HashMap<LineKey<'a>, u64, foldhash::quality::RandomState>;

impl<'a> Plan<'a> {
    pub(in crate::store::redis) fn new(batch: &'a [Checks], names: &Names, expiry: Expiry) -> Self {
        if let Some(plan) = Plan::for_one_run(batch, names, expiry) {
            return plan;
        }
        if let Some(plan) = Plan::for_windows(batch, names, expiry) {
            return plan;
        }
        let (mut arguments, mut parts) = (Arguments::default(), Parts::default());
        let mut lines = Lines::default();
        let mut keys = KeyIndexes::default();
        let mut table = Arguments::default();
        let (mut warm_ups, mut warming) = (Arguments::default(), Vec::new());
        // Requests with ids first: if one of them names the notes key, all lines of that key do.
        let with_ids = batch.iter().filter(|checks| checks.id().is_some());
        let ordered = with_ids.chain(batch.iter().filter(|checks| checks.id().is_none()));
        for (checks, check) in
            ordered.flat_map(|checks| checks.as_slice().iter().map(move |check| (checks, check)))
        {
            let next = lines.len() as u64 + 1;
            lines.entry(line_key(check)).or_insert_with(|| {
                let kind = Kind::of(check);
                parts.add_kind(kind);
                let noted = checks.id().is_some() || keys.contains_key(&(&check.key, KeyPart::Notes));
                let (counted, notes) = kind.parts(noted);
                let mut number = |part| {
                    *keys
                        .entry((&check.key, part))
                        .or_insert_with(|| arguments.add_key(names.name(&check.key, part)))
                };
                let (key, notes) = (number(counted), notes.map_or(0, &mut number));
                let warm = check.quota.warm_up().map(|warm_up| (number(KeyPart::Warm), warm_up));
                let quota_tag = arguments.add_text(layout::quota_tag(&check.quota));
                table.add_numbers(&line_numbers(key, notes, kind, quota_tag, &check.quota, expiry));
                if let Some((key, warm_up)) = warm {
                    parts.add_warm();
                    warming.push(line_key(check));
                    warm_ups.add_numbers(&warm_up_numbers(next, key, &warm_up));
                }
                next
            });
        }
        arguments.add_numbers(&[lines.len() as u64]);
        arguments.plan.append(&mut table.plan);
        if !warming.is_empty() {
            arguments.add_numbers(&[warming.len() as u64]);
            arguments.plan.append(&mut warm_ups.plan);
        }
        let mut runs = Vec::new();
        let mut ops = Arguments::default();
        let mut rest = batch;
        while let Some((checks, after)) = rest.split_first() {
            match single_check(checks) {
                Some(check) => {
                    let equal = 1 + after.iter().take_while(|other| is_equal(other, check)).count();
                    let equal = if is_repeatable(check) { equal } else { 1 };
                    let line = lines.get(&line_key(check)).copied().unwrap_or_default();
                    ops.add_numbers(&[equal as u64, check.cost, line, 0]);
                    runs.push(Run::Equal(equal));
                    rest = &rest[equal..];
                }
                None => {
                    add_request(checks, &lines, &mut arguments, &mut ops, &mut parts);
                    runs.push(Run::One);
                    rest = after;
                }
            }
        }
        arguments.add_numbers(&[runs.len() as u64]);
        arguments.plan.append(&mut ops.plan);
        Plan { arguments, parts, batch, order: Order::Runs(runs), warming }
    }

    /// Encodes the most common batch: one request, or several equal ones, of one check. Needs no lookups.
    fn for_one_run(batch: &'a [Checks], names: &Names, expiry: Expiry) -> Option<Self> {
        let check = single_check(batch.first()?)?;
        if batch.len() > 1
            && !(is_repeatable(check) && batch[1..].iter().all(|checks| is_equal(checks, check)))
        {
            return None;
        }
        let (arguments, parts) = run_arguments(check, batch.len(), names, expiry);
        let order = Order::Runs(vec![Run::Equal(batch.len())]);
        Some(Plan { arguments, parts, batch, order, warming: Vec::new() })
    }

    /// Encodes a batch of requests of exact windows in sorted sets, where the requests of one key are equal. Each key
    /// is a line and a run, in the same order. Returns none for any other batch.
    fn for_windows(batch: &'a [Checks], names: &Names, expiry: Expiry) -> Option<Self> {
        let mut firsts: Vec<&Check> = Vec::new();
        let mut lengths: Vec<u32> = Vec::new();
        let mut positions = Vec::with_capacity(batch.len());
        let mut known: HashMap<&Key, u32, foldhash::quality::RandomState> = HashMap::default();
        for checks in batch {
            let check = single_check(checks).filter(|check| is_repeatable(check) && is_exact(check))?;
            let run = *known.entry(&check.key).or_insert_with(|| {
                firsts.push(check);
                lengths.push(0);
                firsts.len() as u32 - 1
            });
            if !is_equal(checks, firsts[run as usize]) {
                return None;
            }
            let length = &mut lengths[run as usize];
            positions.push((run, *length));
            *length += 1;
        }
        let (mut arguments, mut parts) = (Arguments::default(), Parts::default());
        parts.add_fast_path(Kind::Zset);
        arguments.plan.reserve_exact((2 + 17 * firsts.len()) * size_of::<f64>());
        arguments.add_numbers(&[firsts.len() as u64]);
        let mut quota_tags: HashMap<Micros, u64, foldhash::quality::RandomState> = HashMap::default();
        for check in &firsts {
            let key = arguments.add_key(names.name(&check.key, KeyPart::Main));
            let quota_tag = *quota_tags
                .entry(check.quota.window())
                .or_insert_with(|| arguments.add_text(layout::quota_tag(&check.quota)));
            arguments.add_numbers(&line_numbers(key, 0, Kind::Zset, quota_tag, &check.quota, expiry));
        }
        arguments.add_numbers(&[firsts.len() as u64]);
        let mut before = None;
        for ((i, check), length) in firsts.iter().enumerate().zip(&lengths) {
            let same = before.replace(check.quota) == Some(check.quota);
            arguments.add_numbers(&[u64::from(*length), check.cost, i as u64 + 1, u64::from(same)]);
        }
        let windows = firsts.iter().map(|check| check.quota.window());
        let runs = lengths.into_iter().zip(windows).collect();
        Some(Plan { arguments, parts, batch, order: Order::Grouped(positions, runs), warming: Vec::new() })
    }

    /// Decodes the reply.
    pub(in crate::store::redis) fn decode(&self, reply: Value) -> Result<BatchVerdicts, Error> {
        let mut numbers = Numbers::new(reply)?;
        let at = Micros::new(numbers.next()?);
        let mut batch_verdicts = match &self.order {
            Order::Runs(runs) => self.decode_runs(at, runs, &mut numbers)?,
            Order::Grouped(positions, lengths) => self.decode_groups(at, positions, lengths, &mut numbers)?,
        };
        self.read_limits(&mut batch_verdicts, &mut numbers)?;
        numbers.finish()?;
        Ok(batch_verdicts)
    }

    /// Sets the current limits of lines that warm up.
    fn read_limits(&self, batch_verdicts: &mut BatchVerdicts, numbers: &mut Numbers) -> Result<(), Error> {
        if self.warming.is_empty() {
            return Ok(());
        }
        let limits = self.warming.iter().map(|line| Ok((*line, numbers.next()?)));
        let limits: Lines<'_> = limits.collect::<Result<_, Error>>()?;
        for (checks, verdicts) in self.batch.iter().zip(batch_verdicts) {
            for (check, verdict) in checks.as_slice().iter().zip(&mut verdicts.verdicts) {
                verdict.limit = limits.get(&line_key(check)).copied().unwrap_or(verdict.limit);
            }
        }
        Ok(())
    }

    fn decode_runs(&self, at: Micros, runs: &[Run], numbers: &mut Numbers) -> Result<BatchVerdicts, Error> {
        let mut batch_verdicts = BatchVerdicts::new();
        let mut batch = self.batch.iter();
        for run in runs {
            match run {
                Run::Equal(times) => {
                    let reply = numbers.take_run(at, *times as u64)?;
                    for i in 0..*times {
                        let checks = batch.next().ok_or_else(bad_reply)?;
                        batch_verdicts.push(run_verdicts(at, checks, reply, i as u64)?);
                    }
                }
                Run::One => {
                    let checks = batch.next().ok_or_else(bad_reply)?;
                    let verdicts =
                        checks.as_slice().iter().map(|check| check_verdict(checks, check, numbers.take()?));
                    batch_verdicts.push(Verdicts {
                        at,
                        source: Source::Store,
                        verdicts: verdicts.collect::<Result<_, _>>()?,
                    });
                }
            }
        }
        Ok(batch_verdicts)
    }

    fn decode_groups(
        &self,
        at: Micros,
        positions: &[(u32, u32)],
        lengths: &[(u32, Micros)],
        numbers: &mut Numbers,
    ) -> Result<BatchVerdicts, Error> {
        let mut replies = Vec::with_capacity(lengths.len());
        for (length, window) in lengths {
            let reply: [u64; 7] = if numbers.is_fully_granted() {
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
        let requests = self.batch.iter().zip(positions);
        requests
            .map(|(checks, (run, i))| run_verdicts(at, checks, replies[*run as usize], u64::from(*i)))
            .collect()
    }
}

/// Arguments for this many equal requests of one check.
fn run_arguments(check: &Check, times: usize, names: &Names, expiry: Expiry) -> (Arguments, Parts) {
    let (mut arguments, mut parts) = (Arguments::default(), Parts::default());
    let kind = Kind::of(check);
    parts.add_kind(kind);
    if is_repeatable(check) && (kind == Kind::Packed || is_exact(check)) {
        parts.add_fast_path(kind);
    }
    let (key, notes) = add_keys(&mut arguments, names, &check.key, kind.parts(false));
    let quota_tag = arguments.add_text(layout::quota_tag(&check.quota));
    arguments.plan.reserve_exact(19 * size_of::<f64>());
    arguments.add_numbers(&[1]);
    arguments.add_numbers(&line_numbers(key, notes, kind, quota_tag, &check.quota, expiry));
    arguments.add_numbers(&[1, times as u64, check.cost, 1, 0]);
    (arguments, parts)
}

/// Arguments for the same request repeated `times`, if a run can express it.
pub(in crate::store::redis) fn run_plan(
    checks: &Checks,
    times: usize,
    names: &Names,
    expiry: Expiry,
) -> Option<(Arguments, Parts)> {
    single_check(checks)
        .filter(|check| is_repeatable(check))
        .map(|check| run_arguments(check, times, names, expiry))
}

/// Decodes the reply to [`run_plan`].
pub(in crate::store::redis) fn decode_run(
    checks: &Checks,
    times: usize,
    reply: Value,
) -> Result<BatchVerdicts, Error> {
    let mut numbers = Numbers::new(reply)?;
    let at = Micros::new(numbers.next()?);
    let reply = numbers.take_run(at, times as u64)?;
    numbers.finish()?;
    (0..times as u64).map(|i| run_verdicts(at, checks, reply, i)).collect()
}

/// Returns true for a window of single admissions in a sorted set.
fn is_exact(check: &Check) -> bool {
    let exact = matches!(check.quota.algorithm(), Algorithm::SlidingWindow | Algorithm::Concurrency);
    exact && Kind::of(check) == Kind::Zset
}

/// Returns how many requests go into one call: `size`, or more if they are equal.
pub(in crate::store::redis) fn first_batch(batch: &[Checks], size: usize) -> usize {
    let equal = |check| batch.iter().take_while(|checks| is_equal(checks, check)).count();
    let run = batch.first().and_then(single_check).filter(|check| is_repeatable(check)).map_or(0, equal);
    run.max(size).min(batch.len())
}

/// Numbers of a warm-up, for `lua/warm.lua`.
fn warm_up_numbers(line: u64, key: u64, warm_up: &WarmUp) -> [u64; 6] {
    let steps = u64::from(warm_up.shape() == RampShape::Steps);
    [line, key, warm_up.start(), warm_up.over().get(), warm_up.idle_for().get(), steps]
}

/// Returns the only check of a request that a run can express: no id, no peek, no warm-up, and a cost that could fit.
fn single_check(checks: &Checks) -> Option<&Check> {
    match checks.as_slice() {
        [check]
            if checks.id().is_none()
                && !checks.is_peek()
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
fn is_repeatable(check: &Check) -> bool {
    let bucket = matches!(check.quota.algorithm(), Algorithm::TokenBucket { .. });
    check.quota.count() == Count::Admitted && !bucket
}

fn is_equal(checks: &Checks, check: &Check) -> bool {
    single_check(checks).is_some_and(|other| other.cost == check.cost && line_key(other) == line_key(check))
}

fn add_request(
    checks: &Checks,
    lines: &Lines<'_>,
    arguments: &mut Arguments,
    ops: &mut Arguments,
    parts: &mut Parts,
) {
    if checks.id().is_some() {
        parts.add_notes();
    }
    let has_id = u64::from(checks.id().is_some());
    ops.add_numbers(&[0, u64::from(checks.is_peek()), checks.as_slice().len() as u64, has_id]);
    for check in checks.as_slice() {
        let line = lines.get(&line_key(check)).copied().unwrap_or_default();
        let digits = match checks.id() {
            Some(id) => arguments.add_text(layout::id_digits(id, check.cost).to_string()),
            None => 0,
        };
        ops.add_numbers(&[line, check.cost, u64::from(check.enforced), digits]);
    }
}
