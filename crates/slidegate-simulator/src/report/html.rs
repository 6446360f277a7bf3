//! Formats a report as one HTML page that loads no other files.

use indicatif::{HumanBytes, HumanCount};

use super::chart::STYLE;
use super::text::{denial_run, format_duration, format_percent};
use super::verdict::Verdict;
use super::{Report, ReportChart, percentage};
use crate::suggest::{Suggestion, Suggestions};

const PAGE: &str = include_str!("page.html");

/// Formats the report as a page. With `suggestions`, the report is about the suggested limits.
pub(crate) fn page(report: &Report, suggestions: Option<&Suggestions>, charts: &[ReportChart]) -> String {
    let mut body = header(report, suggestions);
    body.push_str(&summary_cards(report, suggestions.is_some()));
    body.push_str(&suggestions.map_or(String::new(), suggested_limits));
    body.push_str(&algorithms(report));
    body.push_str(&difference(report));
    let mut heading = "";
    for chart in charts {
        if chart.heading != heading {
            let end = if heading.is_empty() { "" } else { "</div></section>" };
            // Suggested limits are simulated as shadow rules, so that they do not influence each other.
            let shown = match suggestions {
                Some(_) => chart.heading.replacen(" (shadow)", "", 1),
                None => chart.heading.clone(),
            };
            body.push_str(&format!(
                "{end}<section><h2>{}</h2>{}<div class=grid>",
                escape_html(&shown),
                rule_figures(report, &chart.heading, suggestions.is_some())
            ));
            heading = &chart.heading;
        }
        body.push_str(&format!(
            "<figure><figcaption>{}</figcaption><div class=roomy>{}</div><div class=narrow>{}</div></figure>",
            chart.title, chart.wide, chart.narrow
        ));
    }
    if !heading.is_empty() {
        body.push_str("</div></section>");
    }
    body.push_str(&remarks(report, suggestions));
    PAGE.replace("{style}", STYLE).replace("{title}", &escape_html(&report.traffic)).replace("{body}", &body)
}

/// Formats the result in one sentence, and the source of the traffic.
fn header(report: &Report, suggestions: Option<&Suggestions>) -> String {
    let Verdict { headline, facts } = Verdict::new(report, suggestions);
    let format = report.format.map_or(String::new(), |format| format!(" ({})", format.as_str()));
    let times = match (&report.from, &report.to) {
        (Some(from), Some(to)) if report.format.is_some() => format!(", {from} to {to}"),
        _ => String::new(),
    };
    format!(
        "<header><h1>{}</h1><p class=facts>{}</p><p>Slidegate simulation of {}{format}{times}, evaluated by {}</p></header>",
        escape_html(&headline),
        escape_html(&facts.join(" ")),
        escape_html(&report.traffic),
        escape_html(&report.rules_from)
    )
}

/// Formats the suggested limits, each with its effect and the effect of one permit less.
fn suggested_limits(suggestions: &Suggestions) -> String {
    let mut html = "<section><h2>Suggested limits</h2>".to_owned();
    for suggestion in &suggestions.suggestions {
        let Suggestion { rule, window, limit, one_less, peak, .. } = suggestion;
        let rule = escape_html(rule);
        let Some(limit) = limit else {
            html.push_str(&format!("<p><b>{rule}</b>: no request matched.</p>"));
            continue;
        };
        html.push_str(&format!(
            "<p><b>{rule}: limit {limit} per {window}</b> denies {}.",
            suggestion.effect(suggestion.denials())
        ));
        if let Some(less) = one_less {
            html.push_str(&format!(" A limit of {} denies {}.", limit - 1, suggestion.effect(*less)));
        }
        html.push_str(&format!(" The busiest client asks for {} in one window.</p>", HumanCount(*peak)));
    }
    html.push_str("</section>");
    html
}

/// Formats the total numbers. Limits that are only suggested deny nothing together.
fn summary_cards(report: &Report, is_suggestion: bool) -> String {
    let mut html = "<div class=cards>".to_owned();
    let mut card = |class: &str, number: String, what: String| {
        html.push_str(&format!("<div class=\"card {class}\"><b>{number}</b><span>{what}</span></div>"));
    };
    card(
        "",
        HumanCount(report.requests).to_string(),
        format!("requests over {}", format_duration(report.span_us)),
    );
    if report.algorithms.is_empty() && !is_suggestion {
        let percent_of_all = |n| format_percent(percentage(n, report.requests));
        card(
            "allowed",
            HumanCount(report.allowed).to_string(),
            format!("allowed, {}", percent_of_all(report.allowed)),
        );
        card(
            "denied",
            HumanCount(report.denied).to_string(),
            format!("denied, {}", percent_of_all(report.denied)),
        );
    }
    if report.unruled > 0 {
        card("", HumanCount(report.unruled).to_string(), "met no rule".to_owned());
    }
    if let Some(recorded) = &report.recorded {
        let compared = HumanCount(recorded.compared);
        card(
            "",
            HumanCount(recorded.differences).to_string(),
            format!("of {compared} recorded decisions differ"),
        );
    }
    html.push_str("</div>");
    html
}

