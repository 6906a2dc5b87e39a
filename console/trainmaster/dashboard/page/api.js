// Sends requests to the dashboard. Each carries the token (on a laptop the key), which only this tab keeps.

const KEY = "trainmaster-token";
// A stream that is silent for this long is lost. The dashboard sends a ping every 10 s.
const SILENT_MS = 25_000;
const SHORTEST_MS = 500;
const LONGEST_MS = 15_000;

/** A refused request, with the message to show and the answer's status. */
export class Refused extends Error {
  constructor(sentence, status, mode) {
    super(sentence);
    this.status = status;
    this.mode = mode;
  }
}

const lost = new Set();
const listeners = { unauthorized: () => {}, connection: () => {} };

/** Sets the functions that show the sign-in form and a lost connection. */
export function listen(found) {
  Object.assign(listeners, found);
}

export const setToken = (token) => sessionStorage.setItem(KEY, token);
export const forgetToken = () => sessionStorage.removeItem(KEY);

/** Exchanges the one-time code in a laptop's URL for this tab's key. Throws Refused. */
export async function launch(code) {
  const answer = await send("/api/launch", { method: "POST", body: { code } }, false);
  setToken((await answer.json()).key);
}

async function send(path, { method = "GET", body, signal } = {}, asks = true) {
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store" });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  const refused = new Refused(said.sentence || `The dashboard answered ${answer.status}.`, answer.status, said.mode);
  if (answer.status === 401 && asks) listeners.unauthorized(refused);
  throw refused;
}

/** Returns an answer's JSON. Throws Refused, or TypeError if there is no connection. */
export async function ask(path, options) {
  return (await send(path, options)).json();
}

/** Returns an answer's text. */
export async function askText(path, options) {
  return (await send(path, options)).text();
}

/**
 * Follows a stream until `signal` is aborted. Calls `events[NAME](data)`, and reconnects after an interruption.
 * Calls `events.refused(sentence)` if a retry won't help, and `events.opened()` after each connection.
 */
export async function follow(path, events, signal) {
  const self = {};
  let pause = SHORTEST_MS;
  while (!signal.aborted) {
    let sentence;
    try {
      const answer = await send(path, { signal });
      connected(self, true);
      events.opened?.();
      pause = SHORTEST_MS;
      if (await read(answer.body.getReader(), events, signal)) break;
    } catch (error) {
      if (signal.aborted) break;
      if (error instanceof Refused && error.status < 500 && error.status !== 429) {
        if (error.status !== 401) events.refused?.(error.message);
        break;
      }
      // The dashboard says which server is down.
      if (error instanceof Refused) sentence = error.message;
      else if (!(error instanceof TypeError || error.name === "AbortError")) throw error;
    }
    if (signal.aborted) break;
    connected(self, false, sentence);
    await wait(pause * (0.75 + Math.random() / 2), signal);
    pause = Math.min(pause * 2, LONGEST_MS);
  }
  connected(self, true);
}

function connected(self, is, sentence) {
  if (!is) lost.add(self);
  else if (!lost.delete(self)) return;
  listeners.connection(lost.size === 0, sentence);
}

/** Reads events until the stream ends, and returns whether an `end` event was among them. */
async function read(reader, events, signal) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const silent = setTimeout(() => reader.cancel(), SILENT_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(silent));
    if (done || signal.aborted) return false;
    rest += decoder.decode(value, { stream: true });
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "message";
      let data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) events[name]?.(JSON.parse(data));
      if (name === "end") return true;
    }
  }
}

function wait(milliseconds, signal) {
  return new Promise((done) => {
    const timer = setTimeout(finish, milliseconds);
    function finish() {
      clearTimeout(timer);
      signal.removeEventListener("abort", finish);
      window.removeEventListener("online", finish);
      done();
    }
    signal.addEventListener("abort", finish);
    window.addEventListener("online", finish);
  });
}
