//! Builds an explanation: the verdicts of the rules, the decision of the store, and its counts.
pub(crate) mod dto;

use std::collections::HashMap;

use slidegate::{
    Decision, Error, Explanation, Key, Limit, Limiter, MismatchReason, Mode, Request, Rule, RuleMatch,
    rules::AD_HOC,
    store::{Check, Inspection},
};

use self::dto::{CountedBody, EntryBody, ExplanationBody, ReasonBody, RuleBody, VerdictBody, WarmUpBody};
use crate::app::decision_body::{OutcomeBody, UsageBody};
use crate::store::AnyStore;

/// Upper bound on listed rules that do not apply.
const MAX_MISMATCHES: usize = 1_000;

/// Upper bound on listed rules.
const MAX_RULES: usize = 2_000;

/// Upper bound on keys whose counts are read.
const MAX_KEYS: usize = 32;

/// Upper bound on listed entries of a key.
const MAX_ENTRIES: usize = 5;

/// Longest attribute value that is shown, in characters.
const MAX_VALUE_CHARS: usize = 100;

/// Explains the decision that `request` would get now. Charges nothing.
pub(crate) async fn explain(
    limiter: &Limiter<AnyStore>,
    request: &Request<'_>,
) -> Result<ExplanationBody, Error> {
    let (decision, never) = match limiter.peek(request).await {
        // Even then the explanation shows the counts.
        Err(error) if error.is_too_costly() => {
            (limiter.peek(Request::from(request).permits(0)).await?, Some(error))
        }
        decided => (decided?, None),
    };
    let rules = decision.rules();
    let explanations = rules.explain(request)?;
    let limits: HashMap<&Key, Limit<'_>> = decision.limits().map(|limit| (limit.key(), limit)).collect();
    let (mut bodies, mut inspected, mut mismatches, mut left_out) = (Vec::new(), 0, 0, 0);
    for Explanation { rule, rule_match } in explanations {
        if bodies.len() >= MAX_RULES {
            left_out += 1;
            continue;
        }
        let mut body = RuleBody {
            rule: rule.name().to_owned(),
            mode: rule.in_mode().as_str().to_owned(),
            verdict: VerdictBody::DoesNotApply,
            reason: None,
            why: None,
            counted: None,
        };
        match rule_match {
            RuleMatch::Checked(check) => {
                inspected += 1;
                let found = if inspected <= MAX_KEYS { limiter.inspect(&check.key).await? } else { None };
                let limit = limits.get(&check.key);
                body.verdict = verdict(&check, limit, never.is_some());
                body.counted = Some(counted(rule, &check, limit, found));
            }
            RuleMatch::Unlimited => body.verdict = VerdictBody::Unlimited,
            RuleMatch::Blocked if rule.in_mode() == Mode::Shadow => body.verdict = VerdictBody::WouldBlock,
            RuleMatch::Blocked => body.verdict = VerdictBody::Blocks,
            RuleMatch::Missed(reason) => {
                mismatches += 1;
                if mismatches > MAX_MISMATCHES {
                    left_out += 1;
                    continue;
                }
                explain_mismatch(reason, &mut body);
            }
            RuleMatch::Preceded { group, by } => {
                body.why = Some(format!("another rule of group `{group}` applies first: `{by}`"));
                body.reason = Some(ReasonBody::Group { group: group.to_owned(), rule: by.to_owned() });
            }
            RuleMatch::Replaced { by } => {
                body.why = Some(format!("rule `{by}` replaces this rule"));
                body.reason = Some(ReasonBody::Replaced { rule: by.to_owned() });
            }
        }
        bodies.push(body);
    }
    Ok(summary(&decision, never.as_ref(), request.cost(), bodies, left_out))
}

