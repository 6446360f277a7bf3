// Single-key shortcuts. They can be turned off, because software for speech input can press them by accident.

import { $, el } from "./dom.js";
import { go } from "./address.js";

const KEPT = "slidegate-shortcuts";

const KEYS = [
  ["?", "show this list", () => $("help-dialog").showModal()],
  ["l", "go to live", () => go("live")],
  ["r", "go to rules", () => go("rules")],
  ["/", "filter the rules", () => $("rules-filter").focus()],
  ["k", "go to keys", () => go("keys")],
  ["i", "inspect a key", () => $("inspector-key").focus()],
  ["a", "try it", () => $("try-acquire").focus()],
  ["s", "go to store", () => go("store")],
  ["e", "edit rules", () => $("editor").focus()],
  ["t", "enter a token", () => $("token-open").click()],
  ["d", "switch between dark and light", () => $("theme-toggle").click()],
];

const FIXED = [["← →", "in the chart: move through time"], ["+ −", "in the chart: zoom in and out"], ["Esc", "close a dialog; in the chart: zoom out"]];

export function startShortcuts() {
  const on = $("shortcuts-on");
  try {
    on.checked = localStorage.getItem(KEPT) !== "off";
  } catch {
    // Without storage, shortcuts are on.
  }
  on.addEventListener("change", () => {
    try {
      localStorage.setItem(KEPT, on.checked ? "on" : "off");
    } catch {
      // Without storage, the choice lasts as long as the page.
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
