// Shows a dialog in which a user chooses metrics, or jobs to compare with.

import { ask, follow } from "./api.js";
import { h, keyed, text } from "./dom.js";
import { PHASES, clock, figure, known, seconds, shortName } from "./format.js";

// With more items, the dialog has a search field.
const LONG = 12;
const MOST_SHOWN = 60;

/** Shows `items`, each with an `id`, a `title` and `more`. Calls `done` with the chosen ids. */
function pick({ title, help, items, chosen, most, all, done }) {
  const wanted = new Set(chosen);
  const search = h("input", { type: "search", placeholder: "Search", "aria-label": `Search ${title.toLowerCase()}`, oninput: fill, hidden: items.length <= LONG });
  const list = h("div.choices", { role: "group", "aria-label": title });
  const rest = h("p.muted");
  const element = h("dialog.small.picker", { "aria-labelledby": "picker-title", onclose: () => element.remove() },
    h("h2", { id: "picker-title" }, title), h("p.muted", help), search, list, rest,
    h("form", { method: "dialog", onsubmit: (event) => event.submitter.value && done(event.submitter.value === "all" ? null : [...wanted]) },
      h("button", { value: "" }, "Cancel"), all && h("button", { value: "all" }, all), h("button.primary", { value: "done" }, "Show")));

  function fill() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = items.filter((one) => words.every((word) => `${one.id} ${one.title} ${one.more}`.toLowerCase().includes(word)));
    found.sort((one, other) => wanted.has(other.id) - wanted.has(one.id));
    keyed(list, found.slice(0, MOST_SHOWN), (one) => one.id, (one) => h("label.choice", { title: one.id },
      h("input", { type: "checkbox", checked: wanted.has(one.id), onchange: (event) => {
        if (event.target.checked) wanted.add(one.id);
        else wanted.delete(one.id);
        limit();
      } }), h("span", one.title), h("span.muted", one.more)), () => {});
    text(rest, found.length ? (found.length > MOST_SHOWN ? `${found.length - MOST_SHOWN} more match.` : "") : "Nothing matches.");
    limit();
  }

  function limit() {
    for (const box of list.querySelectorAll("input")) box.disabled = !box.checked && wanted.size >= most;
  }

  document.body.append(element);
  fill();
  element.showModal();
}

/** Lets the user choose metrics. `done(null)` chooses the usual ones. */
export function pickMetrics({ items, chosen, most, done }) {
  pick({ title: "Metrics", help: `At most ${most} charts.`, items, chosen, most, all: "Show the usual ones", done: (ids) => done(ids?.length ? ids : null) });
}

/** Lets the user choose jobs, from the history or from the live list. */
export async function pickJobs({ context: { viewer, signal, namespace, state }, chosen, most, done }) {
  const only = viewer.allNamespaces ? "" : `?namespace=${encodeURIComponent(namespace)}`;
  const rows = viewer.history ? (await ask(`/api/history/jobs${only}`, { signal })).items : await listed(`/api/jobs${only}`, signal);
  const items = rows.filter((row) => row.uid !== state.row.uid && row.attempt).sort((one, other) => (seconds(other.createdAt) ?? 0) - (seconds(one.createdAt) ?? 0)).map((row) => ({
    id: `${row.namespace}/${row.name}/${row.uid}`, title: shortName(row.name, 40),
    more: [row.namespace, row.deletedAt ? "deleted" : PHASES.includes(row.phase) && row.phase, known(row.loss) && `loss ${figure(row.loss)}`, clock(seconds(row.createdAt))].filter(Boolean).join(", "),
  }));
  pick({ title: "Compare with", help: `At most ${most} other jobs.`, items, chosen, most, done: (ids) => done(ids ?? []) });
}

/** Returns the rows of the live list. */
function listed(path, signal) {
  const once = new AbortController();
  return new Promise((found, failed) => {
    const end = (call) => (value) => {
      call(value);
      once.abort();
    };
    follow(path, { jobs: end((batch) => found(batch.jobs)), refused: end((sentence) => failed(new Error(sentence))) }, AbortSignal.any([signal, once.signal]));
  });
}
