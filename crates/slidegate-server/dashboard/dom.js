// Elements. Text goes in as text, never as markup: keys and rules are untrusted input.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

/** Sets the text of a node, and changes nothing if it has this text already. */
export function text(node, value) {
  const written = String(value);
  if (node.textContent !== written) node.textContent = written;
}

export function attribute(node, name, value) {
  const written = String(value);
  if (node.getAttribute(name) !== written) node.setAttribute(name, written);
}

/** Draws `share` of a bar. The bar is orange if it is full, or if `denies` says that requests are denied. */
export function meter(node, share, denies = false) {
  const bar = node.firstElementChild;
  const width = `${Math.round(Math.min(1, Math.max(0, share || 0)) * 1000) / 10}%`;
  if (bar.style.width !== width) bar.style.width = width;
  attribute(node, "data-full", denies || share >= 1);
}

/** Parts of a message of the server: the text between two backticks becomes a `code` element. */
export function marked(message) {
  const parts = String(message).split("`");
  return parts.length % 2 ? parts.map((part, n) => (n % 2 ? el("code", {}, part) : part)) : [String(message)];
}

/** Writes a message of the server, and changes nothing if the node has it already. */
export function write(node, message) {
  const parts = marked(message);
  const written = parts.map((part) => part.textContent ?? part).join("");
  if (node.textContent !== written) node.replaceChildren(...parts);
}

export function say(node, message, bad = false) {
  write(node, message);
  attribute(node, "data-bad", bad);
}

export const still = matchMedia("(prefers-reduced-motion: reduce)");
