// Shows one job. Its state comes from the stream's events. Each part of the page is drawn at most once a frame.

import { follow } from "./api.js";
import { isPageKey } from "./app.js";
import { h, onFrame, text } from "./dom.js";
import { details } from "./details.js";
import { evidence } from "./evidence.js";
import { header } from "./header.js";
import { logs } from "./logs.js";
import { overview } from "./overview.js";
import { rankDrawer } from "./rank.js";

const TABS = { overview: "Overview", logs: "Logs", workers: "Workers", evidence: "Evidence", events: "Events", manifest: "Manifest" };

/** Returns the tab and the open rank that the URL's fragment names. */
const fragment = () => new URLSearchParams(location.hash.slice(1));

export function show(main, { namespace, job: name, uid, viewer, signal, go }) {
  document.title = `${name} · Trainmaster`;
  const state = { mayChange: false, row: null, status: {}, spec: {}, live: true, gone: false, pods: [], attempts: [], ranks: null, events: [] };
  const base = `/api/jobs/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const context = {
    namespace, name, viewer, signal, state,
    /** Returns the URL of a request about this job. */
    url: (path = "", parameters = {}) => {
      const query = new URLSearchParams({ ...(uid ? { uid } : {}), ...parameters }).toString();
      return base + (path && `/${path}`) + (query && `?${query}`);
    },
    /** Each rank's worker, from the heat map, which is the only source for an ended job. */
    workerOf: new Map(),
    openRank: (rank) => place({ rank }),
    fragment,
    place,
  };
  const parts = [header(context)];
  const body = h("div.tab-body");
  const note = h("p.note", { hidden: true, role: "status" });
  const say = (sentence) => { note.hidden = false; text(note, sentence); };
  const buttons = {};
  const tabs = h("div", { role: "tablist", class: "tabs", "aria-label": "Job tabs", onkeydown: moveTab });
  for (const [id, title] of Object.entries(TABS)) {
    buttons[id] = h("button", { role: "tab", type: "button", id: `tab-${id}`, "aria-controls": `panel-${id}`, onclick: () => place({ tab: id }) }, title, h("span.count"));
    tabs.append(buttons[id]);
  }
  const problem = h("section.empty", { hidden: true });
  const page = h("div.job", note, parts[0].element, tabs, body);
  main.append(page, problem);

  const makers = { overview, logs, evidence, ...details };
  const panels = {};
  let open = null;
  const drawer = rankDrawer(context, () => place({ rank: null }));
  page.append(drawer.element);

  const render = onFrame(() => {
    if (!state.row) return;
    for (const part of parts) part.update(state);
    text(buttons.workers.lastChild, state.pods.length || "");
    text(buttons.evidence.lastChild, state.attempts.filter((attempt) => attempt.failure).length || "");
    text(buttons.events.lastChild, state.events.length || "");
    panels[open]?.update(state);
    drawer.update(state);
  });
  signal.addEventListener("abort", render.cancel);

  /** Shows another tab or rank, and updates the URL. */
  function place(change) {
    const now = fragment();
    for (const [key, value] of Object.entries(change))
      if (value === null || (key === "tab" && value === "overview")) now.delete(key);
      else now.set(key, value);
    const hash = now.toString();
    history.replaceState(null, "", location.pathname + location.search + (hash && `#${hash}`));
    placed();
  }

  function placed() {
    const found = fragment();
    const tab = Object.hasOwn(TABS, found.get("tab")) ? found.get("tab") : "overview";
    for (const [id, button] of Object.entries(buttons)) {
      button.setAttribute("aria-selected", id === tab);
      button.tabIndex = id === tab ? 0 : -1;
    }
    if (open !== tab) {
      if (panels[open]) panels[open].element.hidden = true;
      if (!panels[tab]) {
        panels[tab] = makers[tab](context);
        panels[tab].element.id = `panel-${tab}`;
        panels[tab].element.setAttribute("role", "tabpanel");
        panels[tab].element.setAttribute("aria-labelledby", `tab-${tab}`);
        body.append(panels[tab].element);
      }
      open = tab;
      panels[tab].element.hidden = false;
      panels[tab].shown?.();
    }
    const rank = found.has("rank") && /^\d+$/.test(found.get("rank")) ? Number(found.get("rank")) : null;
    drawer.open(rank);
    render();
  }

  function moveTab(event) {
    const ids = Object.keys(TABS);
    const at = ids.indexOf(open);
    const to = { ArrowRight: (at + 1) % ids.length, ArrowLeft: (at + ids.length - 1) % ids.length, Home: 0, End: ids.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    place({ tab: ids[to] });
    buttons[ids[to]].focus();
  }

  window.addEventListener("hashchange", placed, { signal });
  window.addEventListener("popstate", placed, { signal });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && isPageKey(event)) go("/");
  }, { signal });

  placed();
  follow(context.url(), {
    job: (found) => { Object.assign(state, found, { gone: false }); note.hidden = true; render(); },
    ...Object.fromEntries(["pods", "attempts", "ranks", "events"].map((name) => [name, (found) => { state[name] = found; render(); }])),
    gone: () => { Object.assign(state, { gone: true, goneAt: Date.now() / 1000, live: false }); render(); },
    problem: ({ sentence }) => say(sentence),
    refused: (sentence) => {
      // If no history has the deleted job, the page keeps showing it.
      if (state.gone) return;
      page.hidden = true;
      problem.hidden = false;
      problem.replaceChildren(h("h1", `${namespace}/${name}`), h("p", sentence), h("p", h("a", { href: "/" }, "All jobs")));
    },
  }, signal);
}
