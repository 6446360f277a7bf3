// The inspector: reads one key each second, and draws the entries that count under it.

import { $, el, meter, say, text } from "./dom.js";
import { inspect, reset } from "./api.js";
import { because, mayChange, onAccess } from "./access.js";
import { algorithmWords, clockFine, count, limitWords, many, wait } from "./words.js";
import { nextFree, reading } from "./ahead.js";
import { confirm } from "./confirm.js";
import { go, onAddress, read as fromUrl, write } from "./address.js";
import { Timeline } from "./timeline.js";

const EVERY = 1000;
const TABLE_ROWS = 200;
const HINT = "Shows the window of one key. Choose a key above, or enter one.";

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
    onAddress(() => this.fromAddress());
    onAccess(() => {
      this.buttons();
      if (this.key && this.stopped) this.follow();
    });
    this.fromAddress();
  }

  fromAddress() {
    const key = fromUrl("inspect");
    if (key === this.key) return;
    if (key) this.open(key);
    else this.close();
  }

  open(key, move = true) {
    this.close();
    this.key = key;
    this.last = null;
    $("inspector-key").value = key;
    write("inspect", key);
    say($("inspector-said"), "Reading…");
    this.buttons();
    this.follow();
    if (move) go("inspector");
  }

  close() {
    this.call?.abort();
    clearInterval(this.timer);
    this.key = null;
    this.timeline.clear();
    $("inspector-body").hidden = true;
    say($("inspector-said"), HINT);
    write("inspect", "");
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
      say($("inspector-said"), "This key has no count now.");
      // The entries in the picture expire as before.
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
    const { attempts } = this.read;
    const words = limit == null ? count(used) : attempts ? `${many(used, "attempt")}, limit ${count(limit)}` : `${count(used)} of ${count(limit)}`;
    text($("inspector-used"), words);
    text($("inspector-used-name"), attempts ? "Attempts" : "Used");
    text($("entries-kind"), attempts ? "Attempted" : "Admitted");
    const bar = $("inspector-bar").parentElement;
    bar.hidden = limit == null;
    meter(bar, limit ? used / limit : 0, limit != null && !nextFree(this.read).free);
    const facts = [rule ?? "no rule has this key", limit == null ? null : limitWords(limit, window_ms, algorithm), algorithmWords(algorithm)];
    text($("inspector-rule"), facts.filter(Boolean).join(", "));
    this.timeline.show(this.read, moment);
    text($("timeline-note"), note(answer, this.timeline.summed));
    this.table();
  }

  /** Counts the waits down, together with the picture. */
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
    if (!rows.length) rows.push(el("tr", {}, el("td", { colspan: 3 }, "The store has no single entries for this key.")));
    $("entries-body").replaceChildren(...rows);
  }

  async reset() {
    const { key } = this;
    if (!(await confirm("Reset this key?", [key, "Its count is deleted, and all of its permits are free again."], "Reset"))) return;
    try {
      const { reset: done } = await reset(key);
      say($("inspector-said"), done ? "The count is deleted." : "This key had no count.");
      this.fetch();
    } catch (error) {
      say($("inspector-said"), because(error), true);
    }
  }
}

function note({ algorithm, count: counts, entries, truncated }, summed) {
  if (algorithm === "token-bucket") return "A token bucket stores its level and no single admissions. The line shows how the permits in use decrease.";
  if (algorithm === "fixed-window") return "A fixed window stores one number. All of its permits are free at its end.";
  if (algorithm === "sliding-counter") return "A sliding counter stores two numbers: for this window and for the previous one. The line is an upper bound.";
  const one = counts === "attempts" ? "attempt" : "admission";
  const mark = summed ? `Each mark is the sum of the ${one}s in a short time.` : `Each mark is one ${one}.`;
  const attempts = counts === "attempts" ? " This rule counts denied requests too, and stores the newest attempts, as many as its limit." : "";
  const slices = algorithm === "time-slice" ? " A slice expires as a whole." : "";
  const cut = truncated ? ` Only the oldest ${many(entries.length, one)} are shown.` : "";
  return `${mark} Its height shows its permits.${attempts} The line on the right shows the permits in use if no other request arrives.${slices}${cut}`;
}
