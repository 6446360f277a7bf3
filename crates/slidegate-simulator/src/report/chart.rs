//! Draws single charts as SVG, with plotters.
//!
//! Charts have no background and only the colours below. A style sheet adapts these colours to a light or a dark page.

use std::fmt::Display;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::time_axis::{TimeAxis, round_to_two_places};

/// Height of the legend, and of a line with the dates below it.
const LEGEND: u32 = 26;

/// Space to the right of a plot.
const RIGHT: u32 = 24;

/// Height of a row of bars, and of the name above a bar.
const ROW: i32 = 24;
const NAME_ABOVE: i32 = 20;

/// Width of a drawing. Text has the same size in both, so a phone needs the narrow one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Wide,
    Narrow,
}

impl Layout {
    fn width(self) -> u32 {
        match self {
            Layout::Wide => 640,
            Layout::Narrow => 340,
        }
    }

    /// Returns the width of the labels of the vertical axis.
    fn left(self) -> u32 {
        match self {
            Layout::Wide => 58,
            Layout::Narrow => 44,
        }
    }
}

const INK: RGBColor = RGBColor(0x24, 0x29, 0x2f);
const FAINT: RGBColor = RGBColor(0xd0, 0xd7, 0xde);
const ALLOWED: RGBColor = RGBColor(0x2d, 0xa4, 0x6a);
const DENIED: RGBColor = RGBColor(0xd1, 0x45, 0x3b);
const LEVEL: RGBColor = RGBColor(0x3b, 0x78, 0xc4);

/// Style sheet that adapts the colours to a dark page.
pub(super) const STYLE: &str = "\
text{font-family:system-ui,sans-serif}rect{shape-rendering:crispEdges}\
@media(prefers-color-scheme:dark){\
[fill=\"#24292F\"]{fill:#d7dde4}[stroke=\"#24292F\"]{stroke:#d7dde4}\
[fill=\"#D0D7DE\"]{fill:#3a424b}[stroke=\"#D0D7DE\"]{stroke:#3a424b}\
[fill=\"#2DA46A\"]{fill:#3fb97e}[fill=\"#D1453B\"]{fill:#f0685d}[fill=\"#3B78C4\"]{fill:#5b9bea}\
[stroke=\"#D1453B\"]{stroke:#f0685d}}";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = Result<(), String>;

/// One plot over time, with its own name.
pub(super) struct Panel<'a> {
    pub(super) name: &'a str,
    /// Width of each step, in seconds.
    pub(super) step: f64,
    pub(super) lower: &'a [u64],
    pub(super) upper: &'a [u64],
}

/// Content of panels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PanelKind {
    /// Allowed requests, with denied requests stacked on them.
    Counts,
    /// Admitted permits, and the limit.
    Levels,
}

/// Draws panels below each other, all with the same scale.
pub(super) fn panels(
    panels: &[Panel<'_>],
    kind: PanelKind,
    axis: TimeAxis,
    layout: Layout,
) -> Result<String, String> {
    let one = if panels.len() == 1 { 240 } else { 150 };
    let dates = axis.dates();
    // A narrow legend has no room for the dates beside it.
    let top = if dates.is_some() && layout == Layout::Narrow { 2 * LEGEND - 6 } else { LEGEND };
    let height = top + one * panels.len() as u32;
    let (end, width) = (axis.seconds(), layout.width());
    let ticks = axis.ticks(f64::from(width - layout.left() - RIGHT), f64::from(RIGHT));
    let tick_label =
        |x: &f64| ticks.iter().find(|tick| tick.at == *x).map_or(String::new(), |tick| tick.label.clone());
    let highest = |panel: &Panel<'_>| {
        let pairs = panel.lower.iter().zip(panel.upper);
        pairs
            .map(|(a, b)| if kind == PanelKind::Counts { a + b } else { *a.max(b) })
            .max()
            .unwrap_or_default()
    };
    let highest = panels.iter().map(highest).max().unwrap_or_default().max(1) as f64 * 1.1;
    draw(layout, height, |root| {
        let (legend, rest) = root.split_vertically(top);
        match kind {
            PanelKind::Counts => draw_legend(&legend, layout, &[("allowed", ALLOWED), ("denied", DENIED)])?,
            PanelKind::Levels => draw_legend(
                &legend,
                layout,
                &[("admitted", LEVEL), ("over the limit", DENIED), ("limit", INK)],
            )?,
        }
        match (&dates, layout) {
            (Some(dates), Layout::Wide) => {
                draw_label(&legend, dates, ((width - RIGHT) as i32, 6), HPos::Right, 14)?;
            }
            (Some(dates), Layout::Narrow) => draw_label(&legend, dates, (4, 26), HPos::Left, 14)?,
            (None, _) => {}
        }
        for (area, panel) in rest.split_evenly((panels.len(), 1)).iter().zip(panels) {
            let mut chart = ChartBuilder::on(area)
                .margin_right(RIGHT)
                .margin_top(if panels.len() == 1 { 4 } else { 20 })
                .set_label_area_size(LabelAreaPosition::Left, layout.left())
                .set_label_area_size(LabelAreaPosition::Bottom, 26)
                .build_cartesian_2d(
                    Seconds {
                        range: (0.0..end).into(),
                        labelled: ticks.iter().map(|tick| tick.at).collect(),
                    },
                    0.0..highest,
                )
                .map_err(draw_error)?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .y_labels(if panels.len() == 1 { 6 } else { 3 })
                .light_line_style(TRANSPARENT)
                .bold_line_style(FAINT)
                .axis_style(FAINT)
                .label_style(("sans-serif", 14, &INK))
                .x_label_formatter(&tick_label)
                .y_label_formatter(&|y| axis_count(*y))
                .draw()
                .map_err(draw_error)?;
            match kind {
                PanelKind::Counts => draw_counts(&mut chart, panel)?,
                PanelKind::Levels => draw_levels(&mut chart, panel, end)?,
            }
            if panels.len() > 1 {
                draw_label(area, panel.name, (layout.left() as i32 + 6, 4), HPos::Left, 15)?;
            }
        }
        Ok(())
    })
}

