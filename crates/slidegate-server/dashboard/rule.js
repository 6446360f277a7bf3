// One rule: its history of an hour, the time of its decisions, and its keys.

import { $, attribute, svg, text, write } from "./dom.js";
import { because } from "./access.js";
import { algorithmWords, count, limitWords, micros, share } from "./words.js";
import { go, onAddress, read, write as writeAddress } from "./address.js";
import { ruleHistory, top } from "./api.js";
import { Chart } from "./chart.js";
import { History } from "./history.js";
import { drawTop } from "./top.js";

/** The history has steps of ten seconds, for an hour. */
const [UNIT, STEPS] = [10, 360];
const EVERY = 3000;
const [TIME_HEIGHT, TIME_LEFT, TIME_RIGHT] = [96, 44, 8];

export class RulePanel {
  /** `inspect(key)` opens a key. */
  constructor(inspect) {
    this.inspect = inspect;
    this.name = null;
    this.asked = -Infinity;
    this.history = new History(UNIT, STEPS);
    this.chart = new Chart($("rule-chart"), $("rule-readout"), this.history, { range: 3600, words: "charged" });
    this.line = svg("path", { class: "line-allowed" });
    this.labels = svg("g");
    this.picture = svg("svg", { role: "img", "aria-label": "Mean decision time" }, this.labels, this.line);
    $("rule-time").append(this.picture);
    this.times = [];
    new ResizeObserver(() => this.drawTimes()).observe($("rule-time"));
    $("rule-close").addEventListener("click", () => this.close());
    onAddress(() => this.fromAddress());
    this.fromAddress();
  }

  fromAddress() {
    const name = read("rule");
    if (name === this.name) return;
    if (name) this.open(name, false);
    else this.close();
  }

  open(name, move = true) {
    this.name = name;
    this.times = [];
    this.asked = -Infinity;
    writeAddress("rule", name);
    $("rule").hidden = false;
    text($("rule-name"), name);
    text($("rule-note"), "");
    this.history.start({ until_ms: Date.now(), allowed: [], denied: [] });
    for (const id of ["rule-hottest", "rule-denied"]) $(id).replaceChildren();
    this.chart.show(null);
    if (this.last) this.tick(this.last);
    if (move) go("rule");
  }

  close() {
    this.name = null;
    writeAddress("rule", "");
    $("rule").hidden = true;
  }

  tick(tick) {
    this.last = tick;
    if (!this.name) return;
    const rule = tick.rules.find(({ rule }) => rule === this.name);
    if (rule) this.facts(rule);
    else text($("rule-note"), tick.rules.length < tick.rules_count ? "This rule is not among the busiest rules, so its counts are not in the live feed." : "There is no rule with this name.");
    if (!document.hidden && performance.now() - this.asked > EVERY) this.fetch();
  }

  facts(rule) {
    const asked = rule.allowed_minute + rule.denied_minute;
    text($("rule-limit"), limitWords(rule.limit, rule.window_ms, rule.algorithm));
    text($("rule-kind"), `${algorithmWords(rule.algorithm)}, ${rule.key?.length ? `per ${rule.key.join(", ")}` : "one count for all"}, ${rule.mode}`);
    text($("rule-charged"), count(rule.charged_minute));
    text($("rule-not-charged"), rule.not_charged_minute ? `${count(rule.not_charged_minute)} more had room here, but another rule denied them` : "requests");
    text($("rule-denials"), count(rule.denied_minute));
    text($("rule-share"), asked ? `${share(rule.denied_minute / asked)} of ${count(asked)} requests` : "no requests");
    text($("rule-mean"), micros(rule.mean_us));
    text($("rule-note"), "");
  }

  async fetch() {
    this.asked = performance.now();
    const { name } = this;
    try {
      const [past, keys] = await Promise.all([ruleHistory(name), top("hour", name)]);
      if (name !== this.name) return;
      this.history.start({ until_ms: past.until_ms, allowed: past.charged, denied: past.denied });
      this.chart.draw();
      this.times = past.mean_us;
      this.drawTimes();
      drawTop($("rule-hottest"), keys.hottest, "No requests in the last hour.", this.inspect);
      drawTop($("rule-denied"), keys.denied, "No denials in the last hour.", this.inspect);
    } catch (error) {
      if (name === this.name && error.status) write($("rule-note"), because(error));
    }
  }

  /** Draws the mean decision time of each step. A step without decisions is a gap. */
  drawTimes() {
    const [{ times }, width] = [this, $("rule-time").clientWidth];
    if (!width) return;
    attribute(this.picture, "viewBox", `0 0 ${width} ${TIME_HEIGHT}`);
    const most = Math.max(1, ...times.map((time) => time ?? 0));
    const [first, last] = this.history.range(3600, 60);
    const steps = (last - first + 1) / UNIT;
    const x = (i) => TIME_LEFT + ((steps - times.length + i) / Math.max(1, steps - 1)) * (width - TIME_LEFT - TIME_RIGHT);
    const y = (time) => TIME_HEIGHT - 6 - (time / most) * (TIME_HEIGHT - 18);
    let [d, open] = ["", false];
    times.forEach((time, i) => {
      if (time != null) d += `${open ? "L" : "M"}${x(i).toFixed(1)} ${y(time).toFixed(1)}${open || times[i + 1] != null ? "" : "h1"}`;
      open = time != null;
    });
    attribute(this.line, "d", d);
    this.labels.replaceChildren(...[0, most].flatMap((time) => {
      const label = svg("text", { x: TIME_LEFT - 8, y: y(time) + 4, "text-anchor": "end" });
      label.textContent = time ? micros(time).replace(" ", "\u2009") : "0";
      return [svg("line", { class: time ? "grid" : "axis", x1: TIME_LEFT, x2: width - TIME_RIGHT, y1: y(time), y2: y(time) }), label];
    }));
    const known = times.filter((time) => time != null);
    attribute(this.picture, "aria-label", known.length ? `Mean decision time: ${micros(known.at(-1))} now, ${micros(most)} at most` : "No decisions in the last hour");
  }
}
