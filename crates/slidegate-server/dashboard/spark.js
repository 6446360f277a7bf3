// The last minute of a rule as a small picture: charged below, denied on top.

import { attribute, svg } from "./dom.js";

const [WIDTH, HEIGHT, POINTS] = [100, 26, 60];
/** The period in which a denial makes the bar of a rule orange, in seconds: the period of its usage. */
const RECENT = 10;

/** The last minute of each rule: pairs of charged and denied requests, one for each second. */
export class Minutes {
  constructor() {
    this.byRule = new Map();
  }

  /** Takes the past from the server. */
  start(rules) {
    this.byRule = new Map(rules.map(({ rule, charged, denied }) => [rule, charged.map((n, i) => [n, denied[i]]).slice(-POINTS)]));
  }

  add(rules) {
    const before = this.byRule;
    this.byRule = new Map();
    for (const { rule, charged, denied } of rules) {
      const seconds = before.get(rule) ?? [];
      seconds.push([charged, denied]);
      if (seconds.length > POINTS) seconds.shift();
      this.byRule.set(rule, seconds);
    }
  }

  of(rule) {
    return this.byRule.get(rule) ?? [];
  }

  /** Returns true if the rule denied a request in the last ten seconds. */
  denies(rule) {
    return this.of(rule).slice(-RECENT).some(([, denied]) => denied > 0);
  }
}

export function spark() {
  return svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }),
    svg("path", { class: "area-denied", fill: "var(--denied)" }),
    svg("path", { class: "area-allowed" }),
    svg("path", { class: "line-allowed", "vector-effect": "non-scaling-stroke" }));
}

export function drawSpark(picture, minute) {
  const [, denied, allowed, line] = picture.children;
  if (!minute.length) return;
  const most = Math.max(1, ...minute.map(([a, r]) => a + r));
  const x = (i) => (((POINTS - minute.length + i) / (POINTS - 1)) * WIDTH).toFixed(1);
  const y = (n) => (HEIGHT - 1 - (n / most) * (HEIGHT - 3)).toFixed(1);
  const low = minute.map(([a], i) => `${x(i)} ${y(a)}`);
  const high = minute.map(([a, r], i) => `${x(i)} ${y(a + r)}`);
  const [start, end] = [`${x(0)} ${HEIGHT}`, `${x(minute.length - 1)} ${HEIGHT}`];
  attribute(allowed, "d", `M${start}L${low.join("L")}L${end}Z`);
  attribute(denied, "d", `M${high.join("L")}L${low.reverse().join("L")}Z`);
  attribute(line, "d", `M${low.reverse().join("L")}`);
}