/// Formats the numbers of one rule, for the section with its charts.
fn rule_figures(report: &Report, heading: &str, is_suggestion: bool) -> String {
    let Some(rule) = report.rules.iter().find(|rule| super::text::rule_heading(rule) == heading) else {
        return String::new();
    };
    let denied = if rule.mode == "shadow" { "would be denied" } else { "denied" };
    let by_others = match rule.denied_by_others {
        0 => String::new(),
        n => format!(", {} denied by other rules", HumanCount(n)),
    };
    let mut html = format!(
        "<p>{} requests: {} allowed, <b>{} {denied}</b> ({}){by_others}. Keys: {}.</p>",
        HumanCount(rule.asked),
        HumanCount(rule.allowed),
        HumanCount(rule.denied),
        format_percent(percentage(rule.denied, rule.asked)),
        super::text::keys(rule)
    );
    if let (Some(denied), Some(allowed), false) = (rule.newly_denied, rule.newly_allowed, is_suggestion) {
        let (denied, allowed) = (HumanCount(denied), HumanCount(allowed));
        html.push_str(&format!(
            "<p>If it were enforced: {denied} newly denied, {allowed} newly allowed.</p>"
        ));
    }
    if let Some(worst) = &rule.worst_window {
        html.push_str(&format!(
            "<p>Worst window: {} of {} admitted, <code>{}</code>.</p>",
            HumanCount(worst.admitted),
            HumanCount(worst.limit),
            escape_html(&worst.key)
        ));
    }
    if let Some(denied_key) = &rule.longest_denied {
        html.push_str(&format!(
            "<p>Longest run of denials: {}, <code>{}</code>.</p>",
            denial_run(denied_key),
            escape_html(&denied_key.key)
        ));
    }
    html
}

fn algorithms(report: &Report) -> String {
    if report.algorithms.is_empty() {
        return String::new();
    }
    let mut html = "<section><h2>Comparison of algorithms</h2><div class=wide><table><tr><th>algorithm<th>allowed<th>denied<th>worst over the limit\
                    <th>denied needlessly<th>let through<th>memory</tr>"
        .to_owned();
    for algorithm in &report.algorithms {
        let over = if algorithm.overshoot > 0 { " class=bad" } else { "" };
        html.push_str(&format!(
            "<tr><td>{}<td>{}<td>{}<td{over}>{}<td>{}<td>{}<td>{}</tr>",
            escape_html(&algorithm.algorithm),
            HumanCount(algorithm.allowed),
            HumanCount(algorithm.denied),
            HumanCount(algorithm.overshoot),
            HumanCount(algorithm.denied_needlessly),
            HumanCount(algorithm.allowed_beyond),
            HumanBytes(algorithm.bytes as u64)
        ));
    }
    html.push_str(
        "</table></div><p>Worst over the limit: the most permits admitted above the limit in any window of any key. Denied \
         needlessly: requests that the exact window allowed. Let through: requests that the exact window denied.</p></section>",
    );
    html
}

fn difference(report: &Report) -> String {
    let Some(difference) = &report.difference else { return String::new() };
    let mut html = format!(
        "<section><h2>Compared with {}</h2><p>{} denied before, {} now: <b>{} newly denied, {} newly allowed</b>, of {} keys.</p>\
         <div class=wide><table><tr><th>rule or key<th>newly denied<th>newly allowed</tr>",
        escape_html(&difference.against),
        HumanCount(difference.denied_before),
        HumanCount(report.denied),
        HumanCount(difference.newly_denied),
        HumanCount(difference.newly_allowed),
        HumanCount(difference.changed_keys)
    );
    for changed in difference.rules.iter().chain(&difference.keys) {
        html.push_str(&format!(
            "<tr><td>{}<td>{}<td>{}</tr>",
            escape_html(&changed.name),
            HumanCount(changed.newly_denied),
            HumanCount(changed.newly_allowed)
        ));
    }
    html.push_str("</table></div></section>");
    html
}

/// Formats notes, late requests and lines that could not be parsed.
fn remarks(report: &Report, suggestions: Option<&Suggestions>) -> String {
    let mapped = report.mapped.iter().map(|mapped| escape_html(&format!("The attribute {mapped}.")));
    let suggested = suggestions.iter().flat_map(|suggestions| &suggestions.notes);
    let suggested = suggested.filter(|note| !report.notes.contains(note));
    let notes = report.notes.iter().chain(suggested).map(|note| escape_html(note));
    let mut remarks: Vec<String> = mapped.chain(notes).collect();
    if report.interrupted {
        remarks.push("Interrupted: the results cover the traffic until then.".to_owned());
    }
    if report.late.requests > 0 {
        let (late, most) = (HumanCount(report.late.requests), format_duration(report.late.most_us));
        remarks.push(format!(
            "{late} requests out of order by up to {most}, evaluated at the latest time before them."
        ));
    }
    if report.bad_lines.count > 0 {
        let shown =
            report.bad_lines.first.iter().map(|bad| format!("line {}: {}", bad.line, escape_html(&bad.why)));
        let shown: Vec<String> = shown.collect();
        remarks.push(format!("{} bad lines. {}", HumanCount(report.bad_lines.count), shown.join("; ")));
    }
    if remarks.is_empty() {
        return String::new();
    }
    format!("<section><h2>Remarks</h2><ul><li>{}</ul></section>", remarks.join("<li>"))
}

/// Escapes untrusted text for HTML.
fn escape_html(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '&' => html.push_str("&amp;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            // A placeholder of the page, such as `{body}`, would be replaced later.
            '{' => html.push_str("&#123;"),
            c => html.push(c),
        }
    }
    html
}