/// Time axis of a plot, in seconds.
struct Seconds {
    range: RangedCoordf64,
    /// Times that have a label.
    labelled: Vec<f64>,
}

impl Ranged for Seconds {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.range.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.labelled.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.range()
    }
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Seconds, RangedCoordf64>>;

fn draw_counts(chart: &mut Chart<'_, '_>, panel: &Panel<'_>) -> DrawResult {
    let steps =
        || panel.lower.iter().zip(panel.upper).enumerate().map(|(n, (a, b))| (n as f64 * panel.step, *a, *b));
    let end = panel.step * panel.lower.len() as f64;
    let outline = |height: fn(u64, u64) -> u64| {
        let tops = steps().flat_map(move |(x, a, b)| {
            let y = height(a, b) as f64;
            [(x, y), (x + panel.step, y)]
        });
        [(0.0, 0.0)].into_iter().chain(tops).chain([(end, 0.0)]).collect::<Vec<_>>()
    };
    // The area of denied requests includes the allowed ones, so it is drawn first, behind them.
    chart.draw_series([Polygon::new(outline(|a, b| a + b), DENIED.filled())]).map_err(draw_error)?;
    chart.draw_series([Polygon::new(outline(|a, _| a), ALLOWED.filled())]).map_err(draw_error)?;
    Ok(())
}

fn draw_levels(chart: &mut Chart<'_, '_>, panel: &Panel<'_>, end: f64) -> DrawResult {
    // Bars have a minimum width, so that they are visible. It is larger if there are few of them.
    let bar_count = panel.lower.iter().filter(|admitted| **admitted > 0).count();
    let width = panel.step.max(end / if bar_count < 40 { 100.0 } else { 240.0 });
    let bars = panel.lower.iter().zip(panel.upper).enumerate().filter(|(_, (admitted, _))| **admitted > 0);
    for (n, (&admitted, &limit)) in bars {
        // A bar at the end moves left, so that it keeps its width.
        let from = (n as f64 * panel.step).min(end - width);
        let to = from + width;
        let within = admitted.min(limit.max(1)) as f64;
        chart
            .draw_series([Rectangle::new([(from, 0.0), (to, within)], LEVEL.filled())])
            .map_err(draw_error)?;
        if admitted > limit {
            let over = Rectangle::new([(from, within), (to, admitted as f64)], DENIED.filled());
            chart.draw_series([over]).map_err(draw_error)?;
        }
    }
    let mut path: Vec<(f64, f64)> = Vec::new();
    let known = panel.upper.iter().copied().enumerate().filter(|(_, limit)| *limit > 0);
    for (n, limit) in known {
        let (x, y) = (n as f64 * panel.step, limit as f64);
        match path.last().copied() {
            None => path.push((0.0, y)),
            Some((_, before)) if before != y => path.extend([(x, before), (x, y)]),
            Some(_) => {}
        }
    }
    if let Some((_, last)) = path.last().copied() {
        path.push((end, last));
    }
    chart.draw_series([PathElement::new(path, INK.stroke_width(2))]).map_err(draw_error)?;
    Ok(())
}

/// Draws a horizontal bar per row of (name, part, total). The part has another colour.
pub(super) fn bars(rows: &[(String, u64, u64)], of: (&str, &str), layout: Layout) -> Result<String, String> {
    // On a narrow drawing, names are above their bars.
    let (from, above) = if layout == Layout::Wide { (270, 0) } else { (4, NAME_ABOVE) };
    let row_height = ROW + above;
    let room = layout.width() as i32 - from - 130;
    let longest = rows.iter().map(|(_, part, all)| *part.max(all)).max().unwrap_or_default().max(1) as f64;
    draw(layout, LEGEND + 4 + row_height as u32 * rows.len() as u32, |root| {
        let (legend, rest) = root.split_vertically(LEGEND);
        draw_legend(&legend, layout, &[(of.0, DENIED), (of.1, FAINT)])?;
        for (n, (name, part, all)) in rows.iter().enumerate() {
            let y = row_height * n as i32;
            let to = |n: u64| from + (n as f64 / longest * f64::from(room)) as i32;
            let name = truncate_start(name);
            match layout {
                Layout::Wide => draw_label(&rest, &name, (from - 8, y + 4), HPos::Right, 14)?,
                Layout::Narrow => draw_label(&rest, &name, (from, y + 4), HPos::Left, 14)?,
            }
            let y = y + above;
            draw_bar(&rest, (from, y), to(*all), FAINT)?;
            draw_bar(&rest, (from, y), to(*part), DENIED)?;
            let label = format!("{} of {}", axis_count(*part as f64), axis_count(*all as f64));
            draw_label(&rest, &label, (to(*part.max(all)) + 6, y + 4), HPos::Left, 14)?;
        }
        Ok(())
    })
}

