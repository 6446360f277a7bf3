//! Summary of a run, as text and JSON.

use std::fmt;

use hdrhistogram::Histogram;
use indicatif::HumanCount;
use serde::Serialize;

use super::counts::{Counts, WordCounts};
use super::schedule::Schedule;
use super::workers::LATE_MICROS;

/// Results of one run; as JSON, one object.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    target: String,
    asked: u64,
    seconds: f64,
    decisions_per_second: f64,
    allowed: u64,
    denied: u64,
    errors: u64,
    error_messages: WordCounts,
    sources: WordCounts,
    latency_us: Latency,
    /// Number of decisions slower than each bound.
    slower_than: Slower,
    /// None in a closed loop.
    open_loop: Option<OpenLoop>,
}

#[derive(Debug, Serialize)]
struct Latency {
    p50: u64,
    p90: u64,
    p99: u64,
    #[serde(rename = "p99.9")]
    p999: u64,
    max: u64,
}

#[derive(Debug, Serialize)]
struct Slower {
    #[serde(rename = "1ms")]
    ms: u64,
    #[serde(rename = "10ms")]
    ms10: u64,
    #[serde(rename = "100ms")]
    ms100: u64,
    #[serde(rename = "1s")]
    s: u64,
}

/// Punctuality of the requests of an open loop.
#[derive(Debug, Serialize)]
struct OpenLoop {
    intended_per_second: u64,
    achieved_per_second: f64,
    /// Requests sent more than a millisecond late, because every caller was waiting for a response.
    late: u64,
    /// Requests due before the end and never sent. Their wait until the end is included in the latencies.
    unsent: u64,
    /// Delay of callers that slept until a request was due; none if no caller ever slept.
    woke_late_us: Option<Latency>,
    /// True if this machine was too busy for the load generator, so that it caused part of the latencies.
    generator_fell_behind: bool,
}

impl Summary {
    /// Creates the summary of a run that ended at `now`.
    pub(super) fn new(target: String, schedule: &Schedule, mut counts: Counts, now: u64) -> Self {
        let asked = counts.requests();
        let mut end = counts.last;
        let mut unsent = 0;
        if let Some(rate) = schedule.rate {
            let due = schedule.arrivals(now, rate);
            unsent = due.saturating_sub(asked);
            // The last interval belongs to the last arrival.
            end = end.max(schedule.span(due, rate));
            let stopped = schedule.span(due, rate);
            charge(&mut counts.latency, unsent, stopped - schedule.span(due - unsent, rate));
        }
        let seconds = end.saturating_sub(schedule.measured_from) as f64 / 1e6;
        let per_second = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let decisions = counts.allowed + counts.denied;
        let woke_late = (!counts.woke_late.is_empty()).then(|| latency(&counts.woke_late));
        Summary {
            target,
            asked,
            seconds,
            decisions_per_second: per_second(decisions),
            allowed: counts.allowed,
            denied: counts.denied,
            errors: counts.errors.total(),
            error_messages: counts.errors,
            sources: counts.sources,
            latency_us: latency(&counts.latency),
            slower_than: slower(&counts.latency),
            open_loop: schedule.rate.map(|rate| OpenLoop {
                intended_per_second: rate,
                achieved_per_second: per_second(asked),
                late: counts.late,
                unsent,
                generator_fell_behind: woke_late.as_ref().is_some_and(|late| late.p99 > LATE_MICROS),
                woke_late_us: woke_late,
            }),
        }
    }

    /// Returns true if there was any decision.
    pub(super) fn answered(&self) -> bool {
        self.allowed + self.denied > 0
    }
}

/// Adds the waits of `n` requests that were never sent. The waits are spread evenly, and the first request waited
/// longest.
fn charge(latency: &mut Histogram<u64>, n: u64, longest: u64) {
    // Requests are added in groups, because there may be billions. More groups would not make
    // the result more precise, because the histogram keeps three digits.
    let groups = n.min(10_000);
    for group in 0..groups {
        let (from, to) = (n * group / groups, n * (group + 1) / groups);
        let wait = u128::from(longest) * u128::from(n - from) / u128::from(n);
        latency.saturating_record_n(u64::try_from(wait).unwrap_or(u64::MAX), to - from);
    }
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    let quantile = |q| histogram.value_at_quantile(q);
    Latency {
        p50: quantile(0.5),
        p90: quantile(0.9),
        p99: quantile(0.99),
        p999: quantile(0.999),
        max: histogram.max(),
    }
}

