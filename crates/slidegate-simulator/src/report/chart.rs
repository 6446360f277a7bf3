//! Draws single charts as SVG, with plotters.
//!
//! Charts have no background and only the colours below. A style sheet adapts these colours to a light or a dark page.

use std::fmt::Display;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(super) const WIDTH: u32 = 720;

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
pub(super) fn panels(panels: &[Panel<'_>], kind: PanelKind) -> Result<String, String> {
    let one = if panels.len() == 1 { 240 } else { 150 };
    let height = 26 + one * panels.len() as u32;
    let end = panels.iter().map(|panel| panel.step * panel.lower.len() as f64).fold(0.0, f64::max) * 1.01;
    let highest = |panel: &Panel<'_>| {
        let pairs = panel.lower.iter().zip(panel.upper);
        pairs
            .map(|(a, b)| if kind == PanelKind::Counts { a + b } else { *a.max(b) })
            .max()
            .unwrap_or_default()
    };
    let top = panels.iter().map(highest).max().unwrap_or_default().max(1) as f64 * 1.1;
    draw(height, |root| {
        let (legend, rest) = root.split_vertically(26);
        match kind {
            PanelKind::Counts => draw_legend(&legend, &[("allowed", ALLOWED), ("denied", DENIED)])?,
            PanelKind::Levels => {
                draw_legend(&legend, &[("admitted", LEVEL), ("over the limit", DENIED), ("limit", INK)])?
            }
        }
        for (area, panel) in rest.split_evenly((panels.len(), 1)).iter().zip(panels) {
            let mut chart = ChartBuilder::on(area)
                .margin_right(16)
                .margin_top(if panels.len() == 1 { 4 } else { 20 })
                .set_label_area_size(LabelAreaPosition::Left, 58)
                .set_label_area_size(LabelAreaPosition::Bottom, 26)
                .build_cartesian_2d(0.0..end.max(1e-6), 0.0..top)
                .map_err(draw_error)?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .y_labels(if panels.len() == 1 { 6 } else { 3 })
                .x_labels(8)
                .light_line_style(TRANSPARENT)
                .bold_line_style(FAINT)
                .axis_style(FAINT)
                .label_style(("sans-serif", 14, &INK))
                .x_label_formatter(&|x| axis_time(*x, end))
                .y_label_formatter(&|y| axis_count(*y))
                .draw()
                .map_err(draw_error)?;
            match kind {
                PanelKind::Counts => draw_counts(&mut chart, panel)?,
                PanelKind::Levels => draw_levels(&mut chart, panel, end)?,
            }
            if panels.len() > 1 {
                draw_label(area, panel.name, (64, 4), HPos::Left, 15)?;
            }
        }
        Ok(())
    })
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

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
        let (from, to) = (n as f64 * panel.step, n as f64 * panel.step + width);
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
pub(super) fn bars(rows: &[(String, u64, u64)], of: (&str, &str)) -> Result<String, String> {
    let height = 30 + 24 * rows.len() as u32;
    let longest = rows.iter().map(|(_, part, all)| *part.max(all)).max().unwrap_or_default().max(1) as f64;
    draw(height, |root| {
        let (legend, rest) = root.split_vertically(26);
        draw_legend(&legend, &[(of.0, DENIED), (of.1, FAINT)])?;
        let (names, room) = (300, WIDTH as i32 - 300 - 130);
        for (n, (name, part, all)) in rows.iter().enumerate() {
            let y = 24 * n as i32;
            let to = |n: u64| names + (n as f64 / longest * f64::from(room)) as i32;
            draw_label(&rest, &truncate_start(name), (names - 8, y + 4), HPos::Right, 14)?;
            rest.draw(&Rectangle::new([(names, y + 3), (to(*all), y + 19)], FAINT.filled()))
                .map_err(draw_error)?;
            rest.draw(&Rectangle::new([(names, y + 3), (to(*part), y + 19)], DENIED.filled()))
                .map_err(draw_error)?;
            let label = format!("{} of {}", axis_count(*part as f64), axis_count(*all as f64));
            draw_label(&rest, &label, (to(*part.max(all)) + 6, y + 4), HPos::Left, 14)?;
        }
        Ok(())
    })
}

/// Draws a vertical bar per column of (name, number of keys). The first column is for keys that were never denied.
pub(super) fn columns(columns: &[(String, u64)]) -> Result<String, String> {
    let highest = columns.iter().map(|(_, n)| *n).max().unwrap_or_default().max(1) as f64;
    draw(240, |root| {
        let (left, bottom, top) = (20, 210, 24);
        let each = (WIDTH as i32 - 2 * left) / columns.len().max(1) as i32;
        for (n, (name, keys)) in columns.iter().enumerate() {
            let x = left + each * n as i32;
            let y = bottom - (*keys as f64 / highest * f64::from(bottom - top)) as i32;
            let colour = if n == 0 { ALLOWED } else { DENIED };
            let width = each.min(90) - 8;
            let from = x + (each - width) / 2;
            root.draw(&Rectangle::new([(from, y), (from + width, bottom)], colour.filled()))
                .map_err(draw_error)?;
            draw_label(root, &axis_count(*keys as f64), (x + each / 2, y - 18), HPos::Center, 14)?;
            draw_label(root, name, (x + each / 2, bottom + 8), HPos::Center, 14)?;
        }
        root.draw(&PathElement::new([(left, bottom), (WIDTH as i32 - left, bottom)], FAINT))
            .map_err(draw_error)
    })
}

fn draw(height: u32, draw_on: impl FnOnce(&Area<'_>) -> DrawResult) -> Result<String, String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        draw_on(&root)?;
        root.present().map_err(draw_error)?;
    }
    Ok(svg)
}

fn draw_legend(area: &Area<'_>, entries: &[(&str, RGBColor)]) -> DrawResult {
    let mut x = 64;
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
    const MAX_CHARS: usize = 40;
    if name.chars().count() <= MAX_CHARS {
        return name.to_owned();
    }
    let end: String = name.chars().skip(name.chars().count() - MAX_CHARS + 1).collect();
    format!("…{end}")
}

/// Formats a time, in seconds, on an axis that ends at `end`.
fn axis_time(x: f64, end: f64) -> String {
    match end {
        end if end < 0.5 => format!("{}ms", round_to_two_places(x * 1e3)),
        end if end < 180.0 => format!("{}s", round_to_two_places(x)),
        end if end < 3.0 * 3600.0 => two_units(x, (60, "m"), (1, "s")),
        end if end < 72.0 * 3600.0 => two_units(x, (3_600, "h"), (60, "m")),
        _ => two_units(x, (86_400, "d"), (3_600, "h")),
    }
}

/// Formats a time, in seconds, as whole large units and the rest in small units.
fn two_units(x: f64, (large, large_unit): (u64, &str), (small, small_unit): (u64, &str)) -> String {
    let smalls = (x / small as f64).round() as u64;
    match (smalls * small / large, smalls % (large / small)) {
        (whole, 0) => format!("{whole}{large_unit}"),
        (0, rest) => format!("{rest}{small_unit}"),
        (whole, rest) => format!("{whole}{large_unit}{rest}{small_unit}"),
    }
}

fn axis_count(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{}G", round_to_two_places(n / 1e9)),
        n if n >= 1e6 => format!("{}M", round_to_two_places(n / 1e6)),
        n if n >= 1e4 => format!("{}k", round_to_two_places(n / 1e3)),
        n => round_to_two_places(n),
    }
}

fn round_to_two_places(n: f64) -> String {
    let text = format!("{n:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn draw_error(error: impl Display) -> String {
    format!("cannot draw: {error}")
}

#[cfg(test)]
mod tests {
    use super::axis_time;

    #[test]
    fn axis_times_use_at_most_two_units() {
        for (x, end, text) in [
            (0.25, 0.4, "250ms"),
            (100.0, 170.0, "100s"),
            (100.0, 300.0, "1m40s"),
            (120.0, 300.0, "2m"),
            (20.0, 300.0, "20s"),
            (59.9999, 300.0, "1m"),
            (5_400.0, 20_000.0, "1h30m"),
            (129_600.0, 400_000.0, "1d12h"),
            (0.0, 400_000.0, "0d"),
        ] {
            assert_eq!(axis_time(x, end), text, "{x} of {end}");
        }
    }
}
