// The page about jobs. It consists of plain ES modules, and needs no build step.
//
//   app       the frame: chooses the view for a URL; links, theme, lost connections
//   api       requests to the dashboard, and its streams; signin asks for a token
//   jobs      the list of jobs: columns has its cells, filters selects jobs, rows draws the visible part
//   job       one job: its state, from the stream, and its tabs
//   header    phase, figures and buttons
//   overview  why, timeline (attempts, where the time went), curves (charts over time or steps), heat (of ranks)
//   curves    series reads the metrics, chart draws one, picker chooses metrics and jobs to compare
//   rank      the drawer of one rank: figures, stacks, log
//   logs, evidence, details (workers, events, manifest)    the other tabs
//   nodes     nodes that jobs blame or avoid
//   dom, format    elements, and figures as text
//
// A view is a function `show(main, frame)`. It fills `main`, and stops when `frame.signal` is aborted.

import { ask, launch, listen, Refused } from "./api.js";
import { h, text } from "./dom.js";
import { clock } from "./format.js";
import { signIn } from "./signin.js";

const VIEWS = {
  jobs: () => import("./jobs.js"),
  job: () => import("./job.js"),
  nodes: () => import("./nodes.js"),
};
const AWAY_MS = 300_000;
const KEYS = [
  ["/", "search the list"],
  ["j, k or arrows", "the next and the previous job"],
  ["Enter", "open the job"],
  ["Esc", "back to the list, or close what is open"],
  ["arrows in the heat map", "another rank or time; Enter opens the rank"],
  ["?", "these keys"],
];

const main = document.getElementById("main");
let closing = new AbortController();
let viewer = null;
let opened = "";
// The reason why the code in a laptop's URL was refused. It explains more than "no key" would.
let refusal = null;

/** Returns the view of a URL and its parameters. */
function route(url) {
  const parts = url.pathname.split("/").filter(Boolean).map(decodeURIComponent);
  if (parts[0] === "jobs" && parts.length === 3)
    return { name: "job", namespace: parts[1], job: parts[2], uid: url.searchParams.get("uid") };
  if (parts[0] === "nodes" && parts.length === 1) return { name: "nodes" };
  return parts.length ? { name: "unknown" } : { name: "jobs" };
}

/** Opens another URL of this page. */
export function go(href) {
  history.pushState(null, "", href);
  return open({ moved: true });
}

async function open({ moved = false } = {}) {
  closing.abort();
  closing = new AbortController();
  const { signal } = closing;
  const found = route(new URL(location));
  opened = location.pathname + location.search;
  for (const link of document.querySelectorAll("nav a"))
    if (link.dataset.page === found.name.replace(/^job$/, "jobs")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  try {
    viewer ??= await ask("/api/viewer", { signal });
    text(document.getElementById("where"), [viewer.user, (viewer.cluster ?? "").replace(/^https?:\/\//, "")].filter(Boolean).join(" · "));
    const view = VIEWS[found.name] && (await VIEWS[found.name]());
    if (signal.aborted) return;
    main.replaceChildren();
    if (!view) return nothing("There is no such page.");
    if (moved) {
      window.scrollTo(0, 0);
      main.focus({ preventScroll: true });
    }
    view.show(main, { ...found, viewer, signal, go });
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Refused || error instanceof TypeError)) throw error;
    if (error.status === 401) return;
    connection(false, error instanceof Refused ? error.message : undefined);
    setTimeout(() => signal.aborted || open(), 2000);
  }
}

function nothing(sentence) {
  document.title = "Trainmaster";
  main.append(h("section.empty", h("h1", sentence), h("p", h("a", { href: "/" }, "All jobs"))));
}

let losing = 0;
let lostAt = 0;

function connection(stands, sentence = "The dashboard doesn't answer.") {
  const banner = document.getElementById("banner");
  if (stands) {
    clearTimeout(losing);
    losing = lostAt = 0;
    banner.hidden = true;
    return;
  }
  lostAt ||= Date.now() / 1000;
  text(banner, `${sentence} The page shows the state of ${clock(lostAt)}. It is reconnecting …`);
  // Most streams are reconnected before the viewer needs to know.
  losing ||= setTimeout(() => { banner.hidden = false; }, 1000);
}

/** Returns whether a key press is meant for the page, not for a field or a dialog. */
export function isPageKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return false;
  // While a dialog's button is disabled, key presses reach the page behind the dialog.
  if (document.querySelector("dialog[open]")) return false;
  return !event.target.closest?.("input, textarea, select, [role=application], [role=tablist]");
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function themed() {
  document.getElementById("theme-button").setAttribute("aria-pressed", isDark());
  window.dispatchEvent(new Event("theme"));
}

document.getElementById("theme-button").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("trainmaster-theme", theme);
  } catch {
    // If the browser stores nothing, the theme is valid until the page is closed.
  }
  themed();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);

const keys = document.getElementById("keys");
keys.append(
  h("h2", { id: "keys-title" }, "Keys"),
  h("dl.keys", KEYS.map(([key, what]) => h("div", h("dt", h("kbd", key)), h("dd", what)))),
  h("form", { method: "dialog" }, h("button", "Close")),
);
document.getElementById("keys-button").addEventListener("click", () => keys.showModal());
document.addEventListener("keydown", (event) => {
  if (event.key === "?" && isPageKey(event)) keys.showModal();
});

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='/']");
  const plain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  if (!link || !plain || link.hasAttribute("download")) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
window.addEventListener("popstate", () => {
  // If only the fragment changed, the open view handles it.
  if (location.pathname + location.search !== opened) open();
});

// A hidden tab sends no requests.
let leaving = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(leaving);
  if (document.hidden) leaving = setTimeout(() => closing.abort(), AWAY_MS);
  else if (closing.signal.aborted && viewer) open();
});

listen({
  connection,
  unauthorized: (refused) => {
    closing.abort();
    viewer = null;
    signIn(main, refusal ?? refused, () => open());
    refusal = null;
  },
});

async function start() {
  themed();
  const code = new URLSearchParams(location.hash.slice(1)).get("launch");
  if (code) {
    // The code is valid once. It is removed from the address so that nobody copies it.
    history.replaceState(null, "", location.pathname + location.search);
    await launch(code).catch((error) => { refusal = error; });
  }
  await open();
}

start();
