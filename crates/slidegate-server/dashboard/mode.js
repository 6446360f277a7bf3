// Puts a rule from enforce to shadow or back: what `GET /v1/rules` shows is put back with one word changed.

import { putRules, rules } from "./api.js";
import { because } from "./access.js";
import { confirm } from "./confirm.js";
import { notice } from "./banner.js";

const MEANS = {
  enforce: "It will deny requests over its limit.",
  shadow: "It will count and report, but deny nothing.",
};

export async function flip(name, mode) {
  if (!(await confirm(`Set ${name} to ${mode}?`, [MEANS[mode], "Applies to this node until its rules are reloaded, or to every node if the rules are shared in Redis."], `Set to ${mode}`))) return;
  try {
    const shown = await rules();
    const rule = shown.rules.find((rule) => rule.name === name);
    if (!rule) return notice("mode", "alert", `Rule ${name} no longer exists.`);
    rule.mode = mode;
    // What is enforced is nobody's shadow any more.
    if (mode === "enforce") delete rule["shadow-of"];
    await putRules(JSON.stringify(shown), "application/json");
    notice("mode", null);
  } catch (error) {
    notice("mode", "alert", `${name} is unchanged.`, because(error));
  }
}
