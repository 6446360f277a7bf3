// Future of a count if no other request arrives.

/** Converts the answer of the server about a key: instants instead of waits. `rate` is that of a token bucket, in permits per
    millisecond. */
export function reading(answer) {
  const now = answer.at_ms ?? Date.now();
  const waits = answer.entries.map(({ leaves_after_ms }) => leaves_after_ms);
  const window = answer.window_ms || waits.reduce((most, ms) => Math.max(most, ms), Math.max(1000, answer.reset_after_ms));
  const entries = answer.entries
    .map(({ permits, at_ms, leaves_after_ms }) => ({ permits, at: at_ms ?? now + leaves_after_ms - window, leaves: now + leaves_after_ms }))
    .sort((a, b) => a.leaves - b.leaves);
  const bucket = answer.algorithm === "token-bucket";
  return {
    now, window, entries, bucket,
    fixed: answer.algorithm === "fixed-window",
    attempts: answer.count === "attempts",
    used: answer.used,
    limit: answer.limit ?? null,
    empty: now + answer.reset_after_ms,
    rate: bucket && answer.reset_after_ms > 0 ? answer.used / answer.reset_after_ms : 0,
  };
}

/** Returns `[instant, used]` from now on. Each value holds until the next instant; for a bucket they are the ends of a straight
    line. */
export function course({ now, used, entries, empty, bucket }) {
  if (bucket || !entries.length) return [[now, used], [empty, 0]];
  const steps = [[now, used]];
  let left = used;
  for (const { leaves, permits } of entries) {
    left = Math.max(0, left - permits);
    if (steps.at(-1)[0] === leaves) steps.at(-1)[1] = left;
    else steps.push([leaves, left]);
  }
  return steps;
}

/** Returns when the next permit is free, and the entry that must expire before. */
export function nextFree(read) {
  const { used, limit, entries, empty, rate, now, bucket } = read;
  if (limit == null || used < limit) return { at: now, free: true, entry: entries[0] ?? null };
  if (bucket) return { at: rate ? now + (used - (limit - 1)) / rate : now, free: false, entry: null };
  let left = used;
  for (const entry of entries) {
    left -= entry.permits;
    if (left < limit) return { at: entry.leaves, free: false, entry };
  }
  return { at: empty, free: false, entry: null };
}
