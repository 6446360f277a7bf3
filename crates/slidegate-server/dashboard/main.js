// The dashboard. One feed comes in every second; each section takes from it what it shows.

import { $, attribute, text } from "./dom.js";
import { askForToken, because, probe, startAccess } from "./access.js";
import { brief, micros, share } from "./words.js";
import { Chart } from "./chart.js";
import { Editor } from "./editor.js";
import { History } from "./history.js";
import { Inspector } from "./inspector.js";
import { Live } from "./live.js";
import { RulesTable } from "./rules.js";
import { StoreHealth } from "./store.js";
import { TopKeys } from "./top.js";
import { TryIt } from "./try.js";
import { notice } from "./banner.js";
import { startShortcuts } from "./shortcuts.js";

const history = new History();
const chart = new Chart(history);
const inspector = new Inspector();
const inspect = (key) => inspector.open(key);
const sections = [new RulesTable(), new TopKeys(inspect), new StoreHealth(), new TryIt(inspect), new Editor()];

const live = new Live({
  history(told) {
    history.start(told);
    loaded();
    chart.draw();
  },
  tick(tick) {
    history.add(tick.at_ms, tick.allowed, tick.denied);
    loaded();
    chart.draw();
    figures(tick);
    edition(tick.edition);
    for (const section of sections) section.tick(tick);
  },
  state: feedState,
  unauthorized: () => askForToken("This server requires a token."),
});

startAccess(() => {
  probe();
  live.restart();
});
startShortcuts();
emptyState();
probe();
live.restart();

function loaded() {
  document.body.classList.remove("loading");
  $("chart").classList.remove("skeleton");
}

function figures(tick) {
  text($("allowed-rate"), brief(tick.allowed));
  text($("denied-rate"), brief(tick.denied));
  text($("shadow-rate"), `${brief(tick.would_deny)}/s`);
  text($("p50"), micros(tick.p50_us));
  text($("p99"), micros(tick.p99_us));
  let [allowed, denied] = [0, 0];
  for (const column of history.columns(60, 1)) {
    allowed += column.allowed || 0;
    denied += column.denied || 0;
  }
  text($("denied-share"), allowed + denied ? share(denied / (allowed + denied)) : "–");
  $("empty").hidden = history.any();
}

function edition({ version, hash, source, failure }) {
  text($("edition"), version ? `edition ${version} · ${source}` : "no rules yet");
  attribute($("edition"), "title", `Rules in force: ${hash}, from ${source}`);
  if (failure) notice("rules", "alert", `The rules from ${failure.source} have mistakes: edition ${version} stays in force.`, failure.message, ["Editor", () => $("edit").scrollIntoView()]);
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
    text(pill.lastElementChild, "needs a token");
    return notice("feed", "alert", "This server requires a token.", "", ["Enter a token", () => askForToken()]);
  }
  notice("feed", "alert", "The live feed is disconnected: the page shows old data. Reconnecting.", message ? because({ message }) : "", ["Try now", () => live.restart()]);
  // Counted down here and not in the notice, which is read out whenever it changes.
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
      // Pages that came without TLS may not write there: select it instead.
      getSelection().selectAllChildren($("curl"));
    }
  });
}
