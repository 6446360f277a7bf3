// Who may change things here, and the dialog for a token.

import { $, attribute, say, text } from "./dom.js";
import { ApiError, checkRules, hasToken, setToken } from "./api.js";

/** `unknown`, `yes`, `token` (an admin token would do), or the code that says why nobody may. */
let changes = "unknown";
/** The server's message, if it answered 403. */
let why = "";
const listeners = new Set();

export const mayChange = () => changes === "yes";

export function onAccess(listener) {
  listeners.add(listener);
  listener();
}

const tell = () => listeners.forEach((listener) => listener());

/** One sentence: how to open changes. Empty if they are. */
export function howToOpen() {
  switch (changes) {
    case "yes":
    case "unknown":
      return "";
    case "token":
      return hasToken()
        ? "This token does not allow changes. Enter an admin token (Token, above)."
        : "Changes need an admin token (Token, above).";
    case "cross_origin":
      return "Changes from a web page need an admin token. Start the server with SLIDEGATE_ADMIN_TOKEN, and enter that token here.";
    case "forbidden":
      return sentence(why);
    default:
      return "Cannot tell if changes are allowed: the server did not answer.";
  }
}

/** Why a call that needs a token or another listener did not get through; other failures in the server's words. */
export function because(error) {
  if (error.status === 401) return hasToken() ? "This token does not allow this. Enter another one (Token, above)." : "A token is required (Token, above).";
  return sentence(error.message);
}

const sentence = (words) => (words ? words[0].toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".") : "");

/** Asks with rules that cannot be right, so that nothing can change: who may is told what is wrong with them. */
export async function probe() {
  try {
    await checkRules("{");
    changes = "yes";
  } catch (error) {
    if (!(error instanceof ApiError) || !error.status || error.status >= 500) changes = "unreachable";
    else if (error.status === 401) changes = "token";
    else if (error.status === 403) [changes, why] = [error.code, error.message];
    else changes = "yes";
  }
  tell();
}

export function askForToken(why) {
  const dialog = $("token-dialog");
  text($("token-why"), `${why ? `${why} ` : ""}Stored in this tab until it is closed, and sent only to this server.`);
  say($("token-said"), "");
  $("token-forget").disabled = !hasToken();
  if (dialog.open) return;
  $("token-input").value = "";
  dialog.showModal();
  $("token-input").focus();
}

/** `changed` is called when another token is in use. */
export function startAccess(changed) {
  const use = (token) => {
    setToken(token);
    $("token-dialog").close();
    held();
    changed();
  };
  $("token-open").addEventListener("click", () => askForToken());
  $("token-cancel").addEventListener("click", () => $("token-dialog").close());
  $("token-forget").addEventListener("click", () => use(null));
  $("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const token = $("token-input").value.trim();
    // What a header cannot carry is no token.
    if (!/^[\x21-\x7e]+$/.test(token)) return say($("token-said"), "A token may have letters, digits and signs, but no spaces.", true);
    use(token);
  });
  held();
}

function held() {
  attribute($("token-open"), "data-held", hasToken());
  text($("token-open"), hasToken() ? "Token set" : "Token");
}
