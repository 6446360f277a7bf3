// The dashboard. The live feed sends an event each second, and each section shows its part of it.

import { $, attribute, text } from "./dom.js";
import { askForToken, because, mayCall, refreshAccess, rightsKnown, startAccess } from "./access.js";
import { hasToken } from "./api.js";
import { bind, go, onAddress, read, startAddress, write } from "./address.js";
import { bound, brief, clock, share } from "./words.js";
import { Chart } from "./chart.js";
import { Editor } from "./editor.js";
import { Fleet } from "./fleet.js";
import { History } from "./history.js";
import { Inspector } from "./inspector.js";
import { Live } from "./live.js";
import { RulePanel } from "./rule.js";
import { RulesTable } from "./rules.js";
import { StoreHealth } from "./store.js";
import { TopKeys } from "./top.js";
import { TryIt } from "./try.js";
import { notice } from "./banner.js";
import { startLayout } from "./layout.js";
import { startShortcuts } from "./shortcuts.js";

document.title = `${location.host} – Slidegate`;

const history = new History();
/** Sums of all nodes, from the time at which the page first showed them. */
const fleetHistory = new History();
const ranges = document.querySelectorAll("#range input");
const chart = new Chart($("chart"), $("readout"), history, { zoomed: (from, until) => zoomed(from, until) });
bind("range", ranges, () => chart.setRange(Number(document.querySelector("#range input:checked")?.value ?? 900)));
startZoom();

const inspector = new Inspector();
const inspect = (key) => inspector.open(key);
const panel = new RulePanel(inspect);
const rulesTable = new RulesTable((name) => panel.open(name));
const sections = [panel, new TopKeys(inspect), new StoreHealth(), new TryIt(inspect), new Editor()];

const fleet = new Fleet((on, at) => {
  if (fleetHistory.last == null) fleetHistory.start({ until_ms: at, allowed: [], denied: [] });
  chart.history = on ? fleetHistory : history;
  chart.draw();
  text($("p50-name"), on ? "Slowest median" : "Median time");
  text($("p99-name"), on ? "Slowest 99 %" : "99 % of times");
});

const live = new Live({
  history(sent) {
    history.start(sent);
    rulesTable.start(sent.rules ?? []);
    loaded();
    chart.draw();
  },
  tick(tick) {
    // The server answers again after an outage.
    if (!rightsKnown()) refreshAccess();
    history.add(tick.at_ms, tick.allowed, tick.denied);
    loaded();
    edition(tick.edition);
    for (const section of sections) section.tick(tick);
    fleet.tick(tick, (sums) => show(tick, sums));
  },
  state: feedState,
  unauthorized: connect,
});

startAccess(connect);
startAddress();
startLayout();
startShortcuts();
emptyState();
connect();

/** Opens the live feed if the token allows it. The page asks for the rights first: a call without a token would be an error in
    the console. */
async function connect() {
  await refreshAccess();
  if (mayCall() || !rightsKnown()) return live.restart();
  feedState("unauthorized", {});
  askForToken(hasToken() ? "The server does not accept the token of this tab." : "This server needs a token.");
}

function startZoom() {
  const take = () => {
    const [, from, until] = /^(\d{1,11})-(\d{1,11})$/.exec(read("zoom") ?? "") ?? [];
    chart.setRange(Number(document.querySelector("#range input:checked")?.value ?? 900));
    if (from && Number(until) > Number(from)) chart.show([Number(from), Number(until)]);
    showZoom();
  };
  for (const input of ranges) input.addEventListener("change", () => zoomed());
  $("zoom-out").addEventListener("click", () => chart.zoomTo(null));
  onAddress(take);
  take();
}

function zoomed(from, until) {
  write("zoom", from == null ? "" : `${from}-${until}`);
  showZoom();
}

function showZoom() {
  $("zoom-out").hidden = !chart.zoom;
  if (chart.zoom) text($("zoom-out"), `${clock(chart.zoom[0] * 1000)} to ${clock(chart.zoom[1] * 1000)}: zoom out`);
}

function loaded() {
  document.body.classList.remove("loading");
  $("chart").classList.remove("skeleton");
}

/** Shows the second of this node, or the sums of all nodes if there are any. */
function show(tick, sums) {
  if (sums) fleetHistory.add(tick.at_ms, sums.allowed, sums.denied);
  chart.draw();
  figures(sums ?? tick, sums ? { allowed: sums.allowed_minute, denied: sums.denied_minute } : lastMinute());
  rulesTable.tick(tick, sums);
}

function figures(tick, { allowed, denied }) {
  text($("allowed-rate"), brief(tick.allowed));
  text($("denied-rate"), brief(tick.denied));
  text($("shadow-rate"), `${brief(tick.would_deny)}/s`);
  text($("p50"), bound(tick.p50_us));
  text($("p99"), bound(tick.p99_us));
  text($("denied-share"), allowed + denied ? share(denied / (allowed + denied)) : "–");
  $("empty").hidden = fleet.on || history.any();
}

/** Requests of this node in the last minute. */
function lastMinute() {
  let [allowed, denied] = [0, 0];
  for (const column of history.columns(history.last - 59, history.last, 1)) {
    allowed += column.allowed || 0;
    denied += column.denied || 0;
  }
  return { allowed, denied };
}

function edition({ version, hash, source, failure }) {
  text($("edition"), version ? `edition ${version} · ${source}` : "no rules yet");
  attribute($("edition"), "title", `Rules in force: edition ${version}, hash ${hash}, from ${source}`);
  if (failure) notice("rules", "alert", `The new rules from ${failure.source} have mistakes. Edition ${version} stays in force.`, failure.message, ["Editor", () => go("edit")]);
  else notice("rules", null);
}

function feedState(state, { message, until }) {
  const pill = $("live-state");
  attribute(pill, "data-state", state === "ok" ? "ok" : "lost");
  clearInterval(feedState.timer);
  if (state === "ok") {
    text(pill.lastElementChild, "live");
    return notice("feed", null);
  }
  if (state === "unauthorized") {
    text(pill.lastElementChild, "token needed");
    return notice("feed", "alert", "This server needs a token.", "", ["Enter a token", () => askForToken()]);
  }
  notice("feed", "alert", "The live feed is lost. This page shows old values until it is back.", message ? because({ message }) : "", ["Retry now", () => live.restart()]);
  // The countdown is not in the notice: screen readers read a notice again whenever it changes.
  const count = () => text(pill.lastElementChild, `retry in ${Math.max(0, Math.ceil((until - Date.now()) / 1000))} s`);
  count();
  feedState.timer = setInterval(count, 250);
}

function emptyState() {
  const address = new URL("../v1/acquire", import.meta.url);
  const curl = `curl -s ${address} -H 'content-type: application/json' -d '{"attributes":{"api":"/login","ip":"1.2.3.4","user":"alice"}}'`;
  text($("curl"), curl);
  $("curl-copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(curl);
      text($("curl-copy"), "Copied");
    } catch {
      // Browsers do not give a page without TLS access to the clipboard.
      getSelection().selectAllChildren($("curl"));
    }
  });
}
