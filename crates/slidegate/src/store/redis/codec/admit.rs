//! Encodes batches of requests for the script that admits. See [`verdict`](super::verdict) for its reply.

use std::collections::HashMap;

use super::record::{self, Batch, Record, Request, RequestCheck, RequestForm, RequestHead, WarmUpLine};
use crate::store::redis::Expiry;
use crate::store::redis::layout::{self, KeyPart, Kind, Names};
use crate::store::redis::script::{Arguments, Parts};
use crate::{Check, Checks, Count, Encoding, Key, Micros, Quota, RampShape, WarmUp};

/// Encoded batch, and how to decode the reply to it.
pub(in crate::store::redis) struct Plan<'a> {
    pub(in crate::store::redis) arguments: Arguments,
    pub(in crate::store::redis) parts: Parts,
    pub(super) batch: &'a [Checks],
    pub(super) order: Order,
    /// Lines whose limit warms up, in the order of the plan.
    pub(super) warming: Vec<LineKey<'a>>,
}

/// Order of the replies.
pub(super) enum Order {
    /// Each reply is for one run: several equal requests of one check, or a single request.
    Runs(Vec<Run>),
    /// For each request, the index of its run and its index in the run; for each run, its length and window.
    Grouped(Vec<(u32, u32)>, Vec<(u32, Micros)>),
}

#[derive(Clone, Copy)]
pub(super) enum Run {
    /// This many equal requests of one check.
    Equal(usize),
    /// One request of any kind.
    One,
}

/// Index in `KEYS` of each key that is already added.
type KeyIndexes<'a> = HashMap<(&'a Key, KeyPart), u64, foldhash::quality::RandomState>;

/// Line number in the plan of each key and quota.
pub(super) type Lines<'a> = HashMap<LineKey<'a>, u64, foldhash::quality::RandomState>;

/// A key and how it is evaluated.
pub(super) type LineKey<'a> = (&'a Key, Quota, Encoding);

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
        let (mut table, mut warm_ups, mut warming) = (Vec::new(), Vec::new(), Vec::new());
        // Requests with ids come first: if one of them needs the notes key, all lines of that key name the notes key.
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
                let line_keys = (number(counted), notes.map_or(0, &mut number));
                let warm = check.quota.warm_up().map(|warm_up| (number(KeyPart::Warm), warm_up));
                let quota_tag = arguments.add_text(layout::quota_tag(&check.quota));
                line_of(line_keys, kind, quota_tag, &check.quota, expiry).write(&mut table);
                if let Some((key, warm_up)) = warm {
                    parts.add(Parts::WARM);
                    warming.push(line_key(check));
                    warm_up_line(next, key, &warm_up).write(&mut warm_ups);
                }
                next
            });
        }
        let (mut runs, mut requests) = (Vec::new(), Vec::new());
        let mut rest = batch;
        while let Some((checks, after)) = rest.split_first() {
            match single_check(checks) {
                Some(check) => {
                    let equal = 1 + after.iter().take_while(|other| is_equal(other, check)).count();
                    let equal = if is_repeatable(check) { equal } else { 1 };
                    let line = lines.get(&line_key(check)).copied().unwrap_or_default();
                    write_run(
                        &mut requests,
                        record::Run { times: equal as u64, cost: check.cost, same_quota: false, line },
                    );
                    runs.push(Run::Equal(equal));
                    rest = &rest[equal..];
                }
                None => {
                    add_request(checks, &lines, &mut arguments, &mut requests, &mut parts);
                    runs.push(Run::One);
                    rest = after;
                }
            }
        }
        arguments.add(Batch {
            line_count: lines.len() as u64,
            warm_up_count: warming.len() as u64,
            request_count: runs.len() as u64,
        });
        arguments.plan.extend([table, warm_ups, requests].concat());
        Plan { arguments, parts, batch, order: Order::Runs(runs), warming }
    }

    /// Encodes the most common batch: one request, or several equal ones, of one check. Needs no hash maps.
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
        let count = firsts.len() as u64;
        arguments.plan.reserve_exact(Batch::SIZE + firsts.len() * (record::Line::SIZE + RUN_SIZE));
        arguments.add(Batch { line_count: count, warm_up_count: 0, request_count: count });
        let mut quota_tags: HashMap<Micros, u64, foldhash::quality::RandomState> = HashMap::default();
        for check in &firsts {
            let key = arguments.add_key(names.name(&check.key, KeyPart::Main));
            let quota_tag = *quota_tags
                .entry(check.quota.window())
                .or_insert_with(|| arguments.add_text(layout::quota_tag(&check.quota)));
            arguments.add(line_of((key, 0), Kind::Zset, quota_tag, &check.quota, expiry));
        }
        let mut before = None;
        for ((line, check), length) in (1..).zip(&firsts).zip(&lengths) {
            let same_quota = before.replace(check.quota) == Some(check.quota);
            let run = record::Run { times: u64::from(*length), cost: check.cost, same_quota, line };
            write_run(&mut arguments.plan, run);
        }
        let windows = firsts.iter().map(|check| check.quota.window());
        let runs = lengths.into_iter().zip(windows).collect();
        Some(Plan { arguments, parts, batch, order: Order::Grouped(positions, runs), warming: Vec::new() })
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
    let keys = add_keys(&mut arguments, names, &check.key, kind.parts(false));
    let quota_tag = arguments.add_text(layout::quota_tag(&check.quota));
    arguments.plan.reserve_exact(Batch::SIZE + record::Line::SIZE + RUN_SIZE);
    arguments.add(Batch { line_count: 1, warm_up_count: 0, request_count: 1 });
    arguments.add(line_of(keys, kind, quota_tag, &check.quota, expiry));
    let run = record::Run { times: times as u64, cost: check.cost, same_quota: false, line: 1 };
    write_run(&mut arguments.plan, run);
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

