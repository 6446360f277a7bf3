// Notices at the top of the page, one for each reason.

import { $, el, text, write } from "./dom.js";

const shown = new Map();

/** Shows or changes the notice for `reason`, or removes it if `level` is null. `action` is `[label, call]`. */
export function notice(reason, level, title = "", detail = "", action = null) {
  let node = shown.get(reason);
  if (level == null) {
    node?.remove();
    shown.delete(reason);
    return;
  }
  if (!node) {
    node = el("div", { class: "notice", "data-reason": reason }, el("div", {}, el("b"), el("p")));
    node.append(action ? el("button", { type: "button", onclick: action[1] }, action[0])
      : el("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: () => notice(reason, null) }, "✕"));
    shown.set(reason, node);
    $("banner").append(node);
  }
  node.dataset.level = level;
  const [heading, words] = node.firstChild.children;
  text(heading, title);
  write(words, detail);
  words.hidden = !detail;
}