/// Draws a bar per row of (name, number of keys): vertical, or horizontal on a narrow drawing. The first row is for keys that
/// were never denied.
pub(super) fn columns(columns: &[(String, u64)], layout: Layout) -> Result<String, String> {
    let highest = columns.iter().map(|(_, n)| *n).max().unwrap_or_default().max(1) as f64;
    let colour = |n: usize| if n == 0 { ALLOWED } else { DENIED };
    if layout == Layout::Narrow {
        let (from, room) = (96, layout.width() as i32 - 96 - 70);
        return draw(layout, 4 + ROW as u32 * columns.len() as u32, |root| {
            for (n, (name, keys)) in columns.iter().enumerate() {
                let y = ROW * n as i32;
                let to = from + (*keys as f64 / highest * f64::from(room)) as i32;
                draw_label(root, name, (from - 8, y + 4), HPos::Right, 14)?;
                draw_bar(root, (from, y), to, colour(n))?;
                draw_label(root, &axis_count(*keys as f64), (to + 6, y + 4), HPos::Left, 14)?;
            }
            Ok(())
        });
    }
    draw(layout, 240, |root| {
        let (left, bottom, top) = (20, 210, 24);
        let right = layout.width() as i32 - left;
        let each = (right - left) / columns.len().max(1) as i32;
        for (n, (name, keys)) in columns.iter().enumerate() {
            let x = left + each * n as i32;
            let y = bottom - (*keys as f64 / highest * f64::from(bottom - top)) as i32;
            let width = each.min(90) - 8;
            let from = x + (each - width) / 2;
            root.draw(&Rectangle::new([(from, y), (from + width, bottom)], colour(n).filled()))
                .map_err(draw_error)?;
            draw_label(root, &axis_count(*keys as f64), (x + each / 2, y - 18), HPos::Center, 14)?;
            draw_label(root, name, (x + each / 2, bottom + 8), HPos::Center, 14)?;
        }
        root.draw(&PathElement::new([(left, bottom), (right, bottom)], FAINT)).map_err(draw_error)
    })
}

fn draw(
    layout: Layout,
    height: u32,
    draw_on: impl FnOnce(&Area<'_>) -> DrawResult,
) -> Result<String, String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (layout.width(), height)).into_drawing_area();
        draw_on(&root)?;
        root.present().map_err(draw_error)?;
    }
    Ok(svg)
}

/// Draws a horizontal bar in the row that begins at `y`.
fn draw_bar(area: &Area<'_>, (from, y): (i32, i32), to: i32, colour: RGBColor) -> DrawResult {
    area.draw(&Rectangle::new([(from, y + 3), (to, y + 19)], colour.filled())).map_err(draw_error)
}

fn draw_legend(area: &Area<'_>, layout: Layout, entries: &[(&str, RGBColor)]) -> DrawResult {
    let mut x = if layout == Layout::Wide { 64 } else { 4 };
    for (name, colour) in entries {
        area.draw(&Rectangle::new([(x, 7), (x + 12, 19)], colour.filled())).map_err(draw_error)?;
        draw_label(area, name, (x + 18, 6), HPos::Left, 14)?;
        x += 46 + 7 * name.len() as i32;
    }
    Ok(())
}

fn draw_label(area: &Area<'_>, text: &str, at: (i32, i32), align: HPos, size: i32) -> DrawResult {
    let style = TextStyle::from(("sans-serif", size).into_font()).color(&INK).pos(Pos::new(align, VPos::Top));
    area.draw_text(text, &style, at).map_err(draw_error)
}

/// Cuts off the beginning of a name that is too long for the chart.
fn truncate_start(name: &str) -> String {
    const MAX_CHARS: usize = 36;
    if name.chars().count() <= MAX_CHARS {
        return name.to_owned();
    }
    let end: String = name.chars().skip(name.chars().count() - MAX_CHARS + 1).collect();
    format!("…{end}")
}

fn axis_count(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{}G", round_to_two_places(n / 1e9)),
        n if n >= 1e6 => format!("{}M", round_to_two_places(n / 1e6)),
        n if n >= 1e4 => format!("{}k", round_to_two_places(n / 1e3)),
        n => round_to_two_places(n),
    }
}

fn draw_error(error: impl Display) -> String {
    format!("cannot draw: {error}")
}
