// Defines the cells of the list of jobs: their text and sort key. A cell changes only if its text does.

import { attribute, h, icon, text } from "./dom.js";
import { PHASES, UNKNOWN, ago, brief, clock, figure, jobPath, known, percent, seconds, trouble, whole } from "./format.js";

/** Returns a phase's badge: a coloured shape and word. If the job is in trouble, its shape is a warning. */
export function badge(phase) {
  const element = h("span.badge");
  setBadge(element, phase);
  return element;
}

export function setBadge(element, phase, warns = false) {
  if (element.dataset.phase === phase && element.classList.contains("warns") === warns) return;
  element.dataset.phase = phase;
  element.classList.toggle("warns", warns);
  element.replaceChildren(icon(warns ? "warning" : PHASES.includes(phase) || phase === "Deleted" ? phase : "Pending"), h("span", phase));
}

const TAIL = 6;
const ENDED = ["Succeeded", "Failed"];

/** Describes how a deleted job ended. */
export function ending(row) {
  const progress = known(row.step) ? ` at step ${whole(row.step)}${row.totalSteps ? ` of ${whole(row.totalSteps)}` : ""}` : "";
  if (row.phase === "Failed") return `It failed${progress}${row.failure ? `: ${row.failure}` : ""}`;
  if (row.phase === "Succeeded") return `It succeeded${progress}`;
  return `It was ${row.phase ?? "Pending"}${progress} when it was deleted${row.failure ? `; its last failure: ${row.failure}` : ""}`;
}

export const share = (row) => (known(row.step) && row.totalSteps ? Math.min(1, row.step / row.totalSteps) : row.phase === "Succeeded" ? 1 : null);

export const COLUMNS = [
  {
    id: "phase",
    title: "Phase",
    sort: (row) => PHASES.indexOf(row.phase),
    make: () => badge("Pending"),
    fill: (cell, row) => setBadge(cell.firstChild, row.deletedAt && !ENDED.includes(row.phase) ? "Deleted" : row.phase, Boolean(!row.deletedAt && trouble(row))),
  },
  {
    id: "name",
    title: "Job",
    sort: (row) => row.name,
    // A long name is cut before its last characters, which often differ.
    make: () => [h("a.name", { href: "/" }, h("span"), h("span")), h("span.namespace")],
    fill: (cell, row) => {
      text(cell.firstChild.firstChild, row.name.slice(0, -TAIL));
      text(cell.firstChild.lastChild, row.name.slice(-TAIL));
      attribute(cell.firstChild, "title", row.name);
      attribute(cell.firstChild, "aria-label", row.name);
      attribute(cell.firstChild, "href", jobPath(row.namespace, row.name, row.deletedAt && row.uid));
      text(cell.lastChild, row.namespace);
    },
  },
  {
    id: "progress",
    title: "Progress",
    sort: share,
    make: () => [h("span.track", { "aria-hidden": "true" }, h("span.fill")), h("span.share"), h("span.eta")],
    fill: (cell, row) => {
      const [track, part, eta] = cell.children;
      const done = share(row);
      const width = `${((done ?? 0) * 100).toFixed(1)}%`;
      if (track.firstChild.style.width !== width) track.firstChild.style.width = width;
      attribute(track, "data-phase", row.phase);
      text(part, done === null ? (known(row.step) ? `step ${whole(row.step)}` : UNKNOWN) : percent(Math.floor(done * 100) / 100));
      text(eta, remaining(row));
    },
  },
  { id: "goodput", title: "Goodput", number: true, sort: (row) => row.goodput, fill: (cell, row) => text(cell, percent(row.goodput)) },
  {
    id: "workers",
    title: "Workers",
    number: true,
    sort: (row) => row.desired,
    fill: (cell, row) => text(cell, known(row.running) ? `${whole(row.running)}/${whole(row.desired)}` : UNKNOWN),
  },
  { id: "loss", title: "Loss", number: true, sort: (row) => row.loss, fill: (cell, row) => text(cell, figure(row.loss)) },
  { id: "attempt", title: "Attempt", number: true, sort: (row) => row.attempt, fill: (cell, row) => text(cell, row.attempt ? whole(row.attempt) : UNKNOWN) },
  {
    id: "restarts",
    title: "Restarts",
    number: true,
    sort: (row) => row.restarts + row.disruptions,
    make: () => [h("span.value"), h("span.extra")],
    fill: (cell, row) => {
      text(cell.firstChild, whole(row.restarts));
      text(cell.lastChild, row.disruptions ? ` + ${whole(row.disruptions)}` : "");
      attribute(cell, "title", row.disruptions ? `${row.restarts} counted, ${row.disruptions} disruptions that didn't count` : null);
    },
  },
  {
    id: "latest",
    title: "Trouble, why it waits, or last failure",
    sort: (row) => trouble(row) || row.waits || row.failure,
    make: () => h("span.sentence"),
    fill: (cell, row) => {
      const ends = row.phase === "Succeeded" || row.phase === "Running";
      const wrong = row.deletedAt ? (ENDED.includes(row.phase) ? "" : ending(row)) : trouble(row);
      const sentence = wrong || (row.waits && !ends ? row.waits : (row.failure ?? ""));
      text(cell.firstChild, sentence);
      attribute(cell, "title", sentence || null);
      attribute(cell, "data-kind", wrong && !row.deletedAt ? "trouble" : row.waits && !ends ? "waits" : row.phase === "Failed" ? "failed" : "past");
    },
  },
  {
    id: "created",
    title: "Age",
    number: true,
    sort: (row) => seconds(row.createdAt),
    fill: (cell, row) => {
      const at = seconds(row.createdAt);
      text(cell, ago(at));
      attribute(cell, "title", `created ${clock(at)}`);
    },
  },
];

function remaining(row) {
  const from = seconds(row.startedAt) ?? seconds(row.createdAt);
  const to = seconds(row.completedAt);
  if (known(to)) return known(from) ? `took ${brief(to - from)}` : "";
  return known(row.etaSeconds) && row.phase === "Running" && !row.stall ? `${brief(row.etaSeconds)} left` : "";
}

/** Returns the list's row for a job from the history. */
export function recordedRow(job) {
  return {
    ...job,
    running: null,
    desired: null,
    completedAt: job.endedAt ?? job.deletedAt,
    deletedAt: job.deletedAt ?? job.endedAt ?? job.createdAt,
    failedAt: job.lastFailure?.failedAt ?? null,
  };
}
