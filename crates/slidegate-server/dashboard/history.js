// Counts over time, in steps of equal length. A step without data is NaN: the chart shows a gap, not a zero.

export class History {
  /** `unit` is the length of a step in seconds, `size` the number of steps that are kept. */
  constructor(unit = 1, size = 3600) {
    Object.assign(this, { unit, size });
    this.allowed = new Float64Array(size).fill(NaN);
    this.denied = new Float64Array(size).fill(NaN);
    /** The newest step and the oldest known one, in steps since 1970; null without data. */
    this.last = null;
    this.first = null;
  }

  /** Replaces everything with what the server sent, the oldest step first. */
  start({ until_ms, allowed, denied }) {
    this.allowed.fill(NaN);
    this.denied.fill(NaN);
    // The index of a step is its start. `until_ms` is the end of the last step.
    this.last = Math.round(until_ms / 1000 / this.unit) - (this.unit > 1 ? 1 : 0);
    const from = this.last - allowed.length + 1;
    for (let i = Math.max(0, allowed.length - this.size); i < allowed.length; i++) {
      this.allowed[(from + i) % this.size] = allowed[i];
      this.denied[(from + i) % this.size] = denied[i];
    }
    this.first = allowed.length ? Math.max(from, this.last - this.size + 1) : null;
  }

  add(at_ms, allowed, denied) {
    const at = at_ms / 1000 / this.unit;
    // Ticks arrive a little early or late. Only a large difference is another step.
    const step = this.last != null && Math.abs(at - (this.last + 1)) < 0.9 ? this.last + 1 : Math.round(at);
    if (this.last != null && step > this.last) {
      for (let missed = Math.max(this.last + 1, step - this.size); missed < step; missed++) {
        this.allowed[missed % this.size] = this.denied[missed % this.size] = NaN;
      }
    }
    this.last = Math.max(step, this.last ?? step);
    this.first = Math.max(this.first ?? step, this.last - this.size + 1);
    this.allowed[step % this.size] = allowed;
    this.denied[step % this.size] = denied;
  }

  /** Returns true if there was a decision. */
  any() {
    return this.allowed.some((n) => n > 0) || this.denied.some((n) => n > 0);
  }

  /** Returns the first and the last second of the newest `seconds`, and not more than there is data for. A young history
      is shown as at least `least` seconds, so that the first columns do not fill the chart. */
  range(seconds, least) {
    const until = (this.last + 1) * this.unit - 1;
    const known = (this.last - (this.first ?? this.last) + 1) * this.unit;
    return [until + 1 - Math.min(seconds, Math.max(least, known)), until];
  }

  /** Returns the mean per second in columns of `width` seconds, the oldest first. Columns begin at multiples of `width`,
      so that their values do not change while time passes. */
  columns(from, until, width) {
    if (this.last == null) return [];
    const columns = [];
    const steps = width / this.unit;
    for (let column = Math.floor(from / width); column <= Math.floor(until / width); column++) {
      let [allowed, denied, known] = [0, 0, 0];
      for (let step = column * steps; step < (column + 1) * steps; step++) {
        if (step > this.last || step <= this.last - this.size || Number.isNaN(this.allowed[step % this.size])) continue;
        allowed += this.allowed[step % this.size];
        denied += this.denied[step % this.size];
        known += this.unit;
      }
      columns.push({ at: column * width, allowed: known ? allowed / known : NaN, denied: known ? denied / known : NaN });
    }
    return columns;
  }
}
