// State of the store that has the counts.

import { $, attribute, el, meter, text } from "./dom.js";
import { bytes, clock, count, many, micros, share } from "./words.js";
import { outage, serverState, storeState } from "./health.js";
import { go } from "./address.js";
import { notice } from "./banner.js";

const SERVERS = 48;
const WORDS = { ok: "in use", degraded: "recovering", down: "not in use" };

export class StoreHealth {
  constructor() {
    this.facts = new Map();
    this.servers = [];
    /** Start of the outage; null if it began before this page was opened. */
    this.since = undefined;
    this.seen = false;
  }

  tick(tick) {
    const { store } = tick;
    const state = storeState(store);
    const pill = $("store-state");
    attribute(pill, "data-state", state);
    text(pill.lastElementChild, { ok: store.store, degraded: `${store.store} degraded`, down: `${store.store} down` }[state]);
    this.tell(tick, state);
    text($("store-said"), store.store === "memory" ? "The counts are in the memory of this process." : `The counts are in Redis: ${many(store.servers?.length ?? 0, "server")}.`);
    this.drawServers(store.servers ?? []);
    this.drawFacts(tick);
    const { http, grpc, resp } = tick.connections;
    text($("connections"), `Connections: ${count(http)} HTTP, ${count(grpc)} gRPC, ${count(resp)} RESP`);
    this.seen = true;
  }

  /** Shows a notice while this node decides without Redis. */
  tell({ at_ms, store }, state) {
    if (state === "ok") {
      this.since = undefined;
      return notice("store", null);
    }
    if (this.since === undefined) this.since = this.seen ? at_ms : null;
    const { names, part, all, returning } = outage(store);
    const when = this.since ? `Since ${clock(this.since)}` : "Since before this page was opened";
    const who = all ? "this node decides" : "for the keys of these servers, this node decides";
    const title = returning ? "Redis answers again. This node writes back the admissions of the outage." : all ? "Redis does not answer. This node decides without it." : "A Redis server does not answer. This node decides without it.";
    notice("store", "alert", title, `${when}, ${who} with ${part}. Rules with on-error open allow all requests, rules with on-error closed deny them. Servers: ${names}.`, ["Show the store", () => go("store")]);
  }

  drawServers(servers) {
    const list = $("servers");
    list.hidden = !servers.length;
    servers.slice(0, SERVERS).forEach((server, i) => {
      const card = (this.servers[i] ??= list.appendChild(serverCard()));
      const { parts } = card;
      const state = serverState(server);
      attribute(card, "data-state", state);
      attribute(parts.state, "data-state", state);
      text(parts.address, server.address);
      text(parts.word, WORDS[state]);
      text(parts.breaker, server.breaker);
      text(parts.decides, server.direct ? "Redis" : "this node, by its share");
      text(parts.nodes, count(server.nodes));
      text(parts.outages, count(server.outages));
      text(parts.written, count(server.written_back));
      text(parts.excess, count(server.excess));
      text(parts.fault, server.last_fault ?? "none");
      text(parts.memory, bytes(server.used_memory) + (server.max_memory ? ` of ${bytes(server.max_memory)}` : ""));
      parts.meter.hidden = !server.max_memory;
      if (server.max_memory) meter(parts.meter, server.used_memory / server.max_memory);
    });
    while (this.servers.length > Math.min(SERVERS, servers.length)) this.servers.pop().remove();
  }

  drawFacts(tick) {
    $("store-facts").classList.remove("skeleton");
    const fresh = new Map(facts(tick));
    for (const [name, fact] of this.facts) {
      if (fresh.has(name)) continue;
      fact.remove();
      this.facts.delete(name);
    }
    for (const [name, [value, detail]] of fresh) {
      let fact = this.facts.get(name);
      if (!fact) this.facts.set(name, (fact = $("store-facts").appendChild(el("div", { "data-fact": name }, el("dt", {}, name), el("dd", {}, el("span"), el("small"))))));
      const [shown, small] = fact.lastChild.children;
      text(shown, value);
      text(small, detail ?? "");
    }
  }
}

function* facts({ store, accuracy, memory }) {
  if (store.store === "memory") {
    yield ["Keys", [count(store.keys)]];
    yield ["Events", [count(store.events), "admissions stored one by one"]];
    yield ["Evicted", [count(store.evicted), "keys removed because the store was full"]];
    if (store.shared_counters || store.shared) yield ["Shared", [count(store.shared_counters), `counters shared by keys because the store is full, ${count(store.shared)} decisions`]];
    if (store.denied_full) yield ["Denied", [count(store.denied_full), "decisions, because the store was full"]];
    if (store.ids_dropped || store.settlements_dropped) yield ["Dropped", [count(store.ids_dropped), `request ids and ${count(store.settlements_dropped)} settlements, because memory.max-note-bytes was used up`]];
  } else {
    yield ["Call", [micros(store.calls?.mean_us), `${many(store.calls?.errors ?? 0, "error")} since the start`]];
    yield ["In flight", [count(store.in_flight), `calls; ${count(store.late)} late replies, ${count(store.overloaded)} decisions without Redis because of overload`]];
    const { calls, requests } = store.coalesced ?? {};
    yield ["Requests per call", [calls ? (requests / calls).toFixed(1) : "–", `${count(requests)} requests in ${count(calls)} calls`]];
    yield ["Leases", [count(store.leases?.idle_permits), `unused leased permits of ${many(store.leases?.keys ?? 0, "key")}`]];
    if (store.journal) yield ["Journal", [bytes(store.journal.bytes), `${count(store.journal.entries)} entries, ${many(store.journal.keys, "key")}`]];
  }
  if (accuracy) {
    const found = accuracy.discrepancies ? `${count(accuracy.discrepancies)} differ, ${count(accuracy.repaired)} repaired` : "no difference";
    yield ["Accuracy", [share(accuracy.ratio), `${count(accuracy.checked)} checked at ${clock(accuracy.at_ms)}: ${found}`]];
  }
  if (memory) {
    const parts = [memory.max ? `of ${bytes(memory.max)}` : null, memory.ours_estimate != null ? `about ${bytes(memory.ours_estimate)} used by Slidegate` : null];
    yield ["Memory", [bytes(memory.used), parts.filter(Boolean).join(", ")]];
    if (memory.cleaned) yield ["Garbage collected", [bytes(memory.cleaned.bytes), `${many(memory.cleaned.keys, "key")}, ${count(memory.cleaned.entries)} entries`]];
  }
}

function serverCard() {
  const parts = { address: el("code"), word: el("span"), meter: el("span", { class: "meter" }, el("i")) };
  parts.state = el("span", { class: "state" }, el("i", { "aria-hidden": "true" }), parts.word);
  const list = el("dl");
  for (const [id, name] of [["breaker", "Circuit breaker"], ["decides", "Decisions by"], ["nodes", "Nodes"], ["outages", "Outages"], ["written", "Written back"], ["excess", "Over the limit"], ["fault", "Last fault"], ["memory", "Memory"]]) {
    parts[id] = el("dd");
    list.append(el("dt", {}, name), parts[id]);
  }
  const card = el("li", { class: "server" }, el("h3", {}, parts.address, parts.state), list, parts.meter);
  card.parts = parts;
  return card;
}
