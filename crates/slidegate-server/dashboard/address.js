// State of the page in its URL, after the #: range, filters, the open rule and the open key. A link keeps them. Browsers
// do not send that part of a URL to a server.

import { $ } from "./dom.js";

const listeners = new Set();
let state = parse();

/** A hash without `=`, such as `#rules`, is a section of the page and no state. */
function parse() {
  return new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
}

export const read = (name) => state.get(name);

/** Sets a value. An empty one, or `standard`, is removed from the URL. */
export function write(name, value, standard = "") {
  const words = value == null ? "" : String(value);
  if (words === "" || words === standard) state.delete(name);
  else state.set(name, words);
  const hash = state.toString();
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
}

/** Calls `listener` when the user opens a link to another state of this page. */
export function onAddress(listener) {
  listeners.add(listener);
}

/** Keeps the value of a field or of a group of radio buttons in the URL, and calls `changed` after each change. */
export function bind(name, fields, changed) {
  const standard = value(fields);
  const take = () => put(fields, read(name) ?? standard);
  take();
  for (const field of fields) {
    field.addEventListener(field.type === "search" ? "input" : "change", () => {
      write(name, value(fields), standard);
      changed();
    });
  }
  onAddress(() => {
    take();
    changed();
  });
}

const value = (fields) => (fields[0].type === "radio" ? [...fields].find((field) => field.checked)?.value ?? "" : fields[0].value);

/** Sets the value. A value that is no choice is ignored. */
function put(fields, wanted) {
  if (fields[0].type !== "radio") fields[0].value = wanted;
  else for (const field of fields) if (field.value === wanted) field.checked = true;
}

/** Shows a section and moves the focus there. */
export function go(id) {
  $(id).scrollIntoView();
  $(id).focus({ preventScroll: true });
}

/** Makes links to sections keep the state in the URL. */
export function startAddress() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#"]');
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(link.getAttribute("href").slice(1));
  });
  addEventListener("hashchange", () => {
    if (!location.hash.includes("=")) return;
    state = parse();
    for (const listener of listeners) listener();
  });
}
