// Picture of the window of one key. The present stays in the middle, and time moves to the left. The shaded area is the
// window (now - W, now]. Everything has one scale, in permits. On the left each entry is a step: it begins where the older
// entries end, so the steps add up to the permits in use now. On the right the line falls when the entries expire, if no
// other request arrives.

import { attribute, still, svg } from "./dom.js";
import { clock, clockFine, count, many, span, wait } from "./words.js";
import { course, nextFree } from "./ahead.js";

const HEIGHT = 250;
const CEILING = 52;
const FLOOR = HEIGHT - 28;
const SPAN_AT = 36;
/** Width of a column in pixels. If there are more entries than columns, each column is the sum of its entries. */
const COLUMN = 5;
/** The least height of an entry, in pixels. */
const LEAST = 2;
/** Lengths of the visible past and future, in windows. */
const [PAST, AHEAD] = [1.16, 1.08];
/** Milliseconds between two labels. */
const TICKS = [50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000];

export class Timeline {
  /** `moved(now)` is called with the time of the server whenever the picture moves. */
  constructor(box, moved) {
    this.box = box;
    this.moved = moved;
    this.marks = new Map();
    this.reach = AHEAD;
    this.build();
    new ResizeObserver(() => this.layout()).observe(box);
    still.addEventListener("change", () => this.running && (this.stop(), this.start()));
  }

  build() {
    const label = (name, anchor) => svg("text", { class: name, y: 18, "text-anchor": anchor });
    this.shade = svg("rect", { class: "t-window", id: "timeline-window", y: 26, height: FLOOR - 26 });
    this.left = svg("line", { class: "t-edge left", y1: 26, y2: FLOOR });
    this.leftLabel = label("t-label", "middle");
    this.present = svg("line", { class: "t-edge", y1: 26, y2: FLOOR });
    this.presentLabel = label("t-label", "middle");
    this.presentLabel.textContent = "now";
    this.axis = svg("line", { class: "axis", y1: FLOOR, y2: FLOOR });
    this.limitLine = svg("line", { class: "t-limit" });
    this.limitLabel = svg("text", { "text-anchor": "end" });
    this.ticks = svg("g");
    this.column = svg("g");
    this.area = svg("path", { class: "t-ahead-area" });
    this.ahead = svg("path", { class: "t-ahead" });
    this.spanLine = svg("path", { class: "t-span" });
    this.freeLine = svg("line", { class: "t-free", y1: 26, y2: FLOOR });
    this.freeDot = svg("circle", { class: "t-free-dot", r: 4, cy: SPAN_AT });
    this.freeLabel = svg("text", { class: "t-free-label", y: FLOOR - 8 });
    this.free = svg("g", {}, this.freeLine, this.freeDot, this.freeLabel);
    this.moving = svg("g", {}, this.ticks, this.column, this.spanLine);
    // The present moves between two answers, and the line of the future is cut off there.
    this.future = svg("g", {}, this.area, this.ahead);
    this.futureOnly = svg("rect", { y: 0, height: HEIGHT });
    const clip = svg("clipPath", { id: "future-only" }, this.futureOnly);
    this.svg = svg("svg", { role: "img", "aria-label": "The window of this key" }, svg("defs", {}, clip), this.shade, this.limitLine, this.limitLabel,
      this.axis, svg("g", { "clip-path": "url(#future-only)" }, this.future), this.moving, this.left, this.present, this.leftLabel, this.presentLabel, this.free);
    this.box.append(this.svg);
  }

  /** Estimated time of the server. */
  now() {
    return performance.now() + this.offset;
  }

  /** Shows an answer. `moment` is the time of this page at which the server made it. */
  show(read, moment) {
    const offset = read.now - moment;
    const first = this.read == null || Math.abs(offset - this.offset) > 500;
    // The delay of an answer is not known exactly, so the offset follows slowly.
    this.offset = first ? offset : this.offset + (offset - this.offset) * 0.25;
    this.read = read;
    this.next = nextFree(read);
    this.layout();
    // With reduced motion the picture moves once per second: now.
    if (this.running && still.matches) this.stop();
    if (!this.running) this.start();
  }

  clear() {
    this.stop();
    this.read = null;
    this.reach = AHEAD;
    this.marks.clear();
    this.column.replaceChildren();
  }

