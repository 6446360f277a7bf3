// Decisions per second over time: allowed below, denied hatched on top. Dragging over the chart zooms in. For the
// keyboard the chart is a slider: arrows move through time, and screen readers read the values.

import { attribute, el, svg } from "./dom.js";
import { brief, clock, clockMinute } from "./words.js";

const LEFT = 44;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 24;
/** Widths of a column, in seconds. */
const WIDTHS = [1, 2, 3, 5, 10, 15, 20, 30, 60, 120];
const MOST_COLUMNS = 300;
/** Seconds between two labels of the time axis. */
const LABELS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 300, 600, 900, 1800];
/** The shortest range that can be zoomed to, in columns. */
const LEAST_COLUMNS = 10;
/** A shorter movement of the pointer is a click, in pixels. */
const DRAG = 8;

let charts = 0;

export class Chart {
  /** `zoomed(from, until)` is called after a zoom by the user, with seconds since 1970, or without arguments. */
  constructor(box, readout, history, { range = 900, words = "allowed", zoomed = () => {} } = {}) {
    Object.assign(this, { box, readout, history, range, words, zoomed });
    /** The first and the last second of a fixed range; null if the chart follows the present. */
    this.zoom = null;
    /** The second under the pointer; null is the newest. */
    this.look = null;
    this.columns = [];
    this.build();
    box.addEventListener("pointermove", (event) => this.move(event));
    box.addEventListener("pointerdown", (event) => this.press(event));
    box.addEventListener("pointerup", (event) => this.release(event));
    box.addEventListener("pointercancel", () => this.select(null));
    box.addEventListener("pointerleave", () => this.lookAt(null));
    box.addEventListener("dblclick", () => this.zoomTo(null));
    box.addEventListener("blur", () => this.lookAt(null));
    box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(box);
  }

  /** Shows the newest `seconds`. */
  setRange(seconds) {
    this.range = seconds;
    this.show(null);
  }

  /** Shows a fixed range, or the newest seconds if it is null. */
  show(zoom) {
    this.zoom = zoom;
    this.look = null;
    this.draw();
  }

  zoomTo(zoom) {
    if (!zoom && !this.zoom) return;
    this.show(zoom);
    this.zoomed(...(zoom ?? []));
  }

