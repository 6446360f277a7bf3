//! Verdicts from the numbers that the script replies.

use smallvec::SmallVec;

use super::record::{CheckReply, GrantedRun, OutcomeCode, RunForm, RunHead, RunReply};
use super::reply::Numbers;
use crate::settlement::NEVER_SETTLED;
use crate::store::redis::{bad_reply, layout};
use crate::{Check, Checks, Count, Entry, Error, Micros, Outcome, Precision, Source, Verdict, Verdicts};

/// Reads the reply to a run of this many requests of one window.
pub(super) fn take_run(
    numbers: &mut Numbers,
    at: Micros,
    times: u64,
    window: Micros,
) -> Result<RunReply, Error> {
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
pub(super) fn run_verdicts(at: Micros, checks: &Checks, reply: RunReply, i: u64) -> Result<Verdicts, Error> {
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

pub(super) fn check_verdict(checks: &Checks, check: &Check, reply: CheckReply) -> Verdict {
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

/// Returns the number of an admission. An attempt is not settled, so it has none.
fn seq_or_never(check: &Check, seq: u64) -> u64 {
    if check.quota.count() == Count::Attempts { NEVER_SETTLED } else { seq }
}
