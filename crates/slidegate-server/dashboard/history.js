// What was decided in each second, for half an hour. A second of which nothing is known is NaN: a gap, not a zero.

export const SECONDS = 1800;

export class History {
  constructor() {
    this.allowed = new Float64Array(SECONDS).fill(NaN);
    this.denied = new Float64Array(SECONDS).fill(NaN);
    /** The newest second, in seconds since 1970. */
    this.last = null;
  }

  start({ until_ms, allowed, denied }) {
    this.allowed.fill(NaN);
    this.denied.fill(NaN);
    this.last = Math.round(until_ms / 1000);
    const from = this.last - allowed.length + 1;
    for (let i = Math.max(0, allowed.length - SECONDS); i < allowed.length; i++) {
      this.allowed[(from + i) % SECONDS] = allowed[i];
      this.denied[(from + i) % SECONDS] = denied[i];
    }
  }

  add(at_ms, allowed, denied) {
    const at = at_ms / 1000;
    // Ticks come a little early or late; only what is far off is another second.
    const second = this.last != null && Math.abs(at - (this.last + 1)) < 0.9 ? this.last + 1 : Math.round(at);
    if (this.last != null && second > this.last) {
      for (let missed = Math.max(this.last + 1, second - SECONDS); missed < second; missed++) {
        this.allowed[missed % SECONDS] = this.denied[missed % SECONDS] = NaN;
      }
    }
    this.last = Math.max(second, this.last ?? second);
    this.allowed[second % SECONDS] = allowed;
    this.denied[second % SECONDS] = denied;
  }

  /** Whether anything was ever decided, as far as is known. */
  any() {
    return this.allowed.some((n) => n > 0) || this.denied.some((n) => n > 0);
  }

  /** The mean a second over columns of `step` seconds, oldest first. Columns stand at multiples of `step`, so that
      their values do not change as time goes on. */
  columns(seconds, step) {
    if (this.last == null) return [];
    const columns = [];
    const end = Math.floor(this.last / step);
    for (let column = end - Math.ceil(seconds / step) + 1; column <= end; column++) {
      let [allowed, denied, known] = [0, 0, 0];
      for (let second = column * step; second < (column + 1) * step; second++) {
        if (second > this.last || second <= this.last - SECONDS || Number.isNaN(this.allowed[second % SECONDS])) continue;
        allowed += this.allowed[second % SECONDS];
        denied += this.denied[second % SECONDS];
        known += 1;
      }
      columns.push({ at: column * step, allowed: known ? allowed / known : NaN, denied: known ? denied / known : NaN });
    }
    return columns;
  }
}
