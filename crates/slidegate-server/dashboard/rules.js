// The table of rules. It has at most 50 rows; a filter finds the other rules.

import { $, attribute, el, meter, text } from "./dom.js";
import { algorithmWords, brief, count, limitWords, micros, shadowWords, share } from "./words.js";
import { mayChange, onAccess } from "./access.js";
import { bind } from "./address.js";
import { Minutes, drawSpark, spark } from "./spark.js";
import { flip } from "./mode.js";

const ROWS = 50;

export class RulesTable {
  /** `open(name)` shows one rule. */
  constructor(open) {
    this.open = open;
    this.rules = [];
    this.rows = new Map();
    this.minutes = this.ofNode = new Minutes();
    this.ofFleet = new Minutes();
    this.body = $("rules-body");
    this.body.append(...Array.from({ length: 4 }, () =>
      el("tr", { class: "skeleton-row", role: "row" }, ...Array.from({ length: 9 }, () => el("td", { role: "cell" }, el("span"))))));
    bind("rules", [$("rules-filter")], () => this.draw());
    bind("order", [$("rules-order")], () => this.draw());
    onAccess(() => this.draw());
  }

  /** Takes the last minute of the rules from the server. */
  start(rules) {
    this.ofNode.start(rules);
  }

  /** `sums` are those of all nodes; null if the page shows this node. */
  tick({ rules, rules_count: all, edition }, sums) {
    this.shadows = new Map((edition?.shadows ?? []).map((shadow) => [shadow.rule, shadow]));
    this.all = all ?? rules.length;
    this.rules = sums?.rules ?? rules;
    this.ofNode.add(rules);
    // Without sums, the small charts of all nodes start anew: otherwise they would hide the missing seconds.
    if (sums) this.ofFleet.add(sums.rules);
    else this.ofFleet = new Minutes();
    this.minutes = sums ? this.ofFleet : this.ofNode;
    this.draw();
  }

  chosen() {
    const wanted = $("rules-filter").value.trim().toLowerCase();
    const found = this.rules.filter(({ rule, key }) => !wanted || `${rule} ${key?.join(" ") ?? ""}`.toLowerCase().includes(wanted));
    const by = { denied: (rule) => rule.denied_minute, usage: (rule) => rule.usage ?? -1 }[$("rules-order").value];
    return by ? found.sort((a, b) => by(b) - by(a)) : found;
  }

  draw() {
    if (!this.rules.length && document.body.classList.contains("loading")) return;
    const found = this.chosen();
    const shown = found.slice(0, ROWS);
    const rows = shown.map((rule) => this.row(rule));
    // Rows move only if their order changes, because a row that moves loses the focus.
    if (rows.length !== this.body.children.length || rows.some((row, i) => this.body.children[i] !== row)) this.body.replaceChildren(...rows);
    for (const name of this.rows.keys()) if (!shown.some(({ rule }) => rule === name)) this.rows.delete(name);
    text($("rules-count"), this.all ? count(this.all) : "");
    const note = $("rules-note");
    note.hidden = shown.length > 0 && found.length <= ROWS;
    text(note, !this.rules.length ? "There are no rules." : !found.length ? (this.all > this.rules.length ? `None of the ${count(this.rules.length)} busiest rules has this text in its name or its key.` : "No rule has this text in its name or its key.") : `The first ${ROWS} of ${count(found.length)} rules. Use the filter to find others.`);
  }

  row(rule) {
    let row = this.rows.get(rule.rule);
    if (!row) this.rows.set(rule.rule, (row = build(rule.rule, () => this.open(rule.rule))));
    const { parts: cells } = row;
    text(cells.key, rule.key?.length ? `per ${rule.key.join(", ")}` : "one count for all");
    text(cells.limit, limitWords(rule.limit, rule.window_ms, rule.algorithm));
    const effective = rule.effective_limit != null && rule.effective_limit !== rule.limit;
    text(cells.algorithm, algorithmWords(rule.algorithm) + (effective ? `, now ${count(rule.effective_limit)}` : ""));
    text(cells.mode, rule.mode);
    attribute(cells.mode, "data-mode", rule.mode);
    text(cells.shadow, shadowWords(this.shadows?.get(rule.rule)));
    const other = { enforce: "shadow", shadow: "enforce" }[rule.mode];
    cells.flip.hidden = !mayChange() || !other;
    text(cells.flip, `to ${other}`);
    attribute(cells.flip, "aria-label", `Set ${rule.rule} to ${other}`);
    cells.flip.onclick = () => flip(rule.rule, other);
    meter(cells.meter, rule.usage, this.minutes.denies(rule.rule));
    text(cells.usage, rule.usage == null ? "–" : `${Math.round(rule.usage * 100)}%`);
    text(cells.charged, brief(rule.charged));
    attribute(cells.charged, "title", rule.not_charged_minute ? `${count(rule.not_charged_minute)} more in the last minute had room here, but another rule denied them` : "");
    text(cells.denied, brief(rule.denied));
    cells.denied.classList.toggle("denying", rule.denied > 0);
    const asked = rule.allowed_minute + rule.denied_minute;
    text(cells.share, asked ? share(rule.denied_minute / asked) : "–");
    text(cells.time, micros(rule.mean_us));
    drawSpark(cells.spark, this.minutes.of(rule.rule));
    return row;
  }
}

function build(name, open) {
  const cells = {
    key: el("small"), limit: el("span"), algorithm: el("small"), mode: el("span", { class: "tag" }), shadow: el("small"),
    flip: el("button", { type: "button", class: "link" }), meter: el("span", { class: "meter" }, el("i")), usage: el("span", { class: "n" }),
    spark: spark(),
  };
  const cell = (label, ...children) => el("td", { role: "cell", "data-label": label }, ...children);
  for (const [id, label] of [["charged", "Charged/s"], ["denied", "Denied/s"], ["share", "Denied %"], ["time", "Mean time"]]) {
    cells[id] = cell(label);
    cells[id].className = "n";
  }
  const limit = cell("Limit", cells.limit, cells.algorithm);
  limit.className = "limit";
  const mode = cell("Mode", cells.mode, cells.flip, cells.shadow);
  mode.className = "mode";
  const row = el("tr", { role: "row", "data-rule": name }, el("th", { role: "rowheader", scope: "row" }, el("button", { type: "button", class: "link", title: "Show this rule", onclick: open }, name), cells.key), limit, mode,
    cell("Fullest key", el("div", { class: "usage" }, cells.meter, cells.usage)),
    cells.charged, cells.denied, cells.share, cells.time, cell("Last minute", cells.spark));
  row.parts = cells;
  return row;
}
