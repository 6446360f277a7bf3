// Which keys are asked for most, and which are denied most.

import { $, attribute, el, text } from "./dom.js";
import { top } from "./api.js";
import { count } from "./words.js";

const EVERY = 3000;
const ROWS = 20;

export class TopKeys {
  /** `inspect(key)` opens one. */
  constructor(inspect) {
    this.inspect = inspect;
    this.period = "minute";
    this.asked = -Infinity;
    for (const input of document.querySelectorAll("#period input")) {
      input.addEventListener("change", () => {
        this.period = input.value;
        this.fetch();
      });
    }
    $("top-rule").addEventListener("change", () => this.fetch());
  }

  tick({ rules }) {
    this.offer(rules);
    if (!document.hidden && performance.now() - this.asked > EVERY) this.fetch();
  }

  /** The rules to choose from. */
  offer(rules) {
    const names = rules.slice(0, 1000).map(({ rule }) => rule);
    const list = names.join("\n");
    if (list === this.offered) return;
    this.offered = list;
    const select = $("top-rule");
    const chosen = select.value;
    select.replaceChildren(el("option", { value: "" }, "all"), ...names.map((name) => el("option", { value: name }, name)));
    select.value = names.includes(chosen) ? chosen : "";
  }

  async fetch() {
    this.asked = performance.now();
    const call = (this.call = {});
    const { period } = this;
    try {
      const answer = await top(period, $("top-rule").value);
      if (call !== this.call) return;
      this.draw($("top-hottest"), answer.hottest, `No requests in the last ${period}.`);
      this.draw($("top-denied"), answer.denied, `No denials in the last ${period}.`);
    } catch {
      // The feed says when the server is away; the next try is not far.
    }
  }

  draw(list, keys, none) {
    list.classList.remove("skeleton");
    const most = Math.max(1, ...keys.map(({ count }) => count));
    if (!keys.length) return list.replaceChildren(el("li", { class: "none" }, none));
    list.querySelector(".none")?.remove();
    keys.slice(0, ROWS).forEach((entry, i) => {
      const item = list.children[i] ?? list.appendChild(this.item());
      attribute(item, "data-key", entry.key);
      const [button] = item.children;
      attribute(button, "title", entry.key);
      button.style.setProperty("--share", `${((entry.count / most) * 100).toFixed(1)}%`);
      text(button.children[0], entry.key);
      text(button.children[1], count(entry.count));
    });
    while (list.children.length > Math.min(ROWS, keys.length)) list.lastChild.remove();
  }

  item() {
    const item = el("li");
    item.append(el("button", { type: "button", onclick: () => this.inspect(item.dataset.key) }, el("span", { class: "key" }), el("span")));
    return item;
  }
}