  layout() {
    const width = this.box.clientWidth;
    if (!this.read || !width) return;
    const { window, bucket, fixed, used, limit } = this.read;
    const most = Math.max(1, limit ?? 0, used);
    this.y = (permits) => FLOOR - (permits / most) * (FLOOR - CEILING);
    attribute(this.svg, "viewBox", `0 0 ${width} ${HEIGHT}`);
    const past = bucket ? 0.12 : PAST;
    // A bucket may need longer than its window to fill. The visible range never becomes shorter.
    this.reach = Math.max(this.reach, bucket ? ((this.read.empty - this.read.now) / window) * 1.08 : 0);
    const ahead = this.reach;
    this.width = width;
    this.scale = width / ((past + ahead) * window);
    this.origin = past * window * this.scale;
    this.base = this.now();
    const windowFrom = this.origin - window * this.scale;
    attribute(this.presentLabel, "x", this.origin);
    for (const end of ["x1", "x2"]) {
      attribute(this.present, end, this.origin);
      attribute(this.left, end, windowFrom);
    }
    attribute(this.futureOnly, "x", this.origin);
    attribute(this.futureOnly, "width", width);
    attribute(this.axis, "x1", 0);
    attribute(this.axis, "x2", width);
    attribute(this.limitLine, "x1", 0);
    attribute(this.limitLine, "x2", width);
    attribute(this.limitLine, "visibility", this.read.limit == null ? "hidden" : "visible");
    attribute(this.limitLabel, "x", width - 4);
    this.limitLabel.textContent = this.read.limit == null ? "" : `limit ${count(this.read.limit)}`;
    const sliding = !bucket && !fixed;
    attribute(this.left, "visibility", sliding ? "visible" : "hidden");
    attribute(this.leftLabel, "visibility", sliding ? "visible" : "hidden");
    attribute(this.leftLabel, "x", Math.max(34, windowFrom));
    this.leftLabel.textContent = `${span(window)} ago`;
    this.shade.setAttribute("visibility", bucket ? "hidden" : "visible");
    this.drawTicks(past, ahead);
    this.drawMarks();
    this.drawAhead();
    this.describe();
    this.frame();
  }

  /** Returns the position of an instant in the moving group. */
  x(at) {
    return (at - this.base) * this.scale;
  }

  drawTicks(past, ahead) {
    const { window } = this.read;
    const wanted = ((past + ahead) * window) / Math.max(2, this.width / 110);
    const step = TICKS.find((step) => step >= wanted) ?? TICKS.at(-1);
    const parts = [];
    const until = this.base + (ahead + 0.5) * window;
    const zone = new Date(this.base).getTimezoneOffset() * 60_000;
    for (let at = Math.ceil((this.base - past * window - zone) / step) * step + zone; at < until; at += step) {
      const x = this.x(at);
      parts.push(svg("line", { class: "axis", x1: x, x2: x, y1: FLOOR, y2: FLOOR + 4 }));
      const label = svg("text", { x, y: FLOOR + 19, "text-anchor": "middle" });
      label.textContent = step < 1000 ? clockFine(at).slice(3) : clock(at);
      parts.push(label);
    }
    this.ticks.replaceChildren(...parts);
  }

  drawMarks() {
    const { window, entries, fixed, used, empty } = this.read;
    const whole = fixed && !entries.length && used;
    const most = Math.max(20, Math.floor((window * this.scale) / COLUMN));
    this.summed = entries.length > most;
    const wanted = whole
      ? [{ id: `window ${Math.round(empty)}`, at: empty - window, leaves: empty, permits: used, entries: 1, wide: true }]
      : this.summed ? columns(entries, window / most) : single(entries, window, this.marks);
    const known = new Set(wanted.map(({ id }) => id));
    const oldest = this.base - 1.3 * window;
    for (const [id, mark] of this.marks) {
      if (known.has(id)) continue;
      // The entry has expired and fades, or it was refunded and disappears now.
      if (mark.leaves > this.base + 100) {
        if (mark.node.classList.contains("void")) this.drop(id);
        else mark.node.classList.add("void");
      } else if ((mark.wide ? mark.leaves : mark.at) < oldest) this.drop(id);
    }
    let below = 0;
    for (const mark of wanted) {
      let kept = this.marks.get(mark.id);
      if (!kept) {
        kept = { node: svg("rect", { class: "t-mark", rx: mark.wide ? 0 : 1 }, svg("title")) };
        this.column.append(kept.node);
        this.marks.set(mark.id, kept);
      }
      Object.assign(kept, mark, { below });
      below += mark.permits;
      attribute(kept.node, "data-cost", mark.permits);
      attribute(kept.node, "data-entries", mark.entries);
      kept.node.classList.remove("void");
      if (mark.wide) attribute(kept.node, "fill-opacity", 0.35);
      const together = mark.entries > 1 ? ` in ${many(mark.entries, this.read.attempts ? "attempt" : "admission")}` : "";
      const title = `${many(mark.permits, "permit")}${together} at ${clockFine(mark.at)}`;
      if (kept.node.firstChild.textContent !== title) kept.node.firstChild.textContent = title;
    }
    const room = this.summed ? COLUMN - 1 : this.width / Math.max(60, wanted.length * 1.5);
    const thick = Math.max(2, Math.min(6, room));
    for (const mark of this.marks.values()) {
      const top = this.y(mark.below + mark.permits);
      const height = Math.max(LEAST, this.y(mark.below) - top);
      const [x, width] = mark.wide ? [this.x(mark.at), window * this.scale] : [this.x(mark.at) - thick / 2, thick];
      for (const [name, value] of Object.entries({ x, y: Math.min(top, FLOOR - height), width, height })) attribute(mark.node, name, value.toFixed(2));
    }
  }

