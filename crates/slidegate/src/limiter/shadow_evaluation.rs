//! Evaluation of rules that shadow another rule: each counts the requests that it would have admitted in place of that rule.
//!
//! A denied batch charges none of its checks, so a shadow in the same batch never sees requests that are denied now. A
//! [shadow of](crate::Rule::shadow_of) another rule is therefore evaluated afterwards, in a batch of its own. It is charged if
//! it fits, unless one of the remaining rules denied. A shadow that counts attempts also counts requests that a later rule
//! denied. The evaluation takes a second call to the store.

use smallvec::SmallVec;

use crate::rules::Rules;
use crate::{
    BatchVerdicts, Check, Checks, Count, Entry, Error, Micros, Outcome, Precision, Source, Store, Verdict,
    Verdicts,
};

/// Returns one `Verdicts` for each batch, as [`Store::admit`] does, with the shadows evaluated separately.
pub(crate) async fn admit<S: Store>(
    store: &S,
    rules: &Rules,
    asks: &[Checks],
) -> Result<BatchVerdicts, Error> {
    let kept: Vec<Checks> = asks.iter().map(|ask| part(ask, |check| !rules.is_sibling(check))).collect();
    let asked: Vec<Checks> = kept.iter().filter(|ask| !ask.checks().is_empty()).cloned().collect();
    let readings = if asked.is_empty() { BatchVerdicts::new() } else { store.admit(&asked).await? };
    let mut readings = readings.into_iter();
    let mut decided = Vec::with_capacity(asks.len());
    for ask in &kept {
        let reading = if ask.checks().is_empty() { None } else { readings.next() };
        if reading.is_none() && !ask.checks().is_empty() {
            return Err(Error::short_answer());
        }
        decided.push(reading);
    }
    let mut tried = Vec::new();
    for ((ask, kept), reading) in asks.iter().zip(&kept).zip(&decided) {
        for check in ask.checks().iter().filter(|check| rules.is_sibling(check)) {
            let alone = part(ask, |other| other.key == check.key);
            let counts = reading.as_ref().is_none_or(|reading| counts(rules, kept, reading, check));
            tried.push(if counts { alone } else { alone.peek() });
        }
    }
    // Shadows deny nothing, so their failure is not a failure of the request.
    let mut verdicts = store.admit(&tried).await.unwrap_or_default().into_iter();
    let merged = asks.iter().zip(decided).map(|(ask, reading)| {
        let (mut at, mut source) =
            reading.as_ref().map_or((Micros::ZERO, Source::Store), |reading| (reading.at, reading.source));
        let mut own = reading.into_iter().flat_map(|reading| reading.verdicts);
        let verdicts = ask.checks().iter().map(|check| {
            if !rules.is_sibling(check) {
                return own.next().unwrap_or_else(unjudged);
            }
            let Some(alone) = verdicts.next() else { return unjudged() };
            if at == Micros::ZERO {
                (at, source) = (alone.at, alone.source);
            }
            alone.verdicts.into_iter().next().unwrap_or_else(unjudged)
        });
        let verdicts: SmallVec<[Verdict; 1]> = verdicts.collect();
        Verdicts { at, source, verdicts }
    });
    Ok(merged.collect())
}

/// Returns the same batch with a subset of its checks.
fn part(ask: &Checks, keep: impl Fn(&Check) -> bool) -> Checks {
    let checks = ask.checks().iter().filter(|check| keep(check)).cloned();
    let mut part = Checks::distinct(checks);
    if let Some(id) = ask.id() {
        part = part.with_id(id.clone());
    }
    if ask.is_peek() { part.peek() } else { part }
}

/// Returns true if the shadow would be charged if it were enforced in place of its rule and fits: no remaining rule denies, or
/// only a later rule denies and the shadow counts attempts.
fn counts(rules: &Rules, kept: &Checks, reading: &Verdicts, sibling: &Check) -> bool {
    let replaced = rules.rule(sibling.rule).shadowed();
    let is_replaced = |check: &Check| Some(rules.rule(check.rule).name()) == replaced;
    let place = kept.checks().iter().find(|check| is_replaced(check)).map_or(sibling.rule, |own| own.rule);
    let judged = kept.checks().iter().zip(&reading.verdicts);
    let mut others = judged.filter(|(check, _)| check.enforced && !is_replaced(check));
    let denier = others.find(|(_, verdict)| verdict.outcome.denies());
    denier.is_none_or(|(check, _)| sibling.quota.count() == Count::Attempts && check.rule > place)
}

/// Verdict on a check that was not evaluated.
pub(crate) fn unjudged() -> Verdict {
    Verdict {
        outcome: Outcome::Unjudged,
        limit: 0,
        used: 0,
        retry_after: Micros::ZERO,
        precision: Precision::Exact,
        reset_after: Micros::ZERO,
        entry: Entry::default(),
    }
}