fn summary(
    decision: &Decision,
    never: Option<&Error>,
    permits: u64,
    rules: Vec<RuleBody>,
    left_out: usize,
) -> ExplanationBody {
    let OutcomeBody { allowed, code, retry_after_ms, retry_after_exact, .. } = decision.into();
    let denier = never.and_then(Error::too_costly_for);
    let denying_rule = |name: &str| decision.rules().iter().find(|rule| rule.name() == name);
    let outcome = OutcomeBody {
        allowed: allowed && never.is_none(),
        code: denier.map_or(code, |name| {
            denying_rule(name).map_or(slidegate::rules::DEFAULT_CODE, |rule| rule.denial_code()).get()
        }),
        denied_by: denier.or(decision.denied_by()).map(|rule| rule.to_owned().into()),
        retry_after_ms,
        retry_after_exact,
    };
    ExplanationBody {
        outcome,
        never: never.is_some(),
        permits,
        source: decision.source().as_str().to_owned(),
        unmatched: decision.unmatched().map(|unmatched| unmatched.as_str().to_owned()),
        rules,
        left_out,
    }
}

/// Returns the verdict of a rule. `too_costly` is true if the store was asked for 0 permits instead of the real number.
fn verdict(check: &Check, limit: Option<&Limit<'_>>, too_costly: bool) -> VerdictBody {
    let Some(limit) = limit else { return VerdictBody::NotEvaluated };
    let denies = if too_costly { check.cost > limit.remaining() } else { limit.outcome().denies() };
    match (denies, check.enforced) {
        (false, _) => VerdictBody::Allows,
        (true, true) => VerdictBody::Denies,
        (true, false) => VerdictBody::WouldDeny,
    }
}

fn counted(rule: &Rule, check: &Check, limit: Option<&Limit<'_>>, found: Option<Inspection>) -> CountedBody {
    let quota = check.quota;
    let is_rule_quota = rule.name() != AD_HOC && quota == rule.quota_now();
    let limit_now = limit.map_or(quota.capacity(), Limit::limit);
    let usage = match (limit, &found) {
        (Some(limit), _) => UsageBody::from(limit),
        (None, Some(Inspection { used, reset_after, .. })) => UsageBody {
            used: *used,
            remaining: limit_now.saturating_sub(*used),
            reset_after_ms: reset_after.ceil_millis(),
            ..UsageBody::default()
        },
        (None, None) => UsageBody { remaining: limit_now, ..UsageBody::default() },
    };
    let warm_up = quota
        .warm_up()
        .map(|warm_up| WarmUpBody { from: warm_up.from(), over_ms: warm_up.over().ceil_millis() });
    let (at, entries) = found.map(|found| (found.at, found.entries)).unwrap_or_default();
    let more_entries = entries.len().saturating_sub(MAX_ENTRIES);
    let entries = entries.into_iter().take(MAX_ENTRIES).map(|entry| EntryBody {
        permits: entry.cost,
        age_ms: at.since(entry.at).ceil_millis(),
        leaves_after_ms: entry.leaves_after.ceil_millis(),
    });
    CountedBody {
        key: check.key.as_str().to_owned(),
        algorithm: quota.algorithm().as_str().to_owned(),
        count: quota.count().as_str().to_owned(),
        limit: if is_rule_quota { rule.quota().capacity() } else { quota.capacity() },
        limit_now,
        window_ms: quota.window().ceil_millis(),
        overridden: !is_rule_quota && rule.name() != AD_HOC,
        factor: rule.factor().map(|factor| f64::from(factor) / 10_000.0),
        warm_up,
        usage,
        entries: entries.collect(),
        more_entries,
    }
}

fn explain_mismatch(reason: MismatchReason<'_>, body: &mut RuleBody) {
    let short: String;
    let reason = match reason {
        MismatchReason::Value { attribute, wanted, found: Some(value) }
            if value.chars().count() > MAX_VALUE_CHARS =>
        {
            short = value.chars().take(MAX_VALUE_CHARS).chain(['…']).collect();
            MismatchReason::Value { attribute, wanted, found: Some(&short) }
        }
        reason => reason,
    };
    body.why = Some(reason.to_string());
    body.reason = Some(match reason {
        MismatchReason::Off => ReasonBody::Off,
        MismatchReason::Value { attribute, wanted, found } => ReasonBody::Match {
            attribute: attribute.to_owned(),
            wanted: wanted.iter().map(ToString::to_string).collect(),
            found: found.map(str::to_owned),
        },
        MismatchReason::Lacking(attribute) => ReasonBody::Key { attribute: attribute.to_owned() },
        MismatchReason::Beyond(attribute) => ReasonBody::Only { attribute: attribute.to_owned() },
    });
}
