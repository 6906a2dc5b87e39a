// Shows the list of jobs from a stream of rows. Only visible rows have elements. A batch of changes is drawn once.

import { ask, follow } from "./api.js";
import { isPageKey } from "./app.js";
import { COLUMNS, recordedRow } from "./columns.js";
import { announce, attribute, button, h, icon, keyed, onFrame, text } from "./dom.js";
import { Filters, TROUBLE } from "./filters.js";
import { PHASES, count } from "./format.js";
import { Rows } from "./rows.js";
import { command } from "./signin.js";

const NO_HISTORY = "This dashboard has no history, which keeps deleted jobs (docs/history.md).";
const ROW = 45;
const PHONE_ROW = 84;
const PHONE = matchMedia("(max-width: 760px)");

// A returning viewer sees the last list and row at once. After a new sign-in, the viewer may be another person.
let jobs = new Map();
let chosen = null;
let seenBy = null;

export function show(main, { viewer, signal, go }) {
  document.title = "Jobs · Trainmaster";
  if (seenBy !== viewer) [jobs, chosen, seenBy] = [new Map(), null, viewer];
  const filters = new Filters(location.search);
  if (!viewer.allNamespaces && !filters.namespace) filters.namespace = viewer.namespace;
  let deleted = new Map();
  let problem = "";
  let loaded = jobs.size > 0;
  let visible = [];

  const search = h("input", { type: "search", id: "search", placeholder: "Search jobs and failures", "aria-label": "Search jobs and failures", value: filters.query, "aria-keyshortcuts": "/" });
  const chips = h("div.chips", { role: "group", "aria-label": "Phases" });
  const namespaces = viewer.allNamespaces
    ? h("select", { "aria-label": "Namespace" })
    : h("input", { "aria-label": "Namespace", value: filters.namespace, placeholder: "Namespace", class: "namespace-field" });
  const sorts = h("select.only-phone", { "aria-label": "Sort by" }, COLUMNS.map((column) => h("option", { value: column.id }, `by ${column.title.split(",")[0].toLowerCase()}`)));
  const withDeleted = h("input", { type: "checkbox", checked: filters.deleted, disabled: !viewer.history });
  const note = h("p.note", { role: "status", hidden: true });
  const host = h("div.rows", { role: "rowgroup" });
  const heads = COLUMNS.map((column) =>
    h("div", { role: "columnheader", class: `cell ${column.id} ${column.number ? "number" : ""}` },
      button({ onclick: () => sortBy(column.id) }, column.title, h("span.arrow", { "aria-hidden": "true" }))));
  const table = h("div", { role: "table", "aria-label": "Jobs", class: "jobs-table" },
    h("div", { role: "rowgroup", class: "heads" }, h("div", { role: "row", class: "job-row" }, heads)), host);
  const empty = h("section.empty", { hidden: true });
  main.append(
    h("h1.visually-hidden", "Jobs"),
    h("div.filters", {},
      h("div.search", icon("search"), search), namespaces, sorts,
      h("label.switch", { title: viewer.history ? null : NO_HISTORY }, withDeleted, "with deleted jobs", !viewer.history && h("span.visually-hidden", `: ${NO_HISTORY}`)), chips),
    note, table, empty);

  const rows = new Rows({ host, height: PHONE.matches ? PHONE_ROW : ROW, key: (row) => row.uid, make: makeRow, fill: fillRow });
  signal.addEventListener("abort", () => rows.close());
  const render = onFrame(renderNow);
  signal.addEventListener("abort", render.cancel);
  PHONE.addEventListener("change", () => {
    rows.height = PHONE.matches ? PHONE_ROW : ROW;
    render();
  }, { signal });

  function makeRow() {
    return h("div", { role: "row", class: "job-row" },
      COLUMNS.map((column) => h("div", { role: "cell", class: `cell ${column.id} ${column.number ? "number" : ""}` }, column.make?.() ?? "")));
  }

  function fillRow(element, row, index) {
    COLUMNS.forEach((column, at) => column.fill(element.children[at], row));
    element.dataset.uid = row.uid;
    attribute(element, "aria-rowindex", index + 2);
    element.classList.toggle("chosen", row.uid === chosen);
    element.classList.toggle("deleted", Boolean(row.deletedAt));
  }

  function all() {
    // A job may have been deleted while nobody could record it.
    const gone = filters.deleted && loaded ? [...deleted.values()].filter((row) => !jobs.has(row.uid)) : [];
    return [...jobs.values(), ...gone];
  }

  function renderNow() {
    const everything = all();
    const { rows: shown, counts } = filters.apply(everything, COLUMNS);
    visible = shown;
    attribute(table, "aria-rowcount", shown.length + 1);
    const phases = [TROUBLE, ...PHASES, ...(filters.deleted ? ["Deleted"] : [])].filter((phase) => counts[phase] || filters.phases.has(phase));
    keyed(chips, phases, (phase) => phase, makeChip, (chip, phase) => {
      attribute(chip, "aria-pressed", filters.phases.has(phase));
      text(chip.lastChild, counts[phase] ?? 0);
    });
    heads.forEach((head, at) => {
      const sorted = COLUMNS[at].id === filters.sort;
      attribute(head, "aria-sort", sorted ? (filters.descending ? "descending" : "ascending") : null);
    });
    sorts.value = filters.sort;
    if (viewer.allNamespaces) {
      const names = [...new Set([...everything.map((row) => row.namespace), ...(filters.namespace ? [filters.namespace] : [])])].sort();
      keyed(namespaces, ["", ...names], (name) => name, (name) => h("option", { value: name }, name || "All namespaces"), () => {});
      namespaces.value = filters.namespace;
    }
    text(note, problem);
    note.hidden = !problem;
    table.hidden = !shown.length;
    empty.hidden = Boolean(shown.length) || !loaded || Boolean(problem);
    if (!empty.hidden) fillEmpty(everything.length);
    rows.items = shown;
    rows.ask.cancel();
    rows.paint();
  }

  function makeChip(phase) {
    return button({ class: "chip", "data-phase": phase, onclick: () => {
      if (!filters.phases.delete(phase)) filters.phases.add(phase);
      changed();
    } }, icon(phase === TROUBLE ? "warning" : phase), h("span", phase), h("span.count"));
  }

  function fillEmpty(others) {
    const kind = filters.any && others ? "filtered" : "none";
    if (empty.dataset.kind === kind) return;
    empty.dataset.kind = kind;
    if (kind === "filtered")
      empty.replaceChildren(h("h2", "No job matches"),
        button({ onclick: () => { filters.clear(); search.value = ""; changed(); } }, "Show all jobs"));
    else
      empty.replaceChildren(h("h2", "No jobs yet"), h("p", "Submit your first training from a folder with a script:"),
        command("kubectl dtj submit --name first --workers 2 --script train.py --code ."),
        h("p", "Or have a manifest written for you:"), command("kubectl dtj init"));
  }

  function sortBy(id) {
    filters.descending = filters.sort === id ? !filters.descending : !["name", "phase", "latest"].includes(id);
    filters.sort = id;
    changed();
  }

  /** Shows another choice, and updates the URL. */
  function changed() {
    history.replaceState(null, "", location.pathname + filters.toSearch());
    render();
    requestAnimationFrame(() => announce(count(visible.length, "job")));
  }

  search.addEventListener("input", () => { filters.query = search.value; changed(); });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && search.value) {
      event.preventDefault();
      search.value = filters.query = "";
      changed();
    } else if (event.key === "Escape") search.blur();
    else if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      // A fast typist may press Enter before the next frame shows the matches.
      render.now();
      choose(0);
    }
  });
  namespaces.addEventListener("change", () => {
    filters.namespace = namespaces.value.trim();
    changed();
    if (!viewer.allNamespaces) connect();
  });
  sorts.addEventListener("change", () => { filters.sort = ""; sortBy(sorts.value); });
  withDeleted.addEventListener("change", () => { filters.deleted = withDeleted.checked; changed(); readDeleted(); });

  /** Moves the focus to a row. */
  function choose(index) {
    if (!visible.length) return;
    const at = Math.max(0, Math.min(visible.length - 1, index));
    chosen = visible[at].uid;
    rows.reveal(at, table.firstChild.offsetHeight + 56).querySelector("a").focus({ preventScroll: true });
  }

  document.addEventListener("keydown", (event) => {
    if (!isPageKey(event)) return;
    render.now();
    const at = visible.findIndex((row) => row.uid === chosen);
    const moves = { j: at + 1, ArrowDown: at + 1, k: Math.max(0, at - 1), ArrowUp: Math.max(0, at - 1), Home: 0, End: visible.length - 1 };
    if (event.key === "/") search.focus();
    else if (event.key in moves) choose(moves[event.key]);
    else return;
    event.preventDefault();
  }, { signal });
  host.addEventListener("focusin", (event) => {
    chosen = event.target.closest("[data-uid]")?.dataset.uid ?? chosen;
    render();
  });
  host.addEventListener("click", (event) => {
    const row = event.target.closest("[data-uid]");
    if (!row || event.target.closest("a") || !getSelection().isCollapsed) return;
    chosen = row.dataset.uid;
    go(row.querySelector("a").getAttribute("href"));
  });

  async function readDeleted() {
    if (!filters.deleted || !viewer.history) return;
    const only = viewer.allNamespaces ? "" : `?namespace=${encodeURIComponent(filters.namespace)}`;
    try {
      const { items } = await ask(`/api/history/jobs${only}`, { signal });
      deleted = new Map(items.map((job) => [job.uid, recordedRow(job)]));
      render();
    } catch (error) {
      if (signal.aborted) return;
      problem = error.message;
      render();
    }
  }

  let stream = null;
  function connect() {
    stream?.abort();
    stream = new AbortController();
    const ends = AbortSignal.any([signal, stream.signal]);
    const only = viewer.allNamespaces ? "" : `?namespace=${encodeURIComponent(filters.namespace)}`;
    follow(`/api/jobs${only}`, {
      jobs: (batch) => {
        jobs = new Map(batch.jobs.map((row) => [row.uid, row]));
        loaded = true;
        problem = "";
        render();
      },
      changed: (batch) => {
        for (const row of batch.rows) jobs.set(row.uid, { ...jobs.get(row.uid), ...row });
        for (const uid of batch.gone ?? []) jobs.delete(uid);
        // The history records the deletion a moment later.
        if (batch.gone?.length) setTimeout(readDeleted, 3_000);
        problem = "";
        render();
      },
      problem: ({ sentence }) => { problem = sentence; render(); },
      // A viewer who has lost the right sees no rows.
      refused: (sentence) => { [jobs, deleted, problem, loaded] = [new Map(), new Map(), sentence, true]; render(); },
    }, ends);
  }

  renderNow();
  const back = visible.findIndex((row) => row.uid === chosen);
  if (back >= 0) choose(back);
  connect();
  readDeleted();
}