pub(super) fn line_key(check: &Check) -> LineKey<'_> {
    (&check.key, check.quota, check.encoding)
}

/// Adds the key that counts and the key for notes, and returns their indexes; the index of unneeded notes is 0.
pub(super) fn add_keys(
    arguments: &mut Arguments,
    names: &Names,
    key: &Key,
    (counted, notes): (KeyPart, Option<KeyPart>),
) -> (u64, u64) {
    let counted = arguments.add_key(names.name(key, counted));
    (counted, notes.map_or(0, |notes| arguments.add_key(names.name(key, notes))))
}

pub(super) fn line_of(
    (key, notes): (u64, u64),
    kind: Kind,
    quota_tag: u64,
    quota: &Quota,
    expiry: Expiry,
) -> record::Line {
    let (slice, (rate, per)) = match quota.algorithm() {
        algorithm if algorithm.is_sliced() => (quota.grain(), (0, 0)),
        algorithm if algorithm.refills() => (Micros::ZERO, quota.rate()),
        _ => (Micros::ZERO, (0, 0)),
    };
    record::Line {
        key,
        notes,
        kind: kind.number(),
        quota_tag,
        attempts: quota.count() == Count::Attempts,
        slice,
        rate,
        per,
        horizon: quota.horizon(),
        window: quota.window(),
        capacity: quota.capacity(),
        period: expiry.period(quota),
        ttl: expiry.ttl(quota),
        modulus: layout::modulus(quota),
    }
}

/// Returns true if the check counts in a sorted set with an entry per instant, not per time slice.
fn is_exact(check: &Check) -> bool {
    check.quota.algorithm().keeps_instants() && Kind::of(check) == Kind::Zset
}

/// Returns how many requests go into one call: `size`, or more if they are equal.
pub(in crate::store::redis) fn first_batch(batch: &[Checks], size: usize) -> usize {
    let equal = |check| batch.iter().take_while(|checks| is_equal(checks, check)).count();
    let run = batch.first().and_then(single_check).filter(|check| is_repeatable(check)).map_or(0, equal);
    run.max(size).min(batch.len())
}

/// Length in bytes of a run in a plan.
const RUN_SIZE: usize = RequestHead::SIZE + record::Run::SIZE;

fn write_run(plan: &mut Vec<u8>, run: record::Run) {
    RequestHead { form: RequestForm::Run }.write(plan);
    run.write(plan);
}

fn warm_up_line(line: u64, key: u64, warm_up: &WarmUp) -> WarmUpLine {
    WarmUpLine {
        line,
        key,
        start: warm_up.start(),
        over: warm_up.over(),
        idle: warm_up.idle_for(),
        steps: warm_up.shape() == RampShape::Steps,
    }
}

/// Returns the check of a request that a run can express: a single check whose cost could fit; no id, peek or warm-up.
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

/// Returns true if equal requests of this check can be sent as one run: one reply then determines all their verdicts.
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
    requests: &mut Vec<u8>,
    parts: &mut Parts,
) {
    if checks.id().is_some() {
        parts.add(Parts::NOTES);
    }
    RequestHead { form: RequestForm::Checks }.write(requests);
    let (check_count, has_id) = (checks.as_slice().len() as u64, checks.id().is_some());
    Request { is_peek: checks.is_peek(), check_count, has_id }.write(requests);
    for check in checks.as_slice() {
        let line = lines.get(&line_key(check)).copied().unwrap_or_default();
        let digits = match checks.id() {
            Some(id) => arguments.add_text(layout::id_digits(id, check.cost).to_string()),
            None => 0,
        };
        RequestCheck { line, cost: check.cost, enforced: check.enforced, digits }.write(requests);
    }
}
