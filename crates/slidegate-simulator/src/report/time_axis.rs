//! Labels of a time axis, at round times.

use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_micros;

const MILLISECOND: u64 = 1_000;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Last instant that has a date with a year of four digits.
const LAST_DATE: u64 = 253_402_300_799 * SECOND;

/// Distances between two labels.
const STEPS: [u64; 36] = [
    MILLISECOND,
    2 * MILLISECOND,
    5 * MILLISECOND,
    10 * MILLISECOND,
    20 * MILLISECOND,
    50 * MILLISECOND,
    100 * MILLISECOND,
    200 * MILLISECOND,
    500 * MILLISECOND,
    SECOND,
    2 * SECOND,
    5 * SECOND,
    10 * SECOND,
    15 * SECOND,
    30 * SECOND,
    MINUTE,
    2 * MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    15 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    3 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
    2 * DAY,
    7 * DAY,
    14 * DAY,
    28 * DAY,
    91 * DAY,
    182 * DAY,
    365 * DAY,
    5 * 365 * DAY,
    50 * 365 * DAY,
];

/// Approximate width of a character of a label, in pixels.
const CHAR_WIDTH: f64 = 7.5;

/// Smallest gap between two labels, in pixels.
const GAP: f64 = 16.0;

/// Range of time on the horizontal axis of a chart, in microseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeAxis {
    pub(super) from: u64,
    pub(super) to: u64,
    /// True to show the time of day in UTC, false to show the time since the start.
    pub(super) clock: bool,
}

/// Label of a time axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    /// Seconds since the start of the axis.
    pub(super) at: f64,
    pub(super) label: String,
}

impl TimeAxis {
    pub(super) fn seconds(&self) -> f64 {
        self.span() as f64 / 1e6
    }

    fn span(&self) -> u64 {
        self.to.saturating_sub(self.from).max(1)
    }

    fn has_clock(&self) -> bool {
        self.clock && self.to <= LAST_DATE
    }

    /// Returns the labels of an axis that is `room` pixels wide, with `margin` pixels to the right of it.
    pub(super) fn ticks(&self, room: f64, margin: f64) -> Vec<Tick> {
        let label_width = |step: u64| self.longest_label(step) as f64 * CHAR_WIDTH;
        let fits = |step: u64| label_width(step) + GAP <= step as f64 / self.span() as f64 * room;
        let step = STEPS.into_iter().find(|step| fits(*step)).unwrap_or(self.span());
        // Times of day are multiples of the step since 1970, other times since the start.
        let first = if self.has_clock() { self.from.next_multiple_of(step) } else { self.from };
        let instants = (0..).map_while(|n| Some(first + n * step).filter(|at| *at <= self.to));
        let is_inside = |at: &u64| {
            let to_the_end = (self.to - at) as f64 / self.span() as f64 * room;
            to_the_end + margin >= label_width(step) / 2.0
        };
        instants.filter(is_inside).map(|at| self.tick(at, step)).collect()
    }

    fn tick(&self, at: u64, step: u64) -> Tick {
        let since = at - self.from;
        let label = if self.has_clock() { clock_label(at, step) } else { offset_label(since, self.span()) };
        Tick { at: since as f64 / 1e6, label }
    }

    /// Returns the number of characters of the longest label.
    fn longest_label(&self, step: u64) -> usize {
        match step {
            _ if !self.has_clock() => 6,
            ..SECOND => "23:59:59.999".len(),
            SECOND..MINUTE => "23:59:59".len(),
            _ => "30 Nov".len(),
        }
    }

    /// Returns the date or the dates of the axis; none if it shows the time since the start.
    pub(super) fn dates(&self) -> Option<String> {
        if !self.has_clock() {
            return None;
        }
        // The end of the last bucket is not in it.
        let (from, to) = (date_label(self.from), date_label(self.to.saturating_sub(1).max(self.from)));
        Some(if from == to { format!("{from}, UTC") } else { format!("{from} to {to}, UTC") })
    }
}

/// Formats the time of day. Midnight is the date of the new day.
fn clock_label(at: u64, step: u64) -> String {
    let text = rfc3339(at);
    if step >= DAY || (step >= MINUTE && at.is_multiple_of(DAY)) {
        return format!("{} {}", day(&text), month(&text));
    }
    match step {
        ..SECOND => text[11..23].trim_end_matches('0').trim_end_matches('.').to_owned(),
        SECOND..MINUTE => text[11..19].to_owned(),
        _ => text[11..16].to_owned(),
    }
}

fn date_label(at: u64) -> String {
    let text = rfc3339(at);
    format!("{} {} {}", day(&text), month(&text), &text[..4])
}

/// Formats an instant up to [`LAST_DATE`] like `2026-11-17T01:50:56.000000Z`.
fn rfc3339(at: u64) -> String {
    format_rfc3339_micros(SystemTime::UNIX_EPOCH + Duration::from_micros(at.min(LAST_DATE))).to_string()
}

