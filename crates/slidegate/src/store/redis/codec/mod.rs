//! Wire format of the scripts: encodes requests as arguments, and decodes replies to verdicts.
pub(crate) mod reply;

use std::collections::HashMap;

use redis::Value;
use smallvec::SmallVec;

use self::reply::Numbers;
use super::layout::{self, KeyPart, Kind, Names};
use super::restore::{RestoreLine, Restored, Writer};
use super::script::{Arguments, Parts};
use super::{Expiry, bad_reply};
use crate::settlement::NEVER_SETTLED;
use crate::{
    BatchVerdicts, Check, Checks, Correction, Count, Encoding, Entry, Error, Key, Micros, Outcome, Precision,
    Quota, RampShape, Settled, Settlement, Source, Verdict, Verdicts, WarmUp,
};

/// Encoded batch, and how to decode the reply to it.
pub(super) struct Plan<'a> {
    pub(super) arguments: Arguments,
    pub(super) parts: Parts,
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

/// A key and how it is evaluated.
type LineKey<'a> = (&'a Key, Quota, Encoding);

/// Line number in the plan of each key and quota.
type Lines<'a> = HashMap<LineKey<'a>, u64, foldhash::quality::RandomState>;

impl<'a> Plan<'a> {
    pub(super) fn new(batch: &'a [Checks], names: &Names, expiry: Expiry) -> Self {
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
    pub(super) fn decode(&self, reply: Value) -> Result<BatchVerdicts, Error> {
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
pub(super) fn run_plan(
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
pub(super) fn decode_run(checks: &Checks, times: usize, reply: Value) -> Result<BatchVerdicts, Error> {
    let mut numbers = Numbers::new(reply)?;
    let at = Micros::new(numbers.next()?);
    let reply = numbers.take_run(at, times as u64)?;
    numbers.finish()?;
    (0..times as u64).map(|i| run_verdicts(at, checks, reply, i)).collect()
}

/// Verdicts of the `i`-th request of a run.
fn run_verdicts(at: Micros, checks: &Checks, reply: [u64; 7], i: u64) -> Result<Verdicts, Error> {
    let check = checks.as_slice().first().ok_or_else(bad_reply)?;
    let verdict = run_verdict(check, reply, i)?;
    Ok(Verdicts { at, source: Source::Store, verdicts: SmallVec::from_buf([verdict]) })
}

/// Returns true for a window of single admissions in a sorted set.
fn is_exact(check: &Check) -> bool {
    check.quota.algorithm().keeps_instants() && Kind::of(check) == Kind::Zset
}

/// Returns how many requests go into one call: `size`, or more if they are equal.
pub(super) fn first_batch(batch: &[Checks], size: usize) -> usize {
    let equal = |check| batch.iter().take_while(|checks| is_equal(checks, check)).count();
    let run = batch.first().and_then(single_check).filter(|check| is_repeatable(check)).map_or(0, equal);
    run.max(size).min(batch.len())
}

/// Adds the key that counts and the key for notes, and returns their indexes; 0 if the notes are not needed.
fn add_keys(
    arguments: &mut Arguments,
    names: &Names,
    key: &Key,
    (counted, notes): (KeyPart, Option<KeyPart>),
) -> (u64, u64) {
    let counted = arguments.add_key(names.name(key, counted));
    (counted, notes.map_or(0, |notes| arguments.add_key(names.name(key, notes))))
}

fn line_numbers(
    key: u64,
    notes: u64,
    kind: Kind,
    quota_tag: u64,
    quota: &Quota,
    expiry: Expiry,
) -> [u64; 13] {
    let (extra, per) = match quota.algorithm() {
        algorithm if algorithm.is_sliced() => (quota.grain().get(), 0),
        algorithm if algorithm.refills() => quota.rate(),
        _ => (0, 0),
    };
    [
        key,
        notes,
        kind.number(),
        quota_tag,
        u64::from(quota.count() == Count::Attempts),
        extra,
        per,
        quota.horizon().get(),
        quota.window().get(),
        quota.capacity(),
        expiry.period(quota).get(),
        expiry.ttl(quota).get(),
        layout::modulus(quota),
    ]
}

/// Numbers of a warm-up, for `lua/warm.lua`.
fn warm_up_numbers(line: u64, key: u64, warm_up: &WarmUp) -> [u64; 6] {
    let steps = u64::from(warm_up.shape() == RampShape::Steps);
    [line, key, warm_up.start(), warm_up.over().get(), warm_up.idle_for().get(), steps]
}

fn line_key(check: &Check) -> LineKey<'_> {
    (&check.key, check.quota, check.encoding)
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
    check.quota.count() == Count::Admitted && !check.quota.algorithm().refills()
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

/// Verdict of the `i`-th request of a run.
fn run_verdict(check: &Check, reply: [u64; 7], i: u64) -> Result<Verdict, Error> {
    let [granted, used, retry_after, reset_after, date, ordinal, bound] = reply;
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
        let seq = seq_or_never(check, ordinal.saturating_add(i));
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

fn check_verdict(checks: &Checks, check: &Check, reply: [u64; 7]) -> Result<Verdict, Error> {
    let [outcome, used, retry_after, reset_after, date, ordinal, bound] = reply;
    let outcome = match outcome {
        0 => Outcome::Charged,
        1 => Outcome::Fits,
        2 => Outcome::Denied,
        3 if check.quota.adapts() => Outcome::Denied,
        3 => Outcome::Impossible,
        _ => return Err(bad_reply()),
    };
    let seq = match checks.id() {
        Some(id) => layout::id_digits(id, check.cost) * 100 + ordinal.min(99),
        None => ordinal,
    };
    let entry = match outcome {
        Outcome::Charged => Entry { at: Micros::new(date), seq: seq_or_never(check, seq), cost: check.cost },
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
fn seq_or_never(check: &Check, seq: u64) -> u64 {
    if check.quota.count() == Count::Attempts { NEVER_SETTLED } else { seq }
}

/// Stands for a cost in `lua/settle.lua` and means extend; no cost is as large.
const EXTEND: u64 = 1 << 52;

/// Arguments of the script that settles.
pub(super) fn settlement_plan(settlements: &[Settlement], names: &Names, expiry: Expiry) -> Arguments {
    let mut arguments = Arguments::default();
    let channel = arguments.add_text(names.freed_channel());
    arguments.add_numbers(&[expiry.min.get(), expiry.buffer.get(), channel, settlements.len() as u64]);
    for Settlement { key, entry, correction } in settlements {
        let keys = names.counted(key).map(|name| arguments.add_key(name));
        let seq = arguments.add_text(entry.seq.to_string());
        arguments.add_numbers(&keys);
        let name = arguments.add_text(key.as_str().to_owned());
        let permits = match correction {
            Correction::Cost(permits) => *permits,
            Correction::Extend => EXTEND,
        };
        arguments.add_numbers(&[entry.at.get(), entry.cost, permits, seq, name]);
    }
    arguments
}

/// Decodes the instant and the outcomes of settlements; none for those to send again.
pub(super) fn decode_settled(reply: Value, expected: usize) -> Result<(Micros, Vec<Option<Settled>>), Error> {
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
pub(super) fn restore_plan(
    writer: Writer<'_>,
    lines: &[&RestoreLine],
    names: &Names,
    expiry: Expiry,
) -> Arguments {
    let mut arguments = Arguments::default();
    let node = arguments.add_text(writer.node.to_owned());
    // Eight digits are enough to tell one run id from another.
    let run = arguments.add_text(writer.run_id.chars().take(8).collect());
    let batch_id = arguments.add_text(batch_id(writer, lines));
    let Writer { lost, since, nodes, .. } = writer;
    arguments.add_numbers(&[node, run, batch_id, u64::from(lost), since.get(), nodes, lines.len() as u64]);
    for RestoreLine { key, quota, encoding, entries } in lines {
        let check = Check { encoding: *encoding, ..Check::new(key.clone(), *quota, 0) };
        let kind = Kind::of(&check);
        let (key, notes) = add_keys(&mut arguments, names, &check.key, kind.parts(true));
        let quota_tag = arguments.add_text(layout::quota_tag(quota));
        arguments.add_numbers(&line_numbers(key, notes, kind, quota_tag, quota, expiry));
        arguments.add_numbers(&[entries.len() as u64]);
        for (at, cost, admitted) in entries {
            arguments.add_numbers(&[at.get(), *cost, u64::from(*admitted)]);
        }
    }
    arguments
}

/// Id of a batch, the same for the same lines, so that the script recognizes one that is sent again.
fn batch_id(writer: Writer<'_>, lines: &[&RestoreLine]) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    writer.run_id.hash(&mut hasher);
    for line in lines {
        (line.key.as_str(), &line.entries).hash(&mut hasher);
    }
    format!("{:x}", hasher.finish())
}

/// Decodes the result for each line.
pub(super) fn decode_restored(reply: Value, expected: usize) -> Result<Vec<Restored>, Error> {
    let mut numbers = Numbers::new(reply)?;
    numbers.next()?;
    let mut restored = Vec::with_capacity(expected);
    for _ in 0..expected {
        let [added, used] = numbers.take()?;
        restored.push(Restored { added, used });
    }
    numbers.finish()?;
    Ok(restored)
}
