// State of the store.

import { $, attribute, el, meter, text } from "./dom.js";
import { bytes, clock, count, many, micros, share } from "./words.js";
import { outage, serverState, storeState } from "./health.js";
import { notice } from "./banner.js";

const SERVERS = 48;
const WORDS = { ok: "asked", degraded: "recovering", down: "not called" };

export class StoreHealth {
  constructor() {
    this.facts = new Map();
    this.servers = [];
    /** Since when it is not well; null if it was so before this page looked. */
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
    text($("store-said"), store.store === "memory" ? "Counts are stored in this process." : `Counts are stored in Redis: ${many(store.servers?.length ?? 0, "server")}.`);
    this.drawServers(store.servers ?? []);
    this.drawFacts(tick);
    const { http, grpc, resp } = tick.connections;
    text($("connections"), `Connections: ${count(http)} HTTP, ${count(grpc)} gRPC, ${count(resp)} RESP`);
    this.seen = true;
  }

  /** The banner, while decisions are made without Redis. */
  tell({ at_ms, store }, state) {
    if (state === "ok") {
      this.since = undefined;
      return notice("store", null);
    }
    if (this.since === undefined) this.since = this.seen ? at_ms : null;
    const { names, part, all, returning } = outage(store);
    const when = this.since ? `Since ${clock(this.since)}` : "Since before this page was opened";
    const who = all ? "this node decides alone" : "this node decides alone for the keys of that server";
    const title = returning ? "Redis is back: the admissions of the outage are being written back" : all ? "Redis does not answer: deciding without it" : "A Redis server does not answer: deciding without it";
    notice("store", "alert", title, `${when}: ${who}, with ${part}. Rules with on-error: open or closed allow or deny instead. Unavailable: ${names}.`, ["Look", () => $("store").scrollIntoView()]);
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
      text(parts.decides, server.direct ? "Redis alone" : "this node, by its share");
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
    yield ["Events", [count(store.events), "stored admissions"]];
    yield ["Evicted", [count(store.evicted), "keys removed while in use"]];
    if (store.shared_counters || store.shared) yield ["Shared", [count(store.shared_counters), `counters for keys beyond the bound, ${count(store.shared)} decisions`]];
    if (store.denied_full) yield ["Denied", [count(store.denied_full), "decisions, because the store was full"]];
    if (store.ids_dropped || store.settlements_dropped) yield ["Dropped", [count(store.ids_dropped), `request ids, and ${count(store.settlements_dropped)} settlements, because memory.max-note-bytes was used up`]];
  } else {
    yield ["Call", [micros(store.calls?.mean_us), `${many(store.calls?.errors ?? 0, "error")} since the start`]];
    yield ["In flight", [count(store.in_flight), `${count(store.late)} late, ${count(store.overloaded)} not sent (overload)`]];
    const { calls, requests } = store.coalesced ?? {};
    yield ["Requests per call", [calls ? (requests / calls).toFixed(1) : "–", `${count(requests)} requests in ${count(calls)} calls`]];
    yield ["Leases", [count(store.leases?.idle_permits), `unused permits, for ${many(store.leases?.keys ?? 0, "key")}`]];
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
  for (const [id, name] of [["breaker", "Breaker"], ["decides", "Decides"], ["nodes", "Nodes"], ["outages", "Outages"], ["written", "Written back"], ["excess", "Excess"], ["fault", "Last fault"], ["memory", "Memory"]]) {
    parts[id] = el("dd");
    list.append(el("dt", {}, name), parts[id]);
  }
  const card = el("li", { class: "server" }, el("h3", {}, parts.address, parts.state), list, parts.meter);
  card.parts = parts;
  return card;
}
