// The inspector: follows one key, and draws what counts under it.

import { $, el, meter, say, text } from "./dom.js";
import { inspect, reset } from "./api.js";
import { because, mayChange, onAccess } from "./access.js";
import { algorithmWords, clockFine, count, limitWords, many, wait } from "./words.js";
import { nextFree, reading } from "./ahead.js";
import { confirm } from "./confirm.js";
import { MARKS, Timeline } from "./timeline.js";

const EVERY = 1000;
const TABLE_ROWS = 200;
const INVITES = "Shows the exact window of one key. Select a key above, or enter one.";

export class Inspector {
  constructor() {
    this.key = null;
    this.timeline = new Timeline($("timeline"), (now) => this.count(now));
    $("inspector-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const key = $("inspector-key").value.trim();
      if (key) this.open(key, false);
      else say($("inspector-said"), "Enter a key.", true);
    });
    $("inspector-close").addEventListener("click", () => this.close());
    $("inspector-reset").addEventListener("click", () => this.reset());
    $("entries").addEventListener("toggle", () => this.table());
    document.addEventListener("visibilitychange", () => document.hidden || this.fetch());
    addEventListener("hashchange", () => this.fromAddress());
    onAccess(() => {
      this.buttons();
      if (this.key && this.stopped) this.follow();
    });
    this.fromAddress();
  }

  /** A key in the address, behind the #, is never sent to a server: such a link can be kept. */
  fromAddress() {
    const [, key] = /^#inspect=(.+)$/.exec(location.hash) ?? [];
    if (!key) return;
    try {
      const wanted = decodeURIComponent(key);
      if (wanted !== this.key) this.open(wanted);
    } catch {
      // Not one of ours.
    }
  }

  open(key, go = true) {
    this.close();
    this.key = key;
    this.last = null;
    $("inspector-key").value = key;
    history.replaceState(null, "", `#inspect=${encodeURIComponent(key)}`);
    say($("inspector-said"), "Loading…");
    this.buttons();
    this.follow();
    if (!go) return;
    $("inspector").scrollIntoView();
    $("inspector").focus({ preventScroll: true });
  }

  close() {
    this.call?.abort();
    clearInterval(this.timer);
    this.key = null;
    this.timeline.clear();
    $("inspector-body").hidden = true;
    say($("inspector-said"), INVITES);
    if (location.hash.startsWith("#inspect=")) history.replaceState(null, "", location.pathname + location.search);
    this.buttons();
  }

  buttons() {
    $("inspector-close").disabled = !this.key;
    $("inspector-reset").disabled = !this.key || !mayChange();
  }

  follow() {
    this.stopped = false;
    clearInterval(this.timer);
    this.timer = setInterval(() => document.hidden || this.fetch(), EVERY);
    this.fetch();
  }

  async fetch() {
    if (!this.key || this.asking) return;
    const { key } = this;
    const call = (this.call = new AbortController());
    this.asking = true;
    const sent = performance.now();
    try {
      const answer = await inspect(key, call.signal);
      if (key === this.key) this.show(answer, (sent + performance.now()) / 2);
    } catch (error) {
      if (key === this.key && error.name !== "AbortError") this.fail(error, (sent + performance.now()) / 2);
    } finally {
      this.asking = false;
      if (key !== this.key) this.fetch();
    }
  }

  fail(error, moment) {
    if (error.code === "no_such_key") {
      say($("inspector-said"), "Nothing is counted under this key now.");
      // What was drawn goes on to leave.
      if (this.last) this.show({ ...this.last, at_ms: this.timeline.now(), used: 0, reset_after_ms: 0, entries: [] }, moment, true);
      return;
    }
    say($("inspector-said"), because(error), true);
    if (error.status !== 401 && error.status !== 403 && error.status !== 400) return;
    this.stopped = true;
    clearInterval(this.timer);
  }

  show(answer, moment, none = false) {
    this.last = answer;
    this.read = reading(answer);
    if (!none) say($("inspector-said"), "Updated every second.");
    $("inspector-body").hidden = false;
    const { used, limit, window_ms, rule, algorithm } = answer;
    text($("inspector-used"), limit == null ? count(used) : `${count(used)} of ${count(limit)}`);
    const bar = $("inspector-bar").parentElement;
    bar.hidden = limit == null;
    meter(bar, limit ? used / limit : 0);
    const words = [rule ?? "none in force", limit == null ? null : limitWords(limit, window_ms), algorithmWords(algorithm)];
    text($("inspector-rule"), words.filter(Boolean).join(", "));
    text($("timeline-note"), note(answer));
    this.timeline.show(this.read, moment);
    this.table();
  }

  /** What counts down, with the picture. */
  count(now) {
    const { at, free, entry } = nextFree(this.read);
    const left = this.read.limit == null ? null : this.read.limit - this.read.used;
    const words = free || at <= now ? "free now" : `in ${wait(at - now)}`;
    text($("next-free"), words);
    $("next-free").dataset.ms = Math.max(0, free ? 0 : Math.ceil(at - now));
    $("next-free").title = free && left != null ? `${count(left)} free` : entry ? `frees ${many(entry.permits, "permit")}` : "";
    text($("all-free"), this.read.used && this.read.empty > now ? `in ${wait(this.read.empty - now)}` : "now");
  }

  table() {
    if (!$("entries").open || !this.read) return;
    const { entries, now } = this.read;
    const rows = entries.slice(0, TABLE_ROWS).map(({ at, permits, leaves }) =>
      el("tr", {}, el("td", {}, clockFine(at)), el("td", { class: "n" }, count(permits)), el("td", { class: "n" }, wait(leaves - now))));
    if (entries.length > TABLE_ROWS) rows.push(el("tr", {}, el("td", { colspan: 3 }, `and ${count(entries.length - TABLE_ROWS)} more`)));
    if (!rows.length) rows.push(el("tr", {}, el("td", { colspan: 3 }, "Single admissions are not stored.")));
    $("entries-body").replaceChildren(...rows);
  }

  async reset() {
    const { key } = this;
    if (!(await confirm("Reset this key?", [key, "Its count is deleted, and all of its permits are free again."], "Reset"))) return;
    try {
      const { reset: done } = await reset(key);
      say($("inspector-said"), done ? "The key was reset." : "The key had no count.");
      this.fetch();
    } catch (error) {
      say($("inspector-said"), because(error), true);
    }
  }
}

function note({ algorithm, entries, truncated }) {
  if (algorithm === "token-bucket") return "A bucket stores its level, not single admissions. The line shows how it refills.";
  if (algorithm === "fixed-window") return "A fixed window stores one number. All permits are free at its end.";
  if (algorithm === "sliding-counter") return "A sliding counter stores two numbers, for this window and the previous one. The line is an upper bound: the previous window counts less and less.";
  const slices = algorithm === "time-slice" ? " Admissions are counted in slices, which leave whole." : "";
  const cut = truncated ? ` Only ${many(entries.length, "admission")} are listed.` : "";
  const mark = entries.length > MARKS ? "Each mark shows the admissions of a moment; its height is their cost." : "Each mark is an admission; its height is its cost.";
  return `${mark} The right side shows the usage if no request arrives.${slices}${cut}`;
}
