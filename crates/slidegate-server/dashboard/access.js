// Rights of this page on its server, and the dialog for a token.

import { $, attribute, say, text } from "./dom.js";
import { access, currentToken, hasToken, setToken } from "./api.js";
import { notice } from "./banner.js";

/** Answer of `GET /v1/access`; null until the server has answered. */
let rights = null;
const listeners = new Set();

export const mayCall = () => rights?.may_call === true;
export const mayChange = () => rights?.may_change === true;
export const rightsKnown = () => rights != null;

/** Calls `listener` now, and whenever the rights change. */
export function onAccess(listener) {
  listeners.add(listener);
  listener();
}

/** Says how to get the right to change rules and counts. Empty if this page has it, or if the rights are not known. */
export function howToChange() {
  if (!rights || rights.may_change) return "";
  const { code, message } = rights.change_error ?? {};
  if (code !== "unauthorized") return sentence(message);
  return rights.token === "client"
    ? "This token cannot change anything. Enter an admin token (button Token, at the top)."
    : "To change rules or counts, enter an admin token (button Token, at the top).";
}

/** Says why a call failed. */
export function because(error) {
  if (error.status === 401) return hasToken() ? "This token does not allow that. Enter another token (button Token, at the top)." : "This needs a token (button Token, at the top).";
  return sentence(error.message);
}

const sentence = (words) => (words ? words[0].toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".") : "");

/** Asks the server for the rights of the stored token. They stay unknown if the server does not answer. */
export async function refreshAccess() {
  try {
    use(await access(currentToken()));
  } catch {
    use(null);
  }
}

function use(answer) {
  rights = answer;
  const wrong = rights?.token === "wrong";
  const words = { client: "Client token", admin: "Admin token", wrong: "Wrong token" };
  text($("token-open"), hasToken() ? words[rights?.token] ?? "Token" : "Token");
  attribute($("token-open"), "data-held", hasToken() && !wrong);
  attribute($("token-open"), "data-bad", hasToken() && wrong);
  // If the page may not call the API, the notice of the live feed explains it.
  if (wrong && hasToken() && rights.may_call) notice("token", "alert", "The server does not accept the token of this tab.", "Enter another token, or remove it.", ["Token", () => askForToken()]);
  else notice("token", null);
  for (const listener of listeners) listener();
}

export function askForToken(why) {
  const dialog = $("token-dialog");
  text($("token-why"), `${why ? `${why} ` : ""}The token stays in this tab until you close it. It is sent to this server only.`);
  say($("token-said"), "");
  $("token-forget").disabled = !hasToken();
  if (dialog.open) return;
  $("token-input").value = "";
  dialog.showModal();
  $("token-input").focus();
}

/** Starts the token dialog. `changed` is called when another token is in use. */
export function startAccess(changed) {
  const done = (token, answer) => {
    setToken(token);
    $("token-dialog").close();
    if (answer) use(answer);
    changed();
  };
  $("token-open").addEventListener("click", () => askForToken());
  $("token-cancel").addEventListener("click", () => $("token-dialog").close());
  $("token-forget").addEventListener("click", () => done(null));
  $("token-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const token = $("token-input").value.trim();
    // A header cannot carry other characters.
    if (!/^[\x21-\x7e]+$/.test(token)) return say($("token-said"), "A token has only ASCII letters, digits and signs, and no spaces.", true);
    const answer = await check(token);
    if (answer) done(token, answer);
  });
}

/** Returns the rights of `token`. If the server does not accept it, says so in the dialog and returns null. */
async function check(token) {
  $("token-save").disabled = true;
  say($("token-said"), "Checking…");
  try {
    const answer = await access(token);
    if (answer.token !== "wrong") return answer;
    say($("token-said"), "The server does not accept this token.", true);
  } catch (error) {
    say($("token-said"), sentence(error.message), true);
  } finally {
    $("token-save").disabled = false;
  }
  return null;
}
