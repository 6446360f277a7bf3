// Try it: sends a request as any client does, and shows the answer.

import { $, el, marked, meter, say, text, write } from "./dom.js";
import { acquire, explain, peek, rules, settle } from "./api.js";
import { because } from "./access.js";
import { count, wait } from "./words.js";

/** Values of well-known attributes for an example. */
const EXAMPLES = { ip: "1.2.3.4", user: "alice", "api-key": "key-1", api: "/", tenant: "acme", method: "GET" };

export class TryIt {
  /** `inspect(key)` opens a key. */
  constructor(inspect) {
    this.inspect = inspect;
    this.rules = [];
    for (const input of document.querySelectorAll("#try-kind input")) {
      input.addEventListener("change", () => {
        $("try-rules").hidden = input.value !== "rules";
        $("try-own").hidden = input.value !== "own";
      });
    }
    $("try-rule").addEventListener("change", () => this.example());
    $("try-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(acquire, false);
    });
    $("try-peek").addEventListener("click", () => this.ask(peek, true));
    $("try-explain").addEventListener("click", () => this.ask(explain, true));
    $("try-again").addEventListener("click", () => this.ask(acquire, false));
    $("try-refund").addEventListener("click", () => this.refund());
  }

  /** Reads the rules again when another edition is in force. */
  async tick({ edition }) {
    if (edition.hash === this.edition) return;
    this.edition = edition.hash;
    try {
      this.rules = (await rules()).rules;
    } catch {
      this.edition = null;
      return;
    }
    const chosen = $("try-rule").value;
    $("try-rule").replaceChildren(el("option", { value: "" }, "none"), ...this.rules.slice(0, 1000).map(({ name }) => el("option", { value: name }, name)));
    $("try-rule").value = this.rules.some(({ name }) => name === chosen) ? chosen : "";
  }

  example() {
    const rule = this.rules.find(({ name }) => name === $("try-rule").value);
    if (!rule) return;
    const lines = new Map();
    for (const [name, patterns] of Object.entries(rule.match ?? {})) lines.set(name, String([patterns].flat()[0]).replace(/\*$/, "example"));
    for (const name of rule.key ?? []) if (!lines.has(name)) lines.set(name, EXAMPLES[name] ?? "example");
    $("try-attributes").value = [...lines].map(([name, value]) => `${name}=${value}`).join("\n");
  }

  request() {
    const body = {};
    const permits = $("try-permits").value.trim();
    if (permits) body.permits = Number(permits);
    if (document.querySelector("#try-kind input:checked").value === "own") {
      body.resource = $("try-resource").value;
      if ($("try-limit").value) body.limit = Number($("try-limit").value);
      if ($("try-window").value.trim()) body.window = $("try-window").value.trim();
      return body;
    }
    body.attributes = {};
    for (const line of $("try-attributes").value.split("\n")) {
      if (!line.trim()) continue;
      const at = line.indexOf("=");
      if (at < 1) throw new Error(`Write an attribute as name=value. This line has no name: “${line.trim()}”.`);
      body.attributes[line.slice(0, at).trim()] = line.slice(at + 1).trim();
    }
    return body;
  }

  async ask(question, onlyLooks) {
    say($("try-settled"), "");
    let request;
    try {
      request = this.request();
      this.show(await question(request), onlyLooks || request.permits === 0);
    } catch (error) {
      this.verdict("", "!", "No decision");
      write($("try-detail"), error.status === undefined ? error.message : because(error));
      $("try-limits").replaceChildren();
      $("try-why").replaceChildren();
      $("try-again").hidden = $("try-refund").hidden = true;
      this.countDown(0);
    }
  }

  verdict(allowed, mark, words) {
    $("try-verdict").dataset.allowed = allowed;
    text($("try-mark"), mark);
    text($("try-said"), words);
  }

  show(decision, onlyLooks) {
    const { allowed, denied_by, reservation, code, source, retry_after_ms, never } = decision;
    const limits = decision.limits ?? counted(decision.rules);
    const said = allowed ? (onlyLooks ? "Would be allowed" : "Allowed") : `${onlyLooks ? "Would be denied" : "Denied"}${denied_by ? ` by ${denied_by}` : ""}`;
    this.verdict(allowed, allowed ? "✓" : "✕", said);
    text($("try-detail"), [allowed ? null : `Code ${code}`, `source: ${source}`, limits.length ? null : "no rule applies", never ? "waiting does not help" : null].filter(Boolean).join(", "));
    $("try-limits").replaceChildren(...limits.slice(0, 50).map((limit) => this.limit(limit, denied_by)));
    $("try-why").replaceChildren(...uncounted(decision.rules ?? []).slice(0, 50).map(({ rule, why }) => el("li", {}, el("b", {}, rule), el("small", {}, ...marked(why)))));
    this.reservation = reservation;
    $("try-refund").hidden = !reservation || onlyLooks;
    $("try-refund").disabled = false;
    $("try-again").hidden = allowed || never;
    this.countDown(allowed ? 0 : retry_after_ms);
  }

  limit(limit, deniedBy) {
    const bar = el("span", { class: "meter" }, el("i"));
    const denied = limit.rule === deniedBy;
    meter(bar, limit.limit ? limit.used / limit.limit : 1, denied);
    const denies = denied ? "denied" : limit.would_deny ? "shadow: would deny" : "";
    const said = `${count(limit.used)} of ${count(limit.limit)} used, ${count(limit.remaining)} left`;
    return el("li", { "data-key": limit.key },
      el("div", { class: "row" }, el("b", {}, limit.rule, denies ? el("small", {}, ` ${denies}`) : null), el("span", {}, said)), bar,
      el("button", { type: "button", class: "link", title: "Inspect this key", onclick: () => this.inspect(limit.key) }, limit.key));
  }

  countDown(ms) {
    clearInterval(this.timer);
    const until = performance.now() + ms;
    const show = () => {
      const left = until - performance.now();
      $("try-again").disabled = left > 0;
      $("try-again").classList.toggle("main", left <= 0);
      text($("try-wait"), $("try-again").hidden ? "" : left > 0 ? `Retry in ${wait(left)}` : "Try again");
      if (left <= 0) clearInterval(this.timer);
    };
    this.timer = setInterval(show, 100);
    show();
  }

  async refund() {
    try {
      const { settled } = await settle(this.reservation, 0);
      $("try-refund").disabled = true;
      say($("try-settled"), { done: "Refunded.", already: "This was refunded before.", gone: "The admission has expired. There is nothing to refund." }[settled] ?? settled);
    } catch (error) {
      say($("try-settled"), because(error), true);
    }
  }
}

/** Returns the rules of an explanation that apply, in the form of the limits of a decision. */
const counted = (rules) => rules.filter(({ counted }) => counted)
  .map(({ rule, verdict, counted }) => ({ ...counted, rule, limit: counted.limit_now, would_deny: verdict === "would-deny" }));

/** Returns the other rules of an explanation, with the reason why they do not apply. */
const uncounted = (rules) => rules.filter(({ counted }) => !counted)
  .map(({ rule, verdict, why }) => ({ rule, why: why ?? verdict.replaceAll("-", " ") }));
