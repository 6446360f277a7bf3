// The live feed: one connection, opened again whenever it is lost.

import { open, failure } from "./api.js";
import { events } from "./events.js";

const FIRST_WAIT = 500;
const LONGEST_WAIT = 15_000;
/** The server sends an event each second. A feed that is silent for this long is lost. */
const SILENCE = 6000;

export class Live {
  /** `on` has `history`, `tick`, `state(name, detail)` and `unauthorized()`. */
  constructor(on) {
    this.on = on;
    this.wake = () => {};
    this.current = null;
  }

  /** Connects now: for the first time, with another token, or because the user does not want to wait. */
  restart() {
    this.again = true;
    this.current?.abort();
    this.wake();
    if (!this.running) this.run();
  }

  async run() {
    this.running = true;
    let delay = FIRST_WAIT;
    for (;;) {
      this.again = false;
      let error = null;
      try {
        await this.follow(() => (delay = FIRST_WAIT));
      } catch (caught) {
        error = caught;
      }
      if (this.again) {
        delay = FIRST_WAIT;
        continue;
      }
      if (error?.status === 401) {
        this.on.unauthorized();
        await this.pause(0);
        continue;
      }
      const pause = delay * (0.75 + Math.random() / 2);
      this.on.state("lost", { message: error?.message ?? "The server closed the connection.", until: Date.now() + pause });
      await this.pause(pause);
      delay = Math.min(delay * 2, LONGEST_WAIT);
    }
  }

  async follow(heard) {
    const call = (this.current = new AbortController());
    let silent;
    const listen = () => {
      clearTimeout(silent);
      silent = setTimeout(() => call.abort(), SILENCE);
    };
    listen();
    try {
      const response = await open("v1/live", { signal: call.signal });
      if (!response.ok) throw await failure(response);
      for await (const { event, data } of events(response.body)) {
        listen();
        if (event !== "history" && event !== "tick") continue;
        heard();
        this.on.state("ok", {});
        this.on[event](JSON.parse(data));
      }
    } catch (error) {
      if (error.name === "AbortError") throw new Error("The server sent nothing for 6 s.");
      throw error;
    } finally {
      clearTimeout(silent);
      call.abort();
    }
  }

  /** Resolves after `ms`, or when `wake` is called; if `ms` is 0, only when `wake` is called. */
  pause(ms) {
    return new Promise((resolve) => {
      const timer = ms ? setTimeout(resolve, ms) : null;
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
