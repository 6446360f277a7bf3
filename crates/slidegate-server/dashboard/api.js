// Calls to the server of this page. URLs are relative to the URL of this file, so that a proxy can serve the page under
// a path.

const BASE = new URL("../", import.meta.url);
const KEPT = "slidegate-token";

let token = null;
try {
  token = sessionStorage.getItem(KEPT);
} catch {
  // Without storage the token lasts as long as the page.
}

/** Failed call: `code` for programs, `message` for people. The status is 0 if no server answered. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const hasToken = () => token != null;
export const currentToken = () => token;

export function setToken(value) {
  token = value || null;
  try {
    if (token) sessionStorage.setItem(KEPT, token);
    else sessionStorage.removeItem(KEPT);
  } catch {
    // Without storage the token lasts as long as the page.
  }
}

/** Returns the response as soon as its head has arrived. `as` is a token to send instead of the stored one. */
export async function open(path, { method = "GET", body, type, signal, as = token } = {}) {
  const headers = new Headers();
  if (as) headers.set("authorization", `Bearer ${as}`);
  if (type) headers.set("content-type", type);
  try {
    return await fetch(new URL(path, BASE), { method, body, headers, signal, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError" || error.name === "TimeoutError") throw error;
    throw new ApiError(0, "unreachable", "The server does not answer.");
  }
}

export async function failure(response) {
  let said = null;
  try {
    said = (await response.json()).error;
  } catch {
    // The response of a proxy, or an empty one.
  }
  return new ApiError(response.status, said?.code ?? "", said?.message ?? `The server answered with status ${response.status}.`);
}

async function ask(path, options = {}) {
  const timeout = AbortSignal.timeout(15_000);
  const signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout;
  let response;
  try {
    response = await open(path, { ...options, signal });
  } catch (error) {
    if (error.name === "TimeoutError") throw new ApiError(0, "timeout", "The server did not answer within 15 s.");
    throw error;
  }
  if (!response.ok && !options.also?.includes(response.status)) throw await failure(response);
  return response;
}

const json = async (path, options) => (await ask(path, options)).json();
const post = (path, body, also) => json(path, { method: "POST", body: JSON.stringify(body), type: "application/json", also });

/** Returns the path of a key. If the key has an empty segment or `..`, its slashes are escaped, because a URL would drop them. */
export function keyPath(key) {
  const segments = key.split("/");
  const swallowed = segments.some((segment) => segment === "" || segment === "." || segment === "..");
  return `v1/keys/${swallowed ? encodeURIComponent(key) : segments.map(encodeURIComponent).join("/")}`;
}

export const access = (token) => json("v1/access", { as: token });
export const ruleHistory = (rule) => json(`v1/history?${new URLSearchParams({ rule })}`);
export const top = (period, rule) => json(`v1/top?${new URLSearchParams(rule ? { period, rule } : { period })}`);
/** All nodes that share a Redis, and their sums. */
export const fleet = () => json("v1/fleet");
export const inspect = (key, signal) => json(keyPath(key), { signal });
export const reset = (key) => json(keyPath(key), { method: "DELETE" });
export const acquire = (request) => post("v1/acquire", request, [429]);
export const peek = (request) => post("v1/peek", request, [429]);
export const explain = (request) => post("v1/explain", request);
export const settle = (reservation, permits) => post("v1/settle", { reservation, permits });
export const rules = () => json("v1/rules");
/** The rules as their author wrote them, or as generated YAML if that text is not known. */
export const rulesText = async () => (await ask("v1/rules?format=source")).text();
export const putRules = (body, type = "application/yaml") => json("v1/rules", { method: "PUT", body, type });
export const checkRules = (body, type = "application/yaml") => json("v1/rules?dry-run=true", { method: "PUT", body, type });
