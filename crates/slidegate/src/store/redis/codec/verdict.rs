//! Verdicts from the numbers that the script replies.

use smallvec::SmallVec;

use crate::settlement::NEVER_SETTLED;
use crate::store::redis::{bad_reply, layout};
use crate::{Check, Checks, Count, Entry, Error, Micros, Outcome, Precision, Source, Verdict, Verdicts};

/// Verdicts of the `i`-th request of a run.
pub(super) fn run_verdicts(at: Micros, checks: &Checks, reply: [u64; 7], i: u64) -> Result<Verdicts, Error> {
    let check = checks.as_slice().first().ok_or_else(bad_reply)?;
    let verdict = run_verdict(check, reply, i)?;
    Ok(Verdicts { at, source: Source::Store, verdicts: SmallVec::from_buf([verdict]) })
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

pub(super) fn check_verdict(checks: &Checks, check: &Check, reply: [u64; 7]) -> Result<Verdict, Error> {
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
