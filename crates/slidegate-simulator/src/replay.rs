//! Replays the traffic once: decides every request, and counts and compares the decisions.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use slidegate::{Micros, Rules};

use crate::baseline::Baseline;
use crate::decision_log::DecisionLog;
use crate::plan::{NamedRules, Output, Question};
use crate::progress::Progress;
use crate::report::{AlgorithmReport, Difference, LateRequests, Report, rule_reports};
use crate::scenario::VirtualTime;
use crate::scenarios::{AlgorithmChoice, MAX_KEYS, Scenarios};
use crate::traffic::{Traffic, format_time};

/// Largest step back in time that is normal in a log whose lines are not in the order of the requests.
const MAX_DISORDER: Micros = Micros::from_secs(3600);

/// Windows shorter than this are simulated imprecisely if the trace has times in whole seconds.
const SHORT_WINDOW: Micros = Micros::from_secs(10);

/// Kind of report, by the question.
enum ReportKind {
    Simulate,
    Compare,
    Diff,
}

/// Answers a question that needs one pass over the traffic.
pub(crate) fn replay(
    traffic: &Traffic,
    question: Question,
    output: &Output,
    stop: &Arc<AtomicBool>,
) -> Result<Report, String> {
    let (kind, rules_from, rule_sets) = rule_sets(question)?;
    let mut notes: Vec<String> = rule_sets.iter().flat_map(|(_, rules)| adaptive_note(rules)).collect();
    notes.dedup();
    let mut scenarios = Scenarios::new(rule_sets, traffic.begin());
    let mut decision_log = output.decisions.as_deref().map(DecisionLog::create).transpose()?;
    let (mut time, mut baseline, mut requests) = (VirtualTime::default(), Baseline::default(), 0);
    let mut progress = Progress::new(traffic.length(), stop);
    let summary = traffic.for_each(&mut progress, |event| {
        let at = time.advance(event.at);
        scenarios.decide(at, event.request, |decision| {
            requests += 1;
            if let Some(recorded) = event.recorded {
                baseline.compare(requests, recorded, decision);
            }
            if let Some(decision_log) = &mut decision_log {
                decision_log.add(at.get(), decision);
            }
        })
    })?;
    let seconds = progress.elapsed_seconds();
    drop(progress);
    decision_log.map_or(Ok(()), DecisionLog::finish)?;
    let Some(main) = scenarios.runs.last() else { return Err("there are no rules".to_owned()) };
    let has_short_window =
        main.scenario.rules().iter().any(|rule| rule.is_limited() && rule.quota().window() < SHORT_WINDOW);
    notes.extend(summary.notes);
    if !time.has_fractions && has_short_window && summary.format.is_some() {
        notes.push(
            "the times of this trace are whole seconds: all requests of one second are evaluated at its beginning, so windows \
             of a few seconds see other traffic than the real one"
                .to_owned(),
        );
    }
    if time.max_lateness > MAX_DISORDER {
        notes.push(format!(
            "times run back by up to {}; such requests are evaluated at the latest time before them: check the times of the trace",
            time.max_lateness
        ));
    }
    if scenarios.runs.iter().any(|run| run.stats.is_truncated()) {
        notes.push(format!(
            "there are more than {MAX_KEYS} keys: of the others, only the most denied are known, approximately"
        ));
    }
    let shared = main.scenario.store_stats().shared;
    if shared > 0 {
        notes.push(format!(
            "{shared} decisions used counters that several keys share, as on a server whose store is full"
        ));
    }
    let stats = &main.stats;
    let begin = traffic.begin().or(time.first).unwrap_or(time.latest);
    let mut report = Report {
        traffic: traffic.name(),
        format: summary.format,
        rules_from,
        mapped: summary.mapped,
        requests: stats.requests,
        allowed: stats.allowed,
        denied: stats.denied,
        unruled: stats.unruled,
        from: time.first.map(format_time),
        to: time.first.map(|_| format_time(time.latest)),
        begin_us: begin.get(),
        span_us: time.latest.since(begin).get(),
        seconds,
        requests_per_second: stats.requests as f64 / seconds,
        interrupted: summary.interrupted,
        bad_lines: summary.parse_errors,
        late: LateRequests { requests: time.late_requests, most_us: time.max_lateness.get() },
        recorded: (baseline.compared > 0).then_some(baseline),
        rules: Vec::new(),
        algorithms: Vec::new(),
        difference: None,
        notes,
    };
    match kind {
        ReportKind::Compare => {
            report.recorded = None;
            report.algorithms =
                scenarios.runs.iter().map(|run| AlgorithmReport::new(run, output.top)).collect();
        }
        ReportKind::Simulate | ReportKind::Diff => report.rules = rule_reports(stats, output.top),
    }
    if let (ReportKind::Diff, [old, new]) = (kind, &scenarios.runs[..]) {
        report.difference = Some(Difference::new(old, new, &scenarios.changes, output.top));
    }
    Ok(report)
}

type RuleSets = Vec<(String, Rules)>;

/// Returns the kind of report, the name of the rules, and the sets of rules to simulate. The last set is the one that the
/// question is about.
fn rule_sets(question: Question) -> Result<(ReportKind, String, RuleSets), String> {
    match question {
        Question::Simulate(NamedRules { name, rules }) => {
            Ok((ReportKind::Simulate, name.clone(), vec![(name, *rules)]))
        }
        Question::Diff { new, old } => {
            Ok((ReportKind::Diff, new.name.clone(), vec![(old.name, *old.rules), (new.name, *new.rules)]))
        }
        Question::Compare(NamedRules { name, rules }, algorithms) => {
            // The exact algorithm is the reference, also if the options do not name it.
            let exact = [AlgorithmChoice::default()];
            let others = algorithms.into_iter().filter(|algorithm| !exact.contains(algorithm));
            let all = exact.into_iter().chain(others);
            let rule_sets =
                all.map(|algorithm| Ok((algorithm.as_str().to_owned(), algorithm.apply(&rules)?)));
            Ok((ReportKind::Compare, name, rule_sets.collect::<Result<_, String>>()?))
        }
        Question::Suggest(_) => Err("a suggestion needs several readings".to_owned()),
    }
}

/// Returns a note if there are adaptive limits: a simulation has no load that they could follow.
fn adaptive_note(rules: &Rules) -> Vec<String> {
    let adaptive = rules.iter().filter(|rule| rule.adapts_by().is_some());
    let names: Vec<String> = adaptive.map(|rule| format!("`{}`", rule.name())).collect();
    let note = (!names.is_empty()).then(|| {
        format!("adaptive limits stay at 100 %, because a trace contains no load: {}", names.join(", "))
    });
    note.into_iter().collect()
}
