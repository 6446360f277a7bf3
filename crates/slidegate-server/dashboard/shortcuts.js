// Single keys, for those who like them. They can be turned off: a voice that is written down must not press them.

import { $, el } from "./dom.js";

const KEPT = "slidegate-shortcuts";

const KEYS = [
  ["?", "this list", () => $("help-dialog").showModal()],
  ["l", "live", () => go("live")],
  ["r", "rules", () => go("rules")],
  ["/", "filter the rules", () => $("rules-filter").focus()],
  ["k", "keys", () => go("keys")],
  ["i", "inspect a key", () => $("inspector-key").focus()],
  ["a", "try it: acquire", () => $("try-acquire").focus()],
  ["s", "store", () => go("store")],
  ["e", "rule editor", () => $("editor").focus()],
  ["t", "token", () => $("token-open").click()],
  ["d", "dark or light", () => $("theme-toggle").click()],
];

const FIXED = [["← →", "in the chart: move through time"], ["Esc", "close the dialog"]];

function go(id) {
  $(id).scrollIntoView();
  $(id).focus({ preventScroll: true });
}

export function startShortcuts() {
  const on = $("shortcuts-on");
  try {
    on.checked = localStorage.getItem(KEPT) !== "off";
  } catch {
    // Without storage they are on.
  }
  on.addEventListener("change", () => {
    try {
      localStorage.setItem(KEPT, on.checked ? "on" : "off");
    } catch {
      // As above.
    }
  });
  $("help-keys").append(...[...KEYS, ...FIXED].flatMap(([key, words]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, words)]));
  $("help-open").addEventListener("click", () => $("help-dialog").showModal());
  document.addEventListener("keydown", (event) => {
    if (!on.checked || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.isComposing) return;
    if (event.target.closest("input:not([type=radio], [type=checkbox]), textarea, select, dialog[open]")) return;
    const found = KEYS.find(([key]) => key === event.key);
    if (!found) return;
    event.preventDefault();
    found[2]();
  });
}
