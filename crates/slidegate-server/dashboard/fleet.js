// All nodes that share a Redis: the switch between this node and all nodes, the table of nodes, and the sums that the live
// figures and the table of rules show.

import { $, attribute, el, text, write } from "./dom.js";
import { because } from "./access.js";
import { bind } from "./address.js";
import { fleet } from "./api.js";
import { bound, brief, count, share } from "./words.js";

/** Counts of a rule without decisions. */
const NONE = { allowed: 0, denied: 0, would_deny: 0, charged: 0, allowed_minute: 0, denied_minute: 0, would_deny_minute: 0, charged_minute: 0, not_charged_minute: 0, usage: null, mean_us: null };
/** Number of names in a sentence. */
const NAMES = 5;

export class Fleet {
  /** `changed(on, at)` is called when the page shows all nodes, and when it shows this node again. `at` is the time of the last
      event. */
  constructor(changed) {
    this.changed = changed;
    this.redis = false;
    this.on = false;
    this.waiting = false;
    this.rows = new Map();
    bind("scope", document.querySelectorAll("#scope input"), () => this.update());
  }

  update() {
    const on = this.redis && document.querySelector("#scope input:checked").value === "all";
    if (on === this.on) return;
    this.on = on;
    document.body.classList.toggle("fleet", on);
    $("nodes").hidden = !on;
    this.changed(on, this.at);
  }

  /** Calls `show` with the sums of all nodes, or with null if the page shows this node. */
  async tick(tick, show) {
    this.at = tick.at_ms;
    this.redis = tick.store.store === "redis";
    $("scope").hidden = !this.redis;
    this.update();
    if (!this.on) return show(null);
    // A slow answer counts for one second only.
    if (this.waiting) return;
    this.waiting = true;
    try {
      const answer = await fleet();
      if (!this.on) return;
      this.draw(answer, tick);
      show(sums(answer, tick));
    } catch (error) {
      this.note(because(error));
    } finally {
      this.waiting = false;
    }
  }

  draw({ nodes, rules, error }, tick) {
    const usual = { hash: mostCommon(nodes, "hash"), version: mostCommon(nodes, "version") };
    const rows = nodes.map((node) => this.row(node, usual));
    const body = $("nodes-body");
    if (rows.length !== body.children.length || rows.some((row, i) => body.children[i] !== row)) body.replaceChildren(...rows);
    for (const id of this.rows.keys()) if (!nodes.some((node) => node.id === id)) this.rows.delete(id);
    text($("nodes-count"), error ? "" : count(nodes.length));
    const known = new Set(tick.rules.map(({ rule }) => rule));
    const elsewhere = tick.rules.length < tick.rules_count ? [] : rules.map(({ rule }) => rule).filter((rule) => !known.has(rule));
    const names = elsewhere.slice(0, NAMES).join(", ") + (elsewhere.length > NAMES ? ", …" : "");
    if (error) this.note(`The other nodes are not known. ${because({ message: error })}`);
    else this.note(names ? `In force only on other nodes, and not in the table of rules: ${names}.` : "");
  }

  note(words) {
    $("nodes-note").hidden = !words;
    write($("nodes-note"), words);
  }

  row(node, usual) {
    let row = this.rows.get(node.id);
    if (!row) this.rows.set(node.id, (row = build(node)));
    const { parts } = row;
    text(parts.edition, node.edition ? `edition ${node.edition}` : "no rules yet");
    text(parts.hash, node.hash);
    mark(parts.rules, node.hash !== usual.hash);
    text(parts.version, node.version);
    mark(parts.version, node.version !== usual.version);
    attribute(parts.state, "data-state", node.store);
    text(parts.state.lastChild, node.store);
    text(parts.seen, node.this_node ? "now" : `${(node.age_ms / 1000).toFixed(1)} s ago`);
    text(parts.allowed, brief(node.allowed));
    text(parts.denied, brief(node.denied));
    parts.denied.classList.toggle("denying", node.denied > 0);
    const asked = node.allowed_minute + node.denied_minute;
    text(parts.share, asked ? share(node.denied_minute / asked) : "–");
    text(parts.p99, bound(node.p99_us));
    return row;
  }
}

/** The sums in the form of a tick: the rules are those of this node, in their order. */
function sums({ nodes, rules, allowed, denied, would_deny, allowed_minute, denied_minute }, tick) {
  const known = new Map(rules.map((rule) => [rule.rule, rule]));
  const slowest = (name) => nodes.map((node) => node[name]).filter((us) => us != null).reduce((most, us) => Math.max(most, us), 0) || null;
  return {
    allowed, denied, would_deny, allowed_minute, denied_minute,
    p50_us: slowest("p50_us"), p99_us: slowest("p99_us"),
    rules: tick.rules.map((rule) => ({ ...rule, ...NONE, ...known.get(rule.rule) })),
  };
}

/** Returns the value that most nodes have; of several, the one of this node. */
function mostCommon(nodes, name) {
  const own = nodes.find((node) => node.this_node)?.[name];
  const counts = new Map();
  for (const node of nodes) counts.set(node[name], (counts.get(node[name]) ?? (node[name] === own ? 0.5 : 0)) + 1);
  return [...counts].reduce((most, one) => (one[1] > most[1] ? one : most), [own, 0])[0];
}

function mark(node, differs) {
  node.classList.toggle("differs", differs);
  attribute(node, "title", differs ? "Differs from most nodes" : "");
}

function build({ id, name, this_node }) {
  const parts = { edition: el("span"), hash: el("small", { class: "mono" }), state: el("span", { class: "state" }, el("i", { "aria-hidden": "true" }), el("span")) };
  const cell = (label, ...children) => el("td", { role: "cell", "data-label": label }, ...children);
  parts.rules = cell("Rules", parts.edition, parts.hash);
  parts.version = cell("Version");
  for (const [part, label] of [["seen", "Seen"], ["allowed", "Allowed/s"], ["denied", "Denied/s"], ["share", "Denied %"], ["p99", "99 % of times"]]) {
    parts[part] = cell(label);
    parts[part].className = "n";
  }
  const row = el("tr", { role: "row", "data-node": id }, el("th", { role: "rowheader", scope: "row" }, name, el("small", {}, this_node ? "this node" : id)),
    parts.rules, parts.version, cell("Redis", parts.state), parts.seen, parts.allowed, parts.denied, parts.share, parts.p99);
  row.parts = parts;
  return row;
}
