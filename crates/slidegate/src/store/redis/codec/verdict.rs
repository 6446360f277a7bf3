//! Decodes the reply of the script that admits to verdicts.

use redis::Value;
use smallvec::SmallVec;

use super::admit::{Lines, Order, Plan, Run, line_key};
use super::record::{
    CheckReply, GrantedRun, Numbers, OutcomeCode, ReplyHead, RunForm, RunHead, RunReply, WarmLimit,
};
use crate::settlement::NEVER_SETTLED;
use crate::store::redis::{bad_reply, layout};
use crate::{
    BatchVerdicts, Check, Checks, Count, Entry, Error, Micros, Outcome, Precision, Source, Verdict, Verdicts,
};

impl Plan<'_> {
    /// Decodes the reply.
    pub(in crate::store::redis) fn decode(&self, reply: Value) -> Result<BatchVerdicts, Error> {
        let mut numbers = Numbers::new(reply)?;
        let ReplyHead { at } = numbers.take()?;
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
        let limits = self.warming.iter().map(|line| {
            let WarmLimit { limit } = numbers.take()?;
            Ok((*line, limit))
        });
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
        let mut rest = self.batch;
        for run in runs {
            let length = if let Run::Equal(times) = run { *times } else { 1 };
            let (requests, later) = rest.split_at_checked(length).ok_or_else(bad_reply)?;
            rest = later;
            match run {
                Run::Equal(_) => decode_equal(at, requests.iter(), numbers, &mut batch_verdicts)?,
                Run::One => {
                    for checks in requests {
                        let verdict = |check| Ok(check_verdict(checks, check, numbers.take()?));
                        let verdicts = checks.as_slice().iter().map(verdict).collect::<Result<_, Error>>()?;
                        batch_verdicts.push(Verdicts { at, source: Source::Store, verdicts });
                    }
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
            replies.push(take_run(numbers, at, u64::from(*length), *window)?);
        }
        let requests = self.batch.iter().zip(positions);
        requests
            .map(|(checks, (run, i))| run_verdicts(at, checks, replies[*run as usize], u64::from(*i)))
            .collect()
    }
}

/// Decodes the reply to [`run_plan`](super::admit::run_plan).
pub(in crate::store::redis) fn decode_run(
    checks: &Checks,
    times: usize,
    reply: Value,
) -> Result<BatchVerdicts, Error> {
    let mut numbers = Numbers::new(reply)?;
    let ReplyHead { at } = numbers.take()?;
    let mut batch_verdicts = BatchVerdicts::new();
    decode_equal(at, std::iter::repeat_n(checks, times), &mut numbers, &mut batch_verdicts)?;
    numbers.finish()?;
    Ok(batch_verdicts)
}

/// Decodes the reply to a run of equal requests.
fn decode_equal<'c>(
    at: Micros,
    requests: impl ExactSizeIterator<Item = &'c Checks> + Clone,
    numbers: &mut Numbers,
    batch_verdicts: &mut BatchVerdicts,
) -> Result<(), Error> {
    let check = requests.clone().next().and_then(|checks| checks.as_slice().first()).ok_or_else(bad_reply)?;
    let reply = take_run(numbers, at, requests.len() as u64, check.quota.window())?;
    for (checks, i) in requests.zip(0..) {
        batch_verdicts.push(run_verdicts(at, checks, reply, i)?);
    }
    Ok(())
}

/// Reads the reply to a run of `times` requests on one key; `window` is the window of their quota.
fn take_run(numbers: &mut Numbers, at: Micros, times: u64, window: Micros) -> Result<RunReply, Error> {
    let RunHead { form } = numbers.take()?;
    let reply = match form {
        RunForm::Full => numbers.take()?,
        RunForm::Granted => {
            let GrantedRun { used } = numbers.take()?;
            RunReply {
                granted: times,
                used,
                retry_after: Micros::ZERO,
                reset_after: window,
                recorded_at: at,
                first_seq: 0,
                lower_bound: false,
            }
        }
    };
    if reply.granted > times { Err(bad_reply()) } else { Ok(reply) }
}

/// Verdicts of the `i`-th request of a run.
fn run_verdicts(at: Micros, checks: &Checks, reply: RunReply, i: u64) -> Result<Verdicts, Error> {
    let check = checks.as_slice().first().ok_or_else(bad_reply)?;
    let RunReply { granted, used, retry_after, reset_after, recorded_at, first_seq, lower_bound } = reply;
    let mut verdict = denied(check, used, retry_after, reset_after, lower_bound);
    if i < granted {
        verdict.outcome = Outcome::Charged;
        let later = (granted - 1 - i).checked_mul(check.cost);
        verdict.used = later.and_then(|later| used.checked_sub(later)).ok_or_else(bad_reply)?;
        verdict.retry_after = Micros::ZERO;
        verdict.precision = Precision::Exact;
        let seq = seq_or_never(check, first_seq.saturating_add(i));
        verdict.entry = Entry { at: recorded_at, seq, cost: check.cost };
    }
    Ok(Verdicts { at, source: Source::Store, verdicts: SmallVec::from_buf([verdict]) })
}

fn denied(check: &Check, used: u64, retry_after: Micros, reset_after: Micros, lower_bound: bool) -> Verdict {
    let precision = if lower_bound { Precision::LowerBound } else { Precision::Exact };
    let limit = check.quota.capacity();
    let entry = Entry::default();
    Verdict { outcome: Outcome::Denied, limit, used, retry_after, precision, reset_after, entry }
}

fn check_verdict(checks: &Checks, check: &Check, reply: CheckReply) -> Verdict {
    let CheckReply { outcome, used, retry_after, reset_after, recorded_at, seq, lower_bound } = reply;
    let outcome = match outcome {
        OutcomeCode::Charged => Outcome::Charged,
        OutcomeCode::Fits => Outcome::Fits,
        OutcomeCode::Impossible if !check.quota.adapts() => Outcome::Impossible,
        OutcomeCode::Denied | OutcomeCode::Impossible => Outcome::Denied,
    };
    let seq = match checks.id() {
        Some(id) => layout::id_digits(id, check.cost) * 100 + seq.min(99),
        None => seq,
    };
    let entry = match outcome {
        Outcome::Charged => Entry { at: recorded_at, seq: seq_or_never(check, seq), cost: check.cost },
        _ => Entry::default(),
    };
    Verdict { outcome, entry, ..denied(check, used, retry_after, reset_after, lower_bound) }
}

/// Returns the number of an admission; `NEVER_SETTLED` for an attempt, which cannot be settled.
fn seq_or_never(check: &Check, seq: u64) -> u64 {
    if check.quota.count() == Count::Attempts { NEVER_SETTLED } else { seq }
}
