// Decisions a second over time: allowed below, denied hatched on top. A slider for the keyboard: arrows go through
// time, and what was then is read out.

import { $, attribute, el, svg } from "./dom.js";
import { brief, clock, clockMinute } from "./words.js";

const LEFT = 44;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 24;
/** Seconds a column stands for, by range. */
const STEPS = { 60: 1, 300: 1, 900: 3, 1800: 5 };
/** Between labels of the time axis, by range and whether it is narrow. */
const LABELS = { 60: [10, 20], 300: [60, 120], 900: [180, 300], 1800: [300, 600] };

export class Chart {
  constructor(history) {
    this.history = history;
    this.box = $("chart");
    this.readout = $("readout");
    this.range = 900;
    /** The second looked at; null is the newest. */
    this.look = null;
    this.columns = [];
    this.build();
    for (const input of document.querySelectorAll("#range input")) {
      input.addEventListener("change", () => {
        this.range = Number(input.value);
        this.look = null;
        this.draw();
      });
    }
    this.box.addEventListener("pointermove", (event) => this.point(event.clientX));
    this.box.addEventListener("pointerdown", (event) => this.point(event.clientX));
    this.box.addEventListener("pointerleave", () => this.lookAt(null));
    this.box.addEventListener("blur", () => this.lookAt(null));
    this.box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  build() {
    const hatch = svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { width: 6, height: 6, class: "hatch-ground" }), svg("path", { d: "M0 0V6", class: "hatch" }));
    this.grid = svg("g");
    this.areaAllowed = svg("path", { class: "area-allowed" });
    this.areaDenied = svg("path", { class: "area-denied", fill: "url(#hatch)" });
    this.lineAllowed = svg("path", { class: "line-allowed" });
    this.lineDenied = svg("path", { class: "line-denied" });
    this.dotAllowed = svg("circle", { class: "dot-allowed", r: 4 });
    this.dotDenied = svg("circle", { class: "dot-denied", r: 4 });
    this.cursorLine = svg("line", { class: "cursor", y1: TOP });
    this.cursor = svg("g", { visibility: "hidden" }, this.cursorLine, this.dotAllowed, this.dotDenied);
    this.svg = svg("svg", { "aria-hidden": "true", focusable: "false" }, svg("defs", {}, hatch), this.grid,
      this.areaDenied, this.areaAllowed, this.lineDenied, this.lineAllowed, this.cursor);
    this.box.append(this.svg);
  }

  draw() {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (!width || this.history.last == null) return;
    attribute(this.svg, "viewBox", `0 0 ${width} ${height}`);
    this.step = STEPS[this.range];
    this.columns = this.history.columns(this.range, this.step);
    this.bottom = height - BOTTOM;
    const most = Math.max(...this.columns.map(({ allowed, denied }) => allowed + denied || 0));
    this.ceiling = niceCeiling(most);
    const first = this.columns[0].at;
    this.x = (second) => LEFT + ((second - first) / (this.range - this.step || 1)) * (width - LEFT - RIGHT);
    this.y = (n) => this.bottom - (n / this.ceiling) * (this.bottom - TOP);
    this.drawGrid(width);
    this.drawAreas();
    this.show();
  }

  drawGrid(width) {
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const y = Math.round(this.y(this.ceiling * share)) + 0.5;
      parts.push(svg("line", { class: share ? "grid" : "axis", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }));
      const label = svg("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" });
      label.textContent = brief(this.ceiling * share);
      parts.push(label);
    }
    const every = LABELS[this.range][width < 480 ? 1 : 0];
    const last = this.columns.at(-1).at;
    for (let second = Math.ceil(this.columns[0].at / every) * every; second <= last; second += every) {
      const x = this.x(second);
      if (x < LEFT + 18 || x > width - 30) continue;
      parts.push(svg("line", { class: "axis", x1: Math.round(x) + 0.5, x2: Math.round(x) + 0.5, y1: this.bottom, y2: this.bottom + 4 }));
      const label = svg("text", { x, y: this.bottom + 18, "text-anchor": "middle" });
      label.textContent = every < 60 ? clock(second * 1000) : clockMinute(second * 1000);
      parts.push(label);
    }
    this.grid.replaceChildren(...parts);
  }

  drawAreas() {
    const [allowed, denied, over, under] = [[], [], [], []];
    for (const run of runs(this.columns)) {
      const base = run.map(({ at }) => [this.x(at), this.bottom]);
      const low = run.map(({ at, allowed }) => [this.x(at), this.y(allowed)]);
      const high = run.map(({ at, allowed, denied }) => [this.x(at), this.y(allowed + denied)]);
      allowed.push(closed(low, base));
      denied.push(closed(high, low));
      under.push(path(low));
      // No line where nothing was denied: it would lie on the other.
      for (const part of stretches(run)) over.push(path(part.map(({ at, allowed, denied }) => [this.x(at), this.y(allowed + denied)])));
    }
    attribute(this.areaAllowed, "d", allowed.join(""));
    attribute(this.areaDenied, "d", denied.join(""));
    attribute(this.lineAllowed, "d", under.join(""));
    attribute(this.lineDenied, "d", over.join(""));
  }

  point(clientX) {
    if (!this.columns.length) return;
    const x = clientX - this.box.getBoundingClientRect().left;
    const share = (x - LEFT) / (this.box.clientWidth - LEFT - RIGHT);
    const index = Math.round(share * (this.columns.length - 1));
    this.lookAt(this.columns[Math.min(this.columns.length - 1, Math.max(0, index))].at);
  }

  key(event) {
    const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -20, PageUp: 20, Home: -1e9, End: 1e9 };
    if (event.key === "Escape") return this.lookAt(null);
    if (!(event.key in moves) || !this.columns.length) return;
    event.preventDefault();
    const from = this.index() ?? this.columns.length - 1;
    const to = Math.min(this.columns.length - 1, Math.max(0, from + moves[event.key]));
    this.lookAt(this.columns[to].at);
  }

  index() {
    if (this.look == null) return null;
    const index = Math.round((this.look - this.columns[0].at) / this.step);
    return index >= 0 && index < this.columns.length ? index : null;
  }

  lookAt(second) {
    this.look = second;
    this.show();
  }

  show() {
    if (!this.columns.length) return;
    const index = this.index();
    const column = this.columns[index ?? this.columns.length - 1];
    const known = !Number.isNaN(column.allowed);
    attribute(this.cursor, "visibility", index == null ? "hidden" : "visible");
    if (index != null) {
      const x = this.x(column.at);
      for (const end of ["x1", "x2"]) attribute(this.cursorLine, end, x);
      attribute(this.cursorLine, "y2", this.bottom);
      for (const [dot, n] of [[this.dotAllowed, column.allowed], [this.dotDenied, column.allowed + column.denied]]) {
        attribute(dot, "visibility", known ? "inherit" : "hidden");
        if (known) [["cx", x], ["cy", this.y(n)]].forEach(([name, value]) => attribute(dot, name, value));
      }
    }
    const when = clock(column.at * 1000);
    const mean = this.step > 1 ? `, mean of ${this.step} s` : "";
    const words = known ? `${brief(column.allowed)} allowed, ${brief(column.denied)} denied per second` : "no data";
    const narrow = this.box.clientWidth < 480;
    this.readout.replaceChildren(`${when}${narrow ? "" : mean}: `, el("b", {}, narrow ? words.replace(" per second", "") : words));
    attribute(this.box, "aria-valuemax", this.columns.length - 1);
    attribute(this.box, "aria-valuenow", index ?? this.columns.length - 1);
    attribute(this.box, "aria-valuetext", `${when}${mean}: ${words}`);
  }
}

/** 1, 2, 4, 5, 8 or 10 of a power of ten, at least 4: halves of it are worth reading too. */
function niceCeiling(most) {
  if (!(most > 4)) return 4;
  const power = 10 ** Math.floor(Math.log10(most));
  return power * [1, 2, 4, 5, 8, 10].find((n) => n * power >= most * 1.02 || n === 10);
}

/** Stretches without a gap. */
function* runs(columns) {
  let run = [];
  for (const column of columns) {
    if (!Number.isNaN(column.allowed)) run.push(column);
    else if (run.length) {
      yield run;
      run = [];
    }
  }
  if (run.length) yield run;
}

/** Stretches in which something was denied, with a neighbour on each side. */
function* stretches(run) {
  let from = null;
  for (let i = 0; i <= run.length; i++) {
    const denied = i < run.length && run[i].denied > 0;
    if (denied && from == null) from = i;
    if (!denied && from != null) {
      yield run.slice(Math.max(0, from - 1), i + 1);
      from = null;
    }
  }
}

const pair = ([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`;
const path = (points) => `M${points.map(pair).join("L")}`;
const closed = (there, back) => `${path(there)}L${[...back].reverse().map(pair).join("L")}Z`;
