//! One reading of the traffic: every request is judged, counted and compared.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use slidegate::{Micros, Rules};

use crate::baseline::Baseline;
use crate::decision_log::Decisions;
use crate::plan::{NamedRules, Output, Question};
use crate::progress::Progress;
use crate::report::{AlgorithmReport, Difference, Late, Report, rule_reports};
use crate::scenario::Time;
use crate::scenarios::{Counting, MAX_KEYS, Scenarios};
use crate::traffic::{Traffic, written};

/// How far times run back in a log that is only written in another order than it happened.
const DISORDER: Micros = Micros::from_secs(3600);

/// Windows that times of whole seconds say little about.
const SHORT: Micros = Micros::from_secs(10);

/// What to decide by, and what is to be said about it.
enum Kind {
    Simulate,
    Compare,
    Differ,
}

/// Answers a question that one reading answers.
pub(crate) fn run(
    traffic: &Traffic,
    question: Question,
    output: &Output,
    stop: &Arc<AtomicBool>,
) -> Result<Report, String> {
    let (kind, rules_from, sets) = sets(question)?;
    let mut notes: Vec<String> = sets.iter().flat_map(|(_, rules)| adaptive(rules)).collect();
    notes.dedup();
    let mut lanes = Scenarios::new(sets, traffic.begin());
    let mut decisions = output.decisions.as_deref().map(Decisions::create).transpose()?;
    let (mut time, mut recorded, mut requests) = (Time::default(), Baseline::default(), 0);
    let mut progress = Progress::new(traffic.length(), stop);
    let read = traffic.each(&mut progress, |event| {
        let at = time.reach(event.at);
        lanes.decide(at, event.request, |decision| {
            requests += 1;
            if let Some(decided) = event.decided {
                recorded.compare(requests, decided, decision);
            }
            if let Some(decisions) = &mut decisions {
                decisions.add(at.get(), decision);
            }
        })
    })?;
    let seconds = progress.took();
    drop(progress);
    decisions.map_or(Ok(()), Decisions::finish)?;
    let Some(main) = lanes.all.last() else { return Err("there are no rules".to_owned()) };
    let short = main.lane.rules().iter().any(|rule| rule.is_limited() && rule.quota().window() < SHORT);
    notes.extend(read.notes);
    if !time.fine && short && read.format.is_some() {
        notes.push(
            "the times of this trace are whole seconds: all requests of one second are judged at its beginning, so windows \
             of a few seconds are judged by more even or more sudden traffic than there was"
                .to_owned(),
        );
    }
    if time.latest_by > DISORDER {
        notes.push(format!(
            "times run back by up to {}, and what comes after a time is not judged before it: is one of them wrong?",
            time.latest_by
        ));
    }
    if lanes.all.iter().any(|counted| counted.tally.is_short()) {
        notes.push(format!(
            "there are more than {MAX_KEYS} keys: of those beyond, only the ones that were denied most are known, and about"
        ));
    }
    let shared = main.lane.stats().shared;
    if shared > 0 {
        notes.push(format!(
            "{shared} decisions were made by counters that several keys share, as on a server that is full"
        ));
    }
    let tally = &main.tally;
    let begin = traffic.begin().or(time.first).unwrap_or(time.latest);
    let mut report = Report {
        traffic: traffic.name(),
        format: read.format,
        rules_from,
        requests: tally.requests,
        allowed: tally.allowed,
        denied: tally.denied,
        unruled: tally.unruled,
        from: time.first.map(written),
        to: time.first.map(|_| written(time.latest)),
        begin_us: begin.get(),
        span_us: time.latest.since(begin).get(),
        seconds,
        requests_per_second: tally.requests as f64 / seconds,
        interrupted: read.interrupted,
        bad_lines: read.bad,
        late: Late { requests: time.late, most_us: time.latest_by.get() },
        recorded: (recorded.compared > 0).then_some(recorded),
        rules: Vec::new(),
        algorithms: Vec::new(),
        difference: None,
        notes,
    };
    match kind {
        Kind::Compare => {
            report.recorded = None;
            report.algorithms =
                lanes.all.iter().map(|counted| AlgorithmReport::new(counted, output.top)).collect();
        }
        Kind::Simulate | Kind::Differ => report.rules = rule_reports(tally, output.top),
    }
    if let (Kind::Differ, [old, new]) = (kind, &lanes.all[..]) {
        report.difference = Some(Difference::new(old, new, &lanes.changes, output.top));
    }
    Ok(report)
}

type Sets = Vec<(String, Rules)>;

/// The rules to decide by, with where they are from. The last of them are those in question.
fn sets(question: Question) -> Result<(Kind, String, Sets), String> {
    match question {
        Question::Simulate(NamedRules { name, rules }) => {
            Ok((Kind::Simulate, name.clone(), vec![(name, *rules)]))
        }
        Question::Differ { new, old } => {
            Ok((Kind::Differ, new.name.clone(), vec![(old.name, *old.rules), (new.name, *new.rules)]))
        }
        Question::Compare(NamedRules { name, rules }, algorithms) => {
            // The exact one is the yardstick, asked for or not.
            let exact = [Counting::SlidingWindow];
            let others = algorithms.into_iter().filter(|algorithm| !exact.contains(algorithm));
            let counted = exact.into_iter().chain(others);
            let sets = counted.map(|algorithm| Ok((algorithm.as_str().to_owned(), algorithm.apply(&rules)?)));
            Ok((Kind::Compare, name, sets.collect::<Result<_, String>>()?))
        }
        Question::Suggest(_) => Err("a suggestion needs several readings".to_owned()),
    }
}

/// Limits that follow a load have none to follow here.
fn adaptive(rules: &Rules) -> Vec<String> {
    let adaptive = rules.iter().filter(|rule| rule.adapts_by().is_some());
    let names: Vec<String> = adaptive.map(|rule| format!("`{}`", rule.name())).collect();
    let note = (!names.is_empty()).then(|| {
        format!(
            "adaptive limits stay at 100 % here, because a trace says nothing of the load: {}",
            names.join(", ")
        )
    });
    note.into_iter().collect()
}
