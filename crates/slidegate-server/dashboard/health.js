// State of the store: `ok`, `degraded` or `down`.

/** A server is ok if its circuit breaker is closed and it decides alone. */
export function serverState({ breaker, direct }) {
  if (breaker === "closed") return direct === false ? "degraded" : "ok";
  return breaker === "half-open" ? "degraded" : "down";
}

export function storeState({ store, servers }) {
  if (store !== "redis" || !servers?.length) return "ok";
  const states = servers.map(serverState);
  if (states.every((state) => state === "ok")) return "ok";
  // No server is in use: this node makes every decision.
  return servers.every(({ breaker }) => breaker !== "closed") ? "down" : "degraded";
}

/** Describes the servers that are not ok, and how this node decides for them. */
export function outage({ servers }) {
  const away = servers.filter((server) => serverState(server) !== "ok");
  const names = away.map(({ address, last_fault }) => (last_fault ? `${address} (${last_fault})` : address)).join(", ");
  const nodes = Math.max(1, ...away.map(({ nodes }) => nodes ?? 1));
  const part = nodes > 1 ? `its share of each limit, 1/${nodes}` : "the whole limit, because it knows no other node";
  return { names, part, all: away.length === servers.length, returning: away.every(({ breaker }) => breaker === "closed") };
}
