// Puts a rule from enforce to shadow or back: what `GET /v1/rules` shows is put back with one word changed.

import { putRules, rules } from "./api.js";
import { because } from "./access.js";
import { confirm } from "./confirm.js";
import { notice } from "./banner.js";

const MEANS = {
  enforce: "It will deny what is over its limit.",
  shadow: "It will count and report, and deny nothing.",
};

export async function flip(name, mode) {
  if (!(await confirm(`Put ${name} to ${mode}?`, [MEANS[mode], "On this node, until its rules are read again; on every node, if they share rules in Redis."], `Put to ${mode}`))) return;
  try {
    const shown = await rules();
    const rule = shown.rules.find((rule) => rule.name === name);
    if (!rule) return notice("mode", "alert", `There is no rule ${name} any more.`);
    rule.mode = mode;
    // What is enforced is nobody's shadow any more.
    if (mode === "enforce") delete rule["shadow-of"];
    await putRules(JSON.stringify(shown), "application/json");
    notice("mode", null);
  } catch (error) {
    notice("mode", "alert", `${name} is as it was.`, because(error));
  }
}