  build() {
    const id = `hatch-${++charts}`;
    const hatch = svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { width: 6, height: 6, class: "hatch-ground" }), svg("path", { d: "M0 0V6", class: "hatch" }));
    this.grid = svg("g");
    this.areaAllowed = svg("path", { class: "area-allowed" });
    this.areaDenied = svg("path", { class: "area-denied", fill: `url(#${id})` });
    this.lineAllowed = svg("path", { class: "line-allowed" });
    this.lineDenied = svg("path", { class: "line-denied" });
    this.dotAllowed = svg("circle", { class: "dot-allowed", r: 4 });
    this.dotDenied = svg("circle", { class: "dot-denied", r: 4 });
    this.cursorLine = svg("line", { class: "cursor", y1: TOP });
    this.cursor = svg("g", { visibility: "hidden" }, this.cursorLine, this.dotAllowed, this.dotDenied);
    this.selection = svg("rect", { class: "selection", y: TOP, visibility: "hidden" });
    this.svg = svg("svg", { "aria-hidden": "true", focusable: "false" }, svg("defs", {}, hatch), this.grid,
      this.areaDenied, this.areaAllowed, this.lineDenied, this.lineAllowed, this.selection, this.cursor);
    this.box.append(this.svg);
  }

  draw() {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (!width || this.history.last == null) return;
    attribute(this.svg, "viewBox", `0 0 ${width} ${height}`);
    const { unit } = this.history;
    [this.from, this.until] = this.zoom ?? this.history.range(this.range, 60);
    const length = this.until - this.from + 1;
    const widths = WIDTHS.filter((width) => width % unit === 0);
    this.step = widths.find((width) => length / width <= MOST_COLUMNS) ?? widths.at(-1);
    this.columns = this.history.columns(this.from, this.until, this.step);
    this.bottom = height - BOTTOM;
    const most = Math.max(0, ...this.columns.map(({ allowed, denied }) => allowed + denied || 0));
    this.ceiling = niceCeiling(most);
    const [first, last] = [this.columns[0].at, this.columns.at(-1).at];
    this.x = (second) => LEFT + ((second - first) / (last - first || 1)) * (width - LEFT - RIGHT);
    this.y = (n) => this.bottom - (n / this.ceiling) * (this.bottom - TOP);
    this.drawGrid(width);
    this.drawAreas();
    this.report();
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
    const [first, last] = [this.columns[0].at, this.columns.at(-1).at];
    const most = Math.max(2, (width - LEFT - RIGHT) / 76);
    const every = LABELS.find((every) => (last - first) / every <= most) ?? LABELS.at(-1);
    for (let second = Math.ceil(first / every) * every; second <= last; second += every) {
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
      // Without denials this line would cover the other one.
      for (const part of stretches(run)) over.push(path(part.map(({ at, allowed, denied }) => [this.x(at), this.y(allowed + denied)])));
    }
    attribute(this.areaAllowed, "d", allowed.join(""));
    attribute(this.areaDenied, "d", denied.join(""));
    attribute(this.lineAllowed, "d", under.join(""));
    attribute(this.lineDenied, "d", over.join(""));
  }

  /** Returns the column at a position of the pointer. */
  columnAt(clientX) {
    const x = clientX - this.box.getBoundingClientRect().left;
    const share = (x - LEFT) / (this.box.clientWidth - LEFT - RIGHT);
    const index = Math.round(share * (this.columns.length - 1));
    return this.columns[Math.min(this.columns.length - 1, Math.max(0, index))];
  }

  press(event) {
    if (!this.columns.length || event.button) return;
    this.start = event.clientX;
    this.box.setPointerCapture(event.pointerId);
    this.lookAt(this.columnAt(event.clientX).at);
  }

  move(event) {
    if (!this.columns.length) return;
    const dragged = this.start != null && Math.abs(event.clientX - this.start) >= DRAG;
    this.select(dragged ? event.clientX : null, this.start);
    this.lookAt(this.columnAt(event.clientX).at);
  }

  release(event) {
    const { start } = this;
    this.select(null);
    if (start == null || Math.abs(event.clientX - start) < DRAG) return;
    const [a, b] = [start, event.clientX].map((x) => this.columnAt(x).at).sort((a, b) => a - b);
    this.zoomTo(this.atLeast(a, b + this.step - 1));
  }

  /** Draws what is selected, from where the pointer was pressed to `clientX`. Without arguments nothing is selected. */
  select(clientX, start = null) {
    this.start = start;
    attribute(this.selection, "visibility", clientX == null ? "hidden" : "visible");
    if (clientX == null) return;
    const [a, b] = [start, clientX].map((x) => this.x(this.columnAt(x).at)).sort((a, b) => a - b);
    for (const [name, value] of Object.entries({ x: a, width: b - a, height: this.bottom - TOP })) attribute(this.selection, name, value.toFixed(1));
  }

  /** Widens a range that is too short to be drawn. */
  atLeast(from, until) {
    const missing = LEAST_COLUMNS * this.history.unit - (until - from + 1);
    return missing > 0 ? [from - Math.floor(missing / 2), until + Math.ceil(missing / 2)] : [from, until];
  }

  key(event) {
    const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -20, PageUp: 20, Home: -1e9, End: 1e9 };
    if (event.key === "Escape") return this.look == null ? this.zoomTo(null) : this.lookAt(null);
    if (!this.columns.length) return;
    if (event.key === "+" || event.key === "-") {
      event.preventDefault();
      return this.scale(event.key === "+" ? 0.5 : 2);
    }
    if (!(event.key in moves)) return;
    event.preventDefault();
    const from = this.index() ?? this.columns.length - 1;
    const to = Math.min(this.columns.length - 1, Math.max(0, from + moves[event.key]));
    this.lookAt(this.columns[to].at);
  }

  /** Makes the range longer or shorter by a factor, around the second under the cursor. */
  scale(factor) {
    const [first, last] = this.history.range(Infinity, 60);
    const length = Math.min(last - first + 1, Math.max(LEAST_COLUMNS * this.history.unit, Math.round((this.until - this.from + 1) * factor)));
    const middle = this.look ?? this.until;
    const from = Math.max(first, Math.min(last - length + 1, Math.round(middle - length / 2)));
    const look = this.look;
    this.zoomTo(length >= Math.min(this.range, last - first + 1) ? null : [from, from + length - 1]);
    this.lookAt(look);
  }

  index() {
    if (this.look == null) return null;
    const index = Math.round((this.look - this.columns[0].at) / this.step);
    return index >= 0 && index < this.columns.length ? index : null;
  }

  lookAt(second) {
    this.look = second;
    this.report();
  }

  /** Shows the values under the cursor. */
  report() {
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
    const words = known ? `${brief(column.allowed)} ${this.words}, ${brief(column.denied)} denied per second` : "no data";
    const narrow = this.box.clientWidth < 480;
    this.readout.replaceChildren(`${when}${narrow ? "" : mean}: `, el("b", {}, narrow ? words.replace(" per second", "/s") : words));
    attribute(this.box, "aria-valuemax", this.columns.length - 1);
    attribute(this.box, "aria-valuenow", index ?? this.columns.length - 1);
    attribute(this.box, "aria-valuetext", `${when}${mean}: ${words}`);
  }
}

/** Returns 1, 2, 4, 5, 8 or 10 times a power of ten, and at least 4, so that half of it is a round number too. */
function niceCeiling(most) {
  if (!(most > 4)) return 4;
  const power = 10 ** Math.floor(Math.log10(most));
  return power * [1, 2, 4, 5, 8, 10].find((n) => n * power >= most * 1.02 || n === 10);
}

/** Yields the parts without a gap. */
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

/** Yields the parts with denials, with one more column on each side. */
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
