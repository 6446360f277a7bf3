// Colours for YAML, one line at a time.

import { el } from "./dom.js";

/** Parts of a line: comment, quoted text, key (a word before a colon), number or length of time, word, sign. */
const PART = /(?<comment>(?<=^|\s)#.*$)|(?<key>"(?:[^"\\]|\\.)*"(?=\s*:(?:\s|$))|[\w./-]+(?=\s*:(?:\s|$)))|(?<text>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*')|(?<number>(?<![\w./-])-?\d[\d_.]*(?:%|ns|us|µs|ms|s|m|h|d|w)?(?![\w./-])|(?<![\w./-])(?:true|false|null)(?![\w./-]))|(?<sign>[[\]{},:]|(?<=^\s*)-(?=\s|$))/g;

/** Returns the line as nodes and texts. */
export function highlight(line) {
  const nodes = [];
  let from = 0;
  for (const match of line.matchAll(PART)) {
    if (match.index > from) nodes.push(line.slice(from, match.index));
    const [kind] = Object.entries(match.groups).find(([, part]) => part !== undefined);
    nodes.push(el("span", { class: `y-${kind}` }, match[0]));
    from = match.index + match[0].length;
  }
  if (from < line.length) nodes.push(line.slice(from));
  return nodes;
}
