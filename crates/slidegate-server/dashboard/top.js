// The most requested keys, and the most denied keys.

import { $, attribute, el, text } from "./dom.js";
import { bind, onAddress, read, write } from "./address.js";
import { top } from "./api.js";
import { count } from "./words.js";

const EVERY = 3000;
const ROWS = 20;

export class TopKeys {
  /** `inspect(key)` opens one. */
  constructor(inspect) {
    this.inspect = inspect;
    this.asked = -Infinity;
    bind("period", document.querySelectorAll("#period input"), () => this.fetch());
    $("top-rule").addEventListener("change", () => {
      write("keys", $("top-rule").value);
      this.fetch();
    });
    onAddress(() => {
      $("top-rule").value = read("keys") ?? "";
      this.fetch();
    });
  }

  tick({ rules }) {
    this.offer(rules);
    if (!document.hidden && performance.now() - this.asked > EVERY) this.fetch();
  }

  /** Fills the list of rules to choose from. */
  offer(rules) {
    const names = rules.slice(0, 1000).map(({ rule }) => rule);
    const list = names.join("\n");
    if (list === this.offered) return;
    this.offered = list;
    const select = $("top-rule");
    const chosen = read("keys") ?? "";
    select.replaceChildren(el("option", { value: "" }, "all"), ...names.map((name) => el("option", { value: name }, name)));
    select.value = names.includes(chosen) ? chosen : "";
  }

  async fetch() {
    this.asked = performance.now();
    const call = (this.call = {});
    const period = document.querySelector("#period input:checked").value;
    try {
      const answer = await top(period, $("top-rule").value);
      if (call !== this.call) return;
      drawTop($("top-hottest"), answer.hottest, `No requests in the last ${period}.`, this.inspect);
      drawTop($("top-denied"), answer.denied, `No denials in the last ${period}.`, this.inspect);
    } catch {
      // The live feed reports an outage. The next attempt follows soon.
    }
  }
}

/** Draws a list of keys with their counts. A click calls `inspect(key)`. */
export function drawTop(list, keys, none, inspect) {
  list.classList.remove("skeleton");
  const most = Math.max(1, ...keys.map(({ count }) => count));
  if (!keys.length) return list.replaceChildren(el("li", { class: "none" }, none));
  list.querySelector(".none")?.remove();
  keys.slice(0, ROWS).forEach((entry, i) => {
    const item = list.children[i] ?? list.appendChild(topItem(inspect));
    attribute(item, "data-key", entry.key);
    const [button] = item.children;
    attribute(button, "title", `Inspect ${entry.key}`);
    button.style.setProperty("--share", `${((entry.count / most) * 100).toFixed(1)}%`);
    text(button.children[0], entry.key);
    text(button.children[1], count(entry.count));
  });
  while (list.children.length > Math.min(ROWS, keys.length)) list.lastChild.remove();
}

function topItem(inspect) {
  const item = el("li");
  item.append(el("button", { type: "button", onclick: () => inspect(item.dataset.key) }, el("span", { class: "key" }), el("span")));
  return item;
}