fn day(text: &str) -> &str {
    text[8..10].trim_start_matches('0')
}

fn month(text: &str) -> &'static str {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let number: usize = text[5..7].parse().unwrap_or(1);
    MONTHS[number.clamp(1, 12) - 1]
}

/// Formats a time since the start of an axis with this span, with at most two units.
fn offset_label(since: u64, span: u64) -> String {
    match span {
        _ if span < SECOND / 2 => format!("{}ms", round_to_two_places(since as f64 / 1e3)),
        _ if span < 3 * MINUTE => format!("{}s", round_to_two_places(since as f64 / 1e6)),
        _ if span < 3 * HOUR => two_units(since, (MINUTE, "m"), (SECOND, "s")),
        _ if span < 3 * DAY => two_units(since, (HOUR, "h"), (MINUTE, "m")),
        _ => two_units(since, (DAY, "d"), (HOUR, "h")),
    }
}

/// Formats a time as whole large units and the rest in small units.
fn two_units(since: u64, (large, large_unit): (u64, &str), (small, small_unit): (u64, &str)) -> String {
    let smalls = (since + small / 2) / small;
    match (smalls * small / large, smalls % (large / small)) {
        (whole, 0) => format!("{whole}{large_unit}"),
        (0, rest) => format!("{rest}{small_unit}"),
        (whole, rest) => format!("{whole}{large_unit}{rest}{small_unit}"),
    }
}

pub(super) fn round_to_two_places(n: f64) -> String {
    let text = format!("{n:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-17T09:00:00Z.
    const NINE: u64 = 1_794_906_000 * SECOND;

    fn labels(axis: TimeAxis, room: f64) -> Vec<String> {
        axis.ticks(room, 24.0).into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn clock_labels_are_at_round_times() {
        let axis = |from: u64, span: u64| TimeAxis { from, to: from + span, clock: true };
        let wide = |from, span| labels(axis(from, span), 646.0);
        assert_eq!(wide(NINE, HOUR), ["09:00", "09:10", "09:20", "09:30", "09:40", "09:50", "10:00"]);
        assert_eq!(wide(NINE + 7 * MINUTE, HOUR)[..2], ["09:10", "09:20"]);
        // A label at the end of the axis would not fit into the picture.
        assert_eq!(wide(NINE, 25 * SECOND), ["09:00:00", "09:00:05", "09:00:10", "09:00:15", "09:00:20"]);
        assert_eq!(wide(NINE, SECOND)[1..3], ["09:00:00.2", "09:00:00.4"]);
        // Midnight is a date.
        assert_eq!(
            wide(NINE, DAY),
            ["09:00", "12:00", "15:00", "18:00", "21:00", "18 Nov", "03:00", "06:00", "09:00"]
        );
        assert_eq!(wide(NINE, 30 * DAY)[0], "19 Nov");
        assert_eq!(labels(axis(NINE, HOUR), 280.0), ["09:00", "09:15", "09:30", "09:45", "10:00"]);
        assert_eq!(axis(NINE, HOUR).dates().unwrap(), "17 Nov 2026, UTC");
        assert_eq!(axis(NINE, 15 * HOUR).dates().unwrap(), "17 Nov 2026, UTC");
        assert_eq!(axis(NINE, DAY).dates().unwrap(), "17 Nov 2026 to 18 Nov 2026, UTC");
    }

    #[test]
    fn every_axis_has_few_labels() {
        for from in [0, NINE, LAST_DATE - 5, u64::MAX / 2] {
            for span in (0..60).map(|n| 1u64 << n) {
                for clock in [true, false] {
                    let axis = TimeAxis { from, to: from + span, clock };
                    for (room, most) in [(646.0, 13), (280.0, 6)] {
                        let ticks = axis.ticks(room, 24.0);
                        assert!(ticks.len() <= most, "{axis:?}: {ticks:?}");
                        assert!(
                            ticks.iter().all(|tick| (0.0..=axis.seconds()).contains(&tick.at)),
                            "{ticks:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn offset_labels_have_at_most_two_units() {
        for (since, span, text) in [
            (250 * MILLISECOND, 400 * MILLISECOND, "250ms"),
            (100 * SECOND, 170 * SECOND, "100s"),
            (100 * SECOND, 300 * SECOND, "1m40s"),
            (120 * SECOND, 300 * SECOND, "2m"),
            (20 * SECOND, 300 * SECOND, "20s"),
            (90 * MINUTE, 5 * HOUR, "1h30m"),
            (36 * HOUR, 4 * DAY, "1d12h"),
            (0, 4 * DAY, "0d"),
        ] {
            assert_eq!(offset_label(since, span), text, "{since} of {span}");
        }
        let axis = TimeAxis { from: 5, to: 5 + 2 * MINUTE, clock: false };
        assert_eq!(labels(axis, 646.0), ["0s", "15s", "30s", "45s", "60s", "75s", "90s", "105s", "120s"]);
    }
}
