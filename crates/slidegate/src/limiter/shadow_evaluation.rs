//! Evaluation of rules that shadow another rule: each counts the requests that it would have admitted in place of that rule.
//!
//! A denied request charges none of its checks, so a shadow among these checks would never count a request that another
//! rule denies. A [shadow of](crate::Rule::shadow_of) another rule is therefore evaluated separately, after the other
//! checks. The shadow is charged if it fits and no enforced rule other than the shadowed rule denied the request. A
//! shadow that counts attempts is also charged if the first such denial is by a rule after the shadowed rule. The
//! evaluation takes a second call to the store.

use smallvec::SmallVec;

use crate::rules::Rules;
use crate::{BatchVerdicts, Check, Checks, Count, Error, Micros, Source, Store, Verdict, Verdicts};

/// Returns one `Verdicts` for each element of `batch`, as [`Store::admit`] does, with the shadows evaluated separately.
pub(crate) async fn admit<S: Store>(
    store: &S,
    rules: &Rules,
    batch: &[Checks],
) -> Result<BatchVerdicts, Error> {
    let without_shadows: Vec<Checks> =
        batch.iter().map(|checks| subset(checks, |check| !rules.is_paired_shadow(check))).collect();
    let to_store: Vec<Checks> =
        without_shadows.iter().filter(|checks| !checks.as_slice().is_empty()).cloned().collect();
    let replies = if to_store.is_empty() { BatchVerdicts::new() } else { store.admit(&to_store).await? };
    let mut replies = replies.into_iter();
    let mut decided = Vec::with_capacity(batch.len());
    for checks in &without_shadows {
        decided.push(match checks.as_slice() {
            [] => None,
            _ => Some(replies.next().ok_or_else(Error::short_answer)?),
        });
    }
    let mut shadows = Vec::new();
    for ((checks, others), reply) in batch.iter().zip(&without_shadows).zip(&decided) {
        for shadow in checks.as_slice().iter().filter(|check| rules.is_paired_shadow(check)) {
            let alone = subset(checks, |other| other.key == shadow.key);
            let counts = reply.as_ref().is_none_or(|reply| counts(rules, others, reply, shadow));
            shadows.push(if counts { alone } else { alone.peek() });
        }
    }
    // Shadows deny nothing, so an error of this call does not fail the request.
    let mut shadow_replies = store.admit(&shadows).await.unwrap_or_default().into_iter();
    let merged = batch.iter().zip(decided).map(|(checks, reply)| {
        let (mut at, mut source) =
            reply.as_ref().map_or((Micros::ZERO, Source::Store), |reply| (reply.at, reply.source));
        let mut others = reply.into_iter().flat_map(|reply| reply.verdicts);
        let verdicts = checks.as_slice().iter().map(|check| {
            if !rules.is_paired_shadow(check) {
                return others.next().unwrap_or_else(|| Verdict::not_evaluated(0));
            }
            let Some(alone) = shadow_replies.next() else { return Verdict::not_evaluated(0) };
            if at == Micros::ZERO {
                (at, source) = (alone.at, alone.source);
            }
            alone.verdicts.into_iter().next().unwrap_or_else(|| Verdict::not_evaluated(0))
        });
        let verdicts: SmallVec<[Verdict; 1]> = verdicts.collect();
        Verdicts { at, source, verdicts }
    });
    Ok(merged.collect())
}

/// Returns the checks of the same request for which `keep` returns true.
fn subset(checks: &Checks, keep: impl Fn(&Check) -> bool) -> Checks {
    checks.with_checks(checks.as_slice().iter().filter(|check| keep(check)).cloned())
}

/// Returns true if `shadow` is charged when it fits, as if it were enforced in place of the shadowed rule: no other
/// enforced rule denies, or the shadow counts attempts and the first other rule that denies is after the shadowed rule.
fn counts(rules: &Rules, others: &Checks, reply: &Verdicts, shadow: &Check) -> bool {
    let replaced = rules.rule(shadow.rule).shadowed();
    let is_replaced = |check: &Check| Some(rules.rule(check.rule).name()) == replaced;
    let position =
        others.as_slice().iter().find(|check| is_replaced(check)).map_or(shadow.rule, |own| own.rule);
    let evaluated = others.as_slice().iter().zip(&reply.verdicts);
    let mut remaining = evaluated.filter(|(check, _)| check.enforced && !is_replaced(check));
    let denier = remaining.find(|(_, verdict)| verdict.outcome.denies());
    denier.is_none_or(|(check, _)| shadow.quota.count() == Count::Attempts && check.rule > position)
}
