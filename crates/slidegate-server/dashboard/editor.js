// The rule editor: the rules in force as text, checked by the server before they are put in their place.

import { $, attribute, el, marked, say, text } from "./dom.js";
import { checkRules, putRules, rulesYaml } from "./api.js";
import { because, howToOpen, mayChange, onAccess } from "./access.js";
import { many } from "./words.js";
import { confirm } from "./confirm.js";
import { diff, hunks } from "./diff.js";
import { problems } from "./problems.js";

const MESSAGES = 100;
const DIFF_LINES = 400;

export class Editor {
  constructor() {
    this.area = $("editor");
    /** The text in force, as it was last read. */
    this.base = null;
    this.area.addEventListener("input", () => this.edited());
    this.area.addEventListener("scroll", () => this.scrolled());
    $("editor-check").addEventListener("click", () => this.check());
    $("editor-preview").addEventListener("click", () => this.preview());
    $("editor-apply").addEventListener("click", () => this.apply());
    $("editor-revert").addEventListener("click", () => this.revert());
    addEventListener("beforeunload", (event) => this.dirty() && event.preventDefault());
    onAccess(() => this.buttons());
  }

  tick({ edition }) {
    const source = edition.source ? `, from ${edition.source}` : "";
    text($("editor-state"), this.dirty() ? "Edited, not applied." : `Edition ${edition.version}${source}.`);
    // What is being applied here is told by its own answer, and ticks may be older than that.
    if (edition.hash === this.hash || this.busy) return;
    const another = this.hash != null;
    this.hash = edition.hash;
    if (!this.dirty()) this.read();
    else if (another) this.refreshBase();
  }

  dirty() {
    return this.base != null && this.area.value !== this.base;
  }

  /** Shows what is in force in place of what was read before. What is typed meanwhile stays. */
  async read() {
    const before = this.area.value;
    let found;
    try {
      found = plain(await rulesYaml());
    } catch (error) {
      this.hash = null;
      return say($("editor-said"), because(error), true);
    }
    $("editor-frame").classList.remove("skeleton");
    this.base = found;
    if (this.area.value !== before || found === before) return this.buttons();
    this.area.value = found;
    this.area.setSelectionRange(0, 0);
    this.edited();
  }

  async revert() {
    await this.read();
    say($("editor-said"), this.dirty() ? "" : "These rules are in force.");
  }

  /** Others have put rules in force while these were being written. */
  async refreshBase() {
    try {
      this.base = plain(await rulesYaml());
    } catch {
      this.hash = null;
      return;
    }
    this.buttons();
    if (this.dirty()) say($("editor-said"), "The rules in force have changed since you began to edit: Preview shows the difference.", true);
  }

  edited() {
    const lines = this.area.value.split("\n").length;
    if (lines !== this.lines) {
      this.lines = lines;
      $("editor-numbers").textContent = `${Array.from({ length: lines }, (_, i) => i + 1).join("\n")}\n\n`;
    }
    this.mark([]);
    $("editor-diff").hidden = true;
    this.buttons();
    this.scrolled();
  }

  buttons() {
    const open = mayChange();
    this.area.readOnly = !open;
    const how = howToOpen();
    $("editor-closed").hidden = !how;
    text($("editor-closed"), how ? `Read only. ${how}` : "");
    for (const id of ["editor-check", "editor-preview"]) $(id).disabled = !open || this.busy;
    $("editor-apply").disabled = !open || this.busy || !this.dirty();
    $("editor-revert").disabled = this.busy || !this.dirty();
  }

  scrolled() {
    $("editor-numbers").scrollTop = this.area.scrollTop;
    for (const mark of $("editor-marks").children) mark.style.transform = `translateY(${-this.area.scrollTop}px)`;
  }