fn slower(histogram: &Histogram<u64>) -> Slower {
    let slower = |micros: u64| histogram.count_between(micros + 1, u64::MAX);
    Slower { ms: slower(1_000), ms10: slower(10_000), ms100: slower(100_000), s: slower(1_000_000) }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |n: u64| 100.0 * n as f64 / self.asked.max(1) as f64;
        let decisions = HumanCount(self.decisions_per_second as u64);
        writeln!(f, "target    {}", self.target)?;
        writeln!(
            f,
            "sent      {} in {:.2} s: {decisions} decisions per second",
            HumanCount(self.asked),
            self.seconds
        )?;
        for (what, n) in [("allowed", self.allowed), ("denied ", self.denied), ("errors ", self.errors)] {
            writeln!(f, "{what}   {} ({:.1} %)", HumanCount(n), share(n))?;
        }
        for (message, count) in self.error_messages.sorted() {
            writeln!(f, "          {} x {message}", HumanCount(count))?;
        }
        writeln!(f, "latency   {}", self.latency_us)?;
        writeln!(f, "slower    {}", self.slower_than)?;
        let sources = self.sources.sorted();
        let sources: Vec<_> =
            sources.iter().map(|(source, n)| format!("{source} {}", HumanCount(*n))).collect();
        write!(f, "source    {}", sources.join(", "))?;
        self.open_loop.as_ref().map_or(Ok(()), |open| write!(f, "\n{open}"))
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p90, p99, p999, max] = [self.p50, self.p90, self.p99, self.p999, self.max].map(time);
        write!(f, "p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p999}, max {max}")
    }
}

impl fmt::Display for Slower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ms, ms10, ms100, s] = [self.ms, self.ms10, self.ms100, self.s].map(HumanCount);
        write!(f, "than 1 ms {ms}, 10 ms {ms10}, 100 ms {ms100}, 1 s {s}")
    }
}

impl fmt::Display for OpenLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (intended, achieved) = (HumanCount(self.intended_per_second), self.achieved_per_second);
        writeln!(f, "rate      {intended} per second intended, {achieved:.1} achieved")?;
        let (late, unsent) = (HumanCount(self.late), HumanCount(self.unsent));
        writeln!(
            f,
            "waited    {late} requests were sent more than 1 ms late, because all callers were busy; {unsent} were not sent"
        )?;
        let Some(Latency { p99, max, .. }) = &self.woke_late_us else {
            return write!(f, "generator had no idle caller: use more --callers, or a lower --rate");
        };
        let verdict = match self.generator_fell_behind {
            true => "fell behind, so part of the latencies is its own",
            false => "kept up",
        };
        write!(f, "generator {verdict}: idle callers woke late by p99 {}, max {}", time(*p99), time(*max))
    }
}

/// Formats microseconds for people.
fn time(micros: u64) -> String {
    match micros {
        0 => "<1 us".to_owned(),
        1..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{:.2} ms", micros as f64 / 1e3),
        _ => format!("{:.2} s", micros as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsent_requests_are_charged_evenly() {
        for n in [1_000, 123_456, 36_000_000_000] {
            let mut histogram = Histogram::new_with_bounds(1, 3_600_000_000, 3).unwrap();
            charge(&mut histogram, n, 1_000_000);
            assert_eq!(histogram.len(), n);
            let Latency { p50, p99, max, .. } = latency(&histogram);
            assert!((499_000..=502_000).contains(&p50), "{p50}");
            assert!((989_000..=992_000).contains(&p99), "{p99}");
            assert!((999_000..=1_001_000).contains(&max), "{max}");
        }
    }

    #[test]
    fn no_unsent_requests_charge_nothing() {
        let mut histogram = Histogram::new(3).unwrap();
        charge(&mut histogram, 0, 0);
        assert!(histogram.is_empty());
    }
}
