// The tabs with the workers and their pods, the events, and the manifest.

import { askText } from "./api.js";
import { button, copyButton, h, keyed, save, table, text } from "./dom.js";
import { clock, known, median, seconds, stepTime, whole } from "./format.js";

function workers({ openRank }) {
  const body = h("tbody");
  const none = h("div.empty", { hidden: true }, h("h2", "No pods"), h("p", "The job has no pods now: it hasn't started, it waits, or it has ended."));
  const card = h("div.card.table-card", table("Workers", ["Worker", "Pod", "Node", "State", "Containers' restarts#", "Ranks", "Slowest step#", "Message"], body));
  return {
    element: h("section", none, card),
    update: ({ pods, ranks, attempts, live }) => {
      const shown = pods.length || live ? pods : (attempts.at(-1)?.workers ?? []).map((one) => ({ name: one.pod, worker: one.worker, node: one.node, phase: "", ready: false, restarts: null, message: "" }));
      none.hidden = shown.length > 0;
      card.hidden = shown.length === 0;
      const all = ranks?.ranks ?? [];
      const middle = median(all.map((one) => one.stepSeconds));
      keyed(body, shown, (pod) => pod.name, () => h("tr", h("th", { scope: "row" }), h("td.code"), h("td.code"), h("td"), h("td.number"), h("td.rank-links"), h("td.number"), h("td")), (line, pod) => {
        const mine = all.filter((one) => one.worker === pod.worker);
        const slowest = mine.map((one) => one.stepSeconds).filter(known).reduce((a, b) => Math.max(a, b), -Infinity);
        const slow = middle && slowest > middle * 1.2;
        const cells = [pod.worker, pod.name, pod.node, pod.phase && (pod.ready || pod.phase !== "Running" ? pod.phase : "Running, not ready"), pod.restarts, null, Number.isFinite(slowest) ? `${slow ? `${(slowest / middle).toFixed(1)} × the median: ` : ""}${stepTime(slowest)}` : "", pod.message];
        cells.forEach((cell, at) => at !== 5 && text(line.children[at], cell));
        line.children[6].classList.toggle("slow", Boolean(slow));
        keyed(line.children[5], mine, (one) => one.rank, (one) => button({ class: "link", "aria-label": `Rank ${one.rank}`, onclick: () => openRank(one.rank) }, one.rank), () => {});
      });
    },
  };
}

function events() {
  const body = h("tbody");
  const none = h("div.empty", { hidden: true }, h("h2", "No events"), h("p"));
  const card = h("div.card.table-card", table("Events", ["Time", "Count#", "Type", "Reason", "Object", "Message"], body));
  const at = (event) => (typeof event.at === "number" ? event.at : seconds(event.at));
  return {
    element: h("section", none, card),
    update: (state) => {
      none.hidden = state.events.length > 0;
      text(none.lastChild, state.live && !state.gone ? "Kubernetes keeps events for about an hour." : "The history keeps no events.");
      card.hidden = state.events.length === 0;
      const shown = state.events.map((event, number) => ({ ...event, number })).sort((a, b) => at(b) - at(a) || b.number - a.number);
      keyed(body, shown, (event) => `${event.object} ${event.type} ${event.reason} ${event.message}`, () => h("tr", h("td.nowrap"), h("td.number"), h("td"), h("td"), h("td.code"), h("td.wide")), (line, event) => {
        [clock(at(event)), event.count > 1 ? whole(event.count) : "", event.type, event.reason, event.object, event.message].forEach((cell, column) => text(line.children[column], cell));
        line.classList.toggle("warning", event.type === "Warning");
      });
    },
  };
}

function manifest({ url, name, signal }) {
  const pre = h("pre.manifest", { tabindex: 0, "aria-label": "Manifest" });
  const element = h("section.card", h("div.card-head", h("h2", "Manifest"), h("span.spring"),
    copyButton(() => pre.textContent), button({ class: "quiet", onclick: () => save(`${name}.yaml`, "text/yaml", pre.textContent) }, "Download")), pre);
  return {
    element,
    shown: async () => {
      try {
        text(pre, await askText(url("manifest"), { signal }));
      } catch (error) {
        if (!signal.aborted) text(pre, error.message);
      }
    },
    update: () => {},
  };
}

export const details = { workers, events, manifest };