  /** Says each message beside its line, and in a list that leads there. */
  mark(found) {
    const rows = found.slice(0, MESSAGES);
    const height = parseFloat(getComputedStyle($("editor-frame")).lineHeight);
    const above = parseFloat(getComputedStyle(this.area).paddingTop);
    $("editor-marks").replaceChildren(...rows.filter(({ line }) => line).map(({ line, message }) => {
      const band = el("div", {}, el("span", {}, ...marked(message)));
      band.style.top = `${above + (line - 1) * height}px`;
      return band;
    }));
    $("editor-messages").replaceChildren(...rows.map(({ line, message }) =>
      el("li", { "data-line": line ?? "" }, el("button", { type: "button", onclick: () => this.go(line) }, el("b", {}, line ? `Line ${line}` : "Rules"), el("span", {}, ...marked(message))))));
    attribute(this.area, "aria-invalid", found.length > 0);
    this.scrolled();
  }

  go(line) {
    if (!line) return this.area.focus();
    const lines = this.area.value.split("\n");
    const from = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    this.area.focus();
    this.area.setSelectionRange(from, from + (lines[line - 1]?.length ?? 0));
    this.area.scrollTop = Math.max(0, (line - 6) * parseFloat(getComputedStyle($("editor-frame")).lineHeight));
  }

  /** What would change, or null with the mistakes shown. */
  async check() {
    this.work(true);
    say($("editor-said"), "Checking…");
    try {
      const found = await checkRules(this.area.value);
      this.mark([]);
      say($("editor-said"), `The rules are valid: ${summary(found)}.`);
      return found;
    } catch (error) {
      this.fail(error);
      return null;
    } finally {
      this.work(false);
    }
  }

  fail(error) {
    if (error.code !== "invalid_rules" && error.status !== 422) return say($("editor-said"), because(error), true);
    const found = problems(error.message);
    this.mark(found);
    say($("editor-said"), `${many(found.length, "mistake")}: nothing has changed.`, true);
  }

  async preview() {
    const found = await this.check();
    if (!found) return;
    const lines = hunks(diff(this.base, this.area.value));
    const changed = lines.some((line) => line && line[0] !== "same");
    const shown = lines.slice(0, DIFF_LINES).map((line) => {
      if (!line) return el("div", { class: "skipped" }, "⋯");
      const [kind, words] = line;
      return el("div", { class: kind }, `${{ added: "+", removed: "−", same: " " }[kind]} ${words}`);
    });
    if (lines.length > DIFF_LINES) shown.push(el("div", { class: "skipped" }, `and ${many(lines.length - DIFF_LINES, "line")} more`));
    const box = $("editor-diff");
    box.hidden = !changed;
    box.replaceChildren(...shown);
    if (changed) box.focus();
  }

  async apply() {
    const found = await this.check();
    if (!found) return;
    const lists = [["Added", found.added], ["Removed", found.removed], ["Altered", found.altered]].filter(([, names]) => names?.length);
    const lines = lists.map(([what, names]) => `${what}: ${names.slice(0, 20).join(", ")}${names.length > 20 ? ` and ${names.length - 20} more` : ""}`);
    lines.push("They take effect at once. Counts are kept where only a limit has changed.");
    if (!(await confirm("Apply these rules?", lines, "Apply"))) return say($("editor-said"), "Nothing has changed.");
    this.work(true);
    try {
      const { edition } = await putRules(this.area.value);
      this.base = this.area.value;
      // What the server shows may be written otherwise.
      if (edition) this.hash = edition.hash;
      await this.read();
      say($("editor-said"), edition ? `In force: edition ${edition.version}.` : "In force.");
    } catch (error) {
      this.fail(error);
    } finally {
      this.work(false);
    }
  }

  work(busy) {
    this.busy = busy;
    this.buttons();
  }
}

/** A text area has one kind of line end. */
const plain = (words) => words.replace(/\r\n?/g, "\n");

function summary({ changed, added = [], removed = [], altered = [] }) {
  if (changed === false) return "equal to the rules in force";
  const parts = [[added, "added"], [removed, "removed"], [altered, "altered"]].filter(([names]) => names.length).map(([names, what]) => `${names.length} ${what}`);
  return parts.length ? parts.join(", ") : "only the order or other settings change";
}
