// How the store is, in one word and one sentence: `ok`, `degraded` or `down`.

/** `closed` and deciding alone is how a server should be. */
export function serverState({ breaker, direct }) {
  if (breaker === "closed") return direct === false ? "degraded" : "ok";
  return breaker === "half-open" ? "degraded" : "down";
}

export function storeState({ store, servers }) {
  if (store !== "redis" || !servers?.length) return "ok";
  const states = servers.map(serverState);
  if (states.every((state) => state === "ok")) return "ok";
  // No server that is asked: every decision is made without one.
  return servers.every(({ breaker }) => breaker !== "closed") ? "down" : "degraded";
}

/** What a state means for decisions, of the servers that are not well. */
export function outage({ servers }) {
  const away = servers.filter((server) => serverState(server) !== "ok");
  const names = away.map(({ address, last_fault }) => (last_fault ? `${address} (${last_fault})` : address)).join(", ");
  const nodes = Math.max(1, ...away.map(({ nodes }) => nodes ?? 1));
  const part = nodes > 1 ? `its share of each limit, 1/${nodes}` : "the full limits, because no other node is known";
  return { names, part, all: away.length === servers.length, returning: away.every(({ breaker }) => breaker === "closed") };
}
