// A question before a change that cannot be undone.

import { $, text } from "./dom.js";

/** Resolves to true if the user confirms. `lines` are texts or elements. */
export function confirm(title, lines, yes) {
  const dialog = $("confirm-dialog");
  text($("confirm-title"), title);
  text($("confirm-yes"), yes);
  $("confirm-text").replaceChildren(...lines.map((line) => {
    if (line instanceof Node) return line;
    const paragraph = document.createElement("p");
    paragraph.textContent = line;
    return paragraph;
  }));
  dialog.returnValue = "";
  dialog.showModal();
  $("confirm-no").focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
