// Numbers and lengths of time, written for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n) => (n == null ? "–" : whole.format(n));

/** Few characters, for large figures and narrow columns. */
export const brief = (n) => (n == null ? "–" : Math.abs(n) < 10_000 ? tenth.format(n) : short.format(n));

export const share = (x) => (x == null || Number.isNaN(x) ? "–" : x > 0 && x < 0.001 ? "<0.1%" : `${tenth.format(x * 100)}%`);

/** A window: `5 s`, `1 min`, `250 ms`. A larger unit is used only for a whole number of it. */
export function span(ms) {
  if (ms == null) return "–";
  for (const [unit, size] of [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]]) {
    if (ms >= size && Number.isInteger(ms / size)) return `${whole.format(ms / size)} ${unit}`;
  }
  return ms >= 1000 ? `${tenth.format(ms / 1000)} s` : `${tenth.format(ms)} ms`;
}

/** A wait that counts down, always with one decimal, so that the text keeps its width. */
export function wait(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 60) return `${(Math.ceil(s * 10) / 10).toFixed(1)} s`;
  const all = Math.ceil(s);
  const [h, m, rest] = [Math.floor(all / 3600), Math.floor((all % 3600) / 60), all % 60];
  const two = (n) => String(n).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(rest)} h` : `${m}:${two(rest)} min`;
}

export function micros(us) {
  if (us == null) return "–";
  if (us < 1000) return `${whole.format(us)} µs`;
  if (us < 1_000_000) return `${tenth.format(us / 1000)} ms`;
  return `${tenth.format(us / 1_000_000)} s`;
}

/** The last bound of the server's histogram, in microseconds, and the one before it. */
const [BEFORE_LAST_BOUND, LAST_BOUND] = [1_000_000, 2_500_000];

/** A quantile. The server knows only the bucket of its histogram, so this is the upper bound of that bucket. */
export function bound(us) {
  if (us == null) return "–";
  return us >= LAST_BOUND ? `> ${micros(BEFORE_LAST_BOUND)}` : `≤ ${micros(us)}`;
}

export function bytes(n) {
  if (n == null) return "–";
  let [size, unit] = [n, 0];
  while (size >= 1024 && unit < 4) [size, unit] = [size / 1024, unit + 1];
  return `${unit ? tenth.format(size) : whole.format(size)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

export const clock = (ms) => time.format(ms);
export const clockMinute = (ms) => minute.format(ms);

/** To the millisecond: `12:03:41.250`. */
export const clockFine = (ms) => `${time.format(ms)}.${String(Math.floor(((ms % 1000) + 1000) % 1000)).padStart(3, "0")}`;

const ONE = { 1000: "second", 60_000: "minute", 3_600_000: "hour", 86_400_000: "day" };

/** `3 per 5 s`, `100 per minute`, or `2 at a time` for the algorithm `concurrency`. */
export const limitWords = (limit, ms, algorithm) =>
  limit == null ? "no limit" : algorithm === "concurrency" ? `${count(limit)} at a time` : `${count(limit)} per ${ONE[ms] ?? span(ms)}`;

export const algorithmWords = (name) => (name ?? "").replaceAll("-", " ");

/** The difference that a shadow rule would make, compared with the rule that it would replace. */
export function shadowWords(shadow) {
  if (!shadow) return "";
  const denied = `${count(shadow.newly_denied)} newly denied`;
  return shadow.shadow_of ? `instead of ${shadow.shadow_of}: ${denied}, ${count(shadow.newly_allowed)} newly allowed` : denied;
}

export const many = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;