  drop(id) {
    this.marks.get(id).node.remove();
    this.marks.delete(id);
  }

  drawAhead() {
    const { used, limit, bucket } = this.read;
    const { y } = this;
    if (limit != null) {
      for (const end of ["y1", "y2"]) attribute(this.limitLine, end, y(limit));
      attribute(this.limitLabel, "y", y(limit) - 6);
    }
    const steps = course(this.read).map(([at, n]) => [this.x(at), y(n)]);
    let line = `M${steps[0].map(tenth)}`;
    for (const [x, y] of steps.slice(1)) line += bucket ? `L${tenth(x)} ${tenth(y)}` : `H${tenth(x)}V${tenth(y)}`;
    attribute(this.ahead, "d", used ? line : "");
    attribute(this.area, "d", used ? `${line}L${tenth(steps.at(-1)[0])} ${FLOOR}L${tenth(steps[0][0])} ${FLOOR}Z` : "");
    const { entry, at, free } = this.next;
    attribute(this.spanLine, "d", entry && !free ? `M${tenth(this.x(entry.at))} ${FLOOR}V${SPAN_AT}H${tenth(this.x(entry.leaves))}` : "");
    // The wait is shown only if there is one.
    attribute(this.free, "visibility", !free && at > this.read.now ? "visible" : "hidden");
  }

  describe() {
    const { used, limit, window, entries, now, attempts } = this.read;
    const room = this.next.free ? "a permit is free now" : `the next permit is free in ${wait(this.next.at - now)}`;
    attribute(this.svg, "aria-label", `${count(used)}${limit == null ? "" : ` of ${count(limit)}`} used in ${span(window)}, ${many(entries.length, attempts ? "attempt" : "admission")}; ${room}. The table below lists them.`);
  }

  /** Moves the picture to the present. */
  frame() {
    if (!this.read) return;
    const now = this.now();
    const { window, empty, fixed } = this.read;
    const shift = `translate(${(this.origin - (now - this.base) * this.scale).toFixed(2)} 0)`;
    attribute(this.moving, "transform", shift);
    attribute(this.future, "transform", shift);
    const place = (at) => this.origin + (at - now) * this.scale;
    const [from, to] = fixed ? [place(empty - window), place(empty)] : [this.origin - window * this.scale, this.origin];
    attribute(this.shade, "x", from.toFixed(2));
    attribute(this.shade, "width", Math.max(0, to - from).toFixed(2));
    attribute(this.shade, "data-from-ms", (fixed ? empty - window : now - window).toFixed(1));
    for (const mark of this.marks.values()) mark.node.classList.toggle("gone", mark.leaves <= now);
    const at = this.next.entry?.leaves ?? this.next.at;
    const x = place(at);
    attribute(this.free, "transform", `translate(${x.toFixed(2)} 0)`);
    if (at < now - 1500) attribute(this.free, "visibility", "hidden");
    const onTheLeft = x > this.width - 110;
    attribute(this.freeLabel, "text-anchor", onTheLeft ? "end" : "start");
    attribute(this.freeLabel, "x", onTheLeft ? -8 : 8);
    this.freeLabel.textContent = at > now ? wait(at - now) : "free";
    this.moved(now);
  }

  start() {
    this.running = true;
    if (still.matches) {
      this.timer = setInterval(() => this.frame(), 1000);
      return;
    }
    const step = () => {
      this.frame();
      this.request = requestAnimationFrame(step);
    };
    this.request = requestAnimationFrame(step);
  }

  stop() {
    this.running = false;
    clearInterval(this.timer);
    cancelAnimationFrame(this.request);
  }
}

const tenth = (n) => n.toFixed(1);

/** Returns a mark for each entry, the oldest first. An entry with nearly the same time as one that is drawn is that entry: the
    times of two answers differ a little. */
function single(entries, window, drawn) {
  const before = [...drawn.values()].filter(({ single }) => single).sort((a, b) => a.at - b.at);
  const near = Math.max(5, window / 500);
  let i = 0;
  return [...entries].sort((a, b) => a.at - b.at).map((entry) => {
    while (i < before.length && before[i].at < entry.at - near) i++;
    const same = i < before.length && before[i].at <= entry.at + near;
    return { ...entry, entries: 1, single: true, id: same ? before[i++].id : `single ${serial++}` };
  });
}

/** Returns a mark for each column of `width` ms that has entries, the oldest first. */
function columns(entries, width) {
  const found = new Map();
  for (const { at, leaves, permits } of [...entries].sort((a, b) => a.at - b.at)) {
    const nth = Math.floor(at / width);
    const column = found.get(nth) ?? { id: `column ${width} ${nth}`, at: (nth + 0.5) * width, leaves, permits: 0, entries: 0 };
    column.permits += permits;
    column.entries += 1;
    column.leaves = Math.max(column.leaves, leaves);
    found.set(nth, column);
  }
  return [...found.values()];
}

let serial = 0;
