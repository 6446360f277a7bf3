// The rule editor. It shows the rules in force as their author wrote them. The server checks new rules before they are
// applied.

import { $, attribute, el, marked, say, text, write } from "./dom.js";
import { checkRules, putRules, rulesText } from "./api.js";
import { because, howToChange, mayChange, onAccess } from "./access.js";
import { highlight } from "./highlight.js";
import { many } from "./words.js";
import { confirm } from "./confirm.js";
import { diff, hunks } from "./diff.js";
import { problems } from "./problems.js";

const MESSAGES = 100;
const DIFF_LINES = 400;
/** A longer line has no colours. */
const COLOURED = 2000;

export class Editor {
  constructor() {
    this.area = $("editor");
    /** The text of the rules in force. */
    this.base = null;
    this.lines = [];
    this.area.addEventListener("input", () => this.edited());
    this.area.addEventListener("scroll", () => this.scrolled());
    $("editor-check").addEventListener("click", () => this.check());
    $("editor-preview").addEventListener("click", () => this.preview());
    $("editor-apply").addEventListener("click", () => this.apply());
    $("editor-revert").addEventListener("click", () => this.revert());
    addEventListener("beforeunload", (event) => this.dirty() && event.preventDefault());
    new ResizeObserver(() => this.colour()).observe(this.area);
    let mayRead = mayChange();
    onAccess(() => {
      this.buttons();
      // Only users who may change the rules see their comments.
      if (mayRead !== mayChange() && this.base != null && !this.dirty()) this.read();
      mayRead = mayChange();
    });
  }

  tick({ edition }) {
    const source = edition.source ? `, from ${edition.source}` : "";
    text($("editor-state"), this.dirty() ? "Changed, not applied." : `Edition ${edition.version}${source}.`);
    // While this page applies rules, the response says which edition is in force. A tick may be older.
    if (edition.hash === this.hash || this.busy) return;
    const another = this.hash != null;
    this.hash = edition.hash;
    if (!this.dirty()) this.read();
    else if (another) this.refreshBase();
  }

  dirty() {
    return this.base != null && this.area.value !== this.base;
  }

  /** Shows the rules in force. Text that the user types meanwhile stays. */
  async read() {
    const before = this.area.value;
    let found;
    try {
      found = plain(await rulesText());
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
    say($("editor-said"), this.dirty() ? "" : "These are the rules in force.");
  }

  /** Reads rules that another user applied while this user was typing. */
  async refreshBase() {
    try {
      this.base = plain(await rulesText());
    } catch {
      this.hash = null;
      return;
    }
    this.buttons();
    if (this.dirty()) say($("editor-said"), "The rules in force have changed since you began. Preview shows the difference.", true);
  }

  edited() {
    const before = this.lines.length;
    this.lines = this.area.value.split("\n");
    if (this.lines.length !== before) $("editor-numbers").textContent = `${this.lines.map((_, i) => i + 1).join("\n")}\n\n`;
    this.mark([]);
    $("editor-diff").hidden = true;
    this.buttons();
    this.scrolled();
  }

  buttons() {
    const open = mayChange();
    this.area.readOnly = !open;
    const how = howToChange();
    $("editor-closed").hidden = !how;
    write($("editor-closed"), how ? `Read only. ${how}` : "");
    for (const id of ["editor-check", "editor-preview"]) $(id).disabled = !open || this.busy;
    $("editor-apply").disabled = !open || this.busy || !this.dirty();
    $("editor-revert").disabled = this.busy || !this.dirty();
  }

  scrolled() {
    $("editor-numbers").scrollTop = this.area.scrollTop;
    for (const mark of $("editor-marks").children) mark.style.transform = `translateY(${-this.area.scrollTop}px)`;
    this.colour();
  }

  rowHeight() {
    return parseFloat(getComputedStyle($("editor-frame")).lineHeight);
  }

  paddingTop() {
    return parseFloat(getComputedStyle(this.area).paddingTop);
  }

  /** Draws the visible lines in colour, under the text area, whose own text is transparent. */
  colour() {
    const [height, { scrollTop, scrollLeft, clientHeight }] = [this.rowHeight(), this.area];
    const first = Math.max(0, Math.floor((scrollTop - this.paddingTop()) / height));
    const lines = this.lines.slice(first, first + Math.ceil(clientHeight / height) + 2);
    const colours = $("editor-colors");
    colours.replaceChildren(...lines.flatMap((line) => [...(line.length > COLOURED ? [line] : highlight(line)), "\n"]));
    colours.style.transform = `translate(${-scrollLeft}px, ${this.paddingTop() + first * height - scrollTop}px)`;
  }

  /** Shows each message beside its line, and in a list of links to the lines. */
  mark(found) {
    const rows = found.slice(0, MESSAGES);
    const [height, above] = [this.rowHeight(), this.paddingTop()];
    const lines = [...new Set(rows.map(({ line }) => line).filter(Boolean))];
    $("editor-marks").replaceChildren(...lines.map((line) => {
      const messages = rows.filter((row) => row.line === line).map(({ message }) => message);
      const band = el("div", {}, el("span", {}, ...marked(messages.join("; "))));
      band.style.top = `${above + (line - 1) * height}px`;
      // The message begins to the right of the text of its line.
      band.style.paddingLeft = `calc(${this.lines[line - 1]?.length ?? 0}ch + 1.6rem)`;
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
    this.area.scrollTop = Math.max(0, (line - 6) * this.rowHeight());
  }

  /** Returns the changes that the rules would make. If they have mistakes, shows those and returns null. */
  async check() {
    this.work(true);
    say($("editor-said"), "Checking…");
    try {
      const found = await checkRules(this.area.value);
      this.mark([]);
      say($("editor-said"), `No mistakes: ${summary(found)}.`);
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
    say($("editor-said"), `${many(found.length, "mistake")}. Nothing has changed.`, true);
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
    const lists = [["Added", found.added], ["Removed", found.removed], ["Changed", found.altered]].filter(([, names]) => names?.length);
    const lines = lists.map(([what, names]) => `${what}: ${names.slice(0, 20).join(", ")}${names.length > 20 ? ` and ${names.length - 20} more` : ""}`);
    lines.push("The new rules apply immediately. A rule keeps its counts if only its limit changes.");
    if (!(await confirm("Apply these rules?", lines, "Apply"))) return say($("editor-said"), "Nothing has changed.");
    this.work(true);
    try {
      const { edition } = await putRules(this.area.value);
      this.base = this.area.value;
      if (edition) this.hash = edition.hash;
      say($("editor-said"), edition ? `Applied: edition ${edition.version}.` : "Applied.");
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

/** A text area has only one kind of line end. */
const plain = (words) => words.replace(/\r\n?/g, "\n");

function summary({ changed, added = [], removed = [], altered = [] }) {
  if (changed === false) return "the same rules as those in force";
  const parts = [[added, "added"], [removed, "removed"], [altered, "changed"]].filter(([names]) => names.length).map(([names, what]) => `${names.length} ${what}`);
  return parts.length ? parts.join(", ") : "only the order of the rules or the settings beside them change";
}
