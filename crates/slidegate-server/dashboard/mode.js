// Changes the mode of a rule to enforce or shadow. The text of the rules keeps its comments if that one word can be changed
// in it; the server confirms that nothing else differs. Otherwise the generated form of the rules is sent.

import { checkRules, putRules, rules, rulesText } from "./api.js";
import { because } from "./access.js";
import { confirm } from "./confirm.js";
import { notice } from "./banner.js";

const MEANING = {
  enforce: "The rule will deny requests over its limit.",
  shadow: "The rule will count and report, but deny nothing.",
};

export async function flip(name, mode) {
  if (!(await confirm(`Set ${name} to ${mode}?`, [MEANING[mode], "The change lasts until this node reads its rules again. If the nodes share rules in Redis, it applies to all of them."], `Set to ${mode}`))) return;
  try {
    const changed = withMode(await rulesText(), name, mode);
    if (changed && (await changesOnly(changed, name, mode))) await putRules(changed);
    else if (!(await putGenerated(name, mode))) return notice("mode", "alert", `The rule ${name} does not exist any more.`);
    notice("mode", null);
  } catch (error) {
    notice("mode", "alert", `The mode of ${name} has not changed.`, because(error));
  }
}

/** Returns true if the server finds no other difference. */
async function changesOnly(text, name, mode) {
  try {
    const { added, removed, altered, rules } = await checkRules(text);
    const found = rules.find((rule) => rule.name === name);
    return !added.length && !removed.length && altered.join() === name && found?.mode === mode;
  } catch {
    return false;
  }
}

async function putGenerated(name, mode) {
  const shown = await rules();
  const rule = shown.rules.find((rule) => rule.name === name);
  if (!rule) return false;
  rule.mode = mode;
  // An enforced rule is the shadow of no other rule.
  if (mode === "enforce") delete rule["shadow-of"];
  await putRules(JSON.stringify(shown), "application/json");
  return true;
}

/** Returns the YAML text with another mode for one rule; null if the rule is not written as one item of a list with its name
    first or on one line. */
export function withMode(text, name, mode) {
  const lines = text.split("\n");
  const word = name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const named = new RegExp(`(^|[\\s{,-])name:\\s*(["']?)${word}\\2\\s*(,|}|#|$)`);
  const at = lines.findIndex((line) => named.test(line));
  if (at < 0) return null;
  const line = lines[at];
  if (/^\s*-\s*\{.*\}\s*(#.*)?$/.test(line)) {
    let changed = mode === "enforce" ? line.replace(/,\s*shadow-of:\s*[^,}\s]+/, "") : line;
    changed = /[{,]\s*mode:\s*[\w-]+/.test(changed) ? changed.replace(/([{,]\s*mode:\s*)[\w-]+/, `$1${mode}`) : changed.replace(/\s*\}(\s*(?:#.*)?)$/, `, mode: ${mode} }$1`);
    lines[at] = changed;
    return lines.join("\n");
  }
  const [, indent, dash] = /^(\s*)(-\s+)name:/.exec(line) ?? [];
  if (indent === undefined) return null;
  const inner = indent.length + dash.length;
  let end = at + 1;
  while (end < lines.length && (!lines[end].trim() || /^\s*#/.test(lines[end]) || /^ */.exec(lines[end])[0].length >= inner)) end++;
  const field = (name) => lines.findIndex((line, i) => i > at && i < end && line.startsWith(`${" ".repeat(inner)}${name}:`));
  const old = field("mode");
  if (old >= 0) lines[old] = lines[old].replace(/(mode:\s*)[\w-]+/, `$1${mode}`);
  else lines.splice(at + 1, 0, `${" ".repeat(inner)}mode: ${mode}`);
  if (mode === "enforce") {
    const shadowOf = field("shadow-of");
    if (shadowOf >= 0) lines.splice(shadowOf, 1);
  }
  return lines.join("\n");
}
