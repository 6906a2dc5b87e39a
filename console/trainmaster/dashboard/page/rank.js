// Shows one rank in a drawer: its current figures beside all ranks' median, its place, its stacks, and its log.

import { ask } from "./api.js";
import { attribute, button, copyButton, h, icon, keyed, text } from "./dom.js";
import { clock, duration, figure, known, median, seconds, stepTime, whole } from "./format.js";
import { LogView } from "./logs.js";

const FIGURES = [
  ["step", "Step", whole],
  ["stepSeconds", "Step time", stepTime],
  ["samplesPerSecond", "Samples/s", figure],
  ["loss", "Loss", figure],
  ["gradNorm", "Gradient norm", figure],
  ["learningRate", "Learning rate", figure],
];

export function rankDrawer(context, closed) {
  const { url, signal, state } = context;
  const title = h("h2", { id: "rank-title" });
  const places = h("dl.places");
  const figures = h("tbody");
  const silent = h("p.note", { hidden: true });
  const collecting = button({ class: "primary", onclick: collect }, "Collect stacks of all ranks");
  const answer = h("div.stacks", { "aria-live": "polite" });
  const logBox = h("div");
  const element = h("dialog.drawer", { "aria-labelledby": "rank-title", onclose: shut, onclick: (event) => event.target === element && element.close() },
    h("div.drawer-head", title, h("form", { method: "dialog" }, h("button.icon-button", { "aria-label": "Close" }, icon("close")))),
    places, silent,
    h("table.figures", h("thead", h("tr", h("th", { scope: "col" }, "Now"), h("th", { scope: "col", class: "number" }, "This rank"), h("th", { scope: "col", class: "number" }, "Median of all"))), figures),
    h("section", h("div.card-head", h("h3", "Stacks"), h("span.spring"), collecting), answer),
    h("section.drawer-log", h("h3", "Log"), logBox));
  let rank = null;
  let log = null;
  let back = null;

  function open(wanted) {
    if (wanted === rank) return;
    if (rank !== null && wanted === null) return element.close();
    log?.close();
    rank = wanted;
    answer.replaceChildren(h("p.muted", "Shows what each thread of this rank is doing now. It costs the ranks milliseconds."));
    text(title, `Rank ${rank}`);
    log = new LogView(context, { rank });
    logBox.replaceChildren(log.element, log.status);
    log.read();
    if (!element.open) {
      back = document.activeElement;
      element.showModal();
    }
    if (state.row) update(state);
  }

  function shut() {
    log?.close();
    log = null;
    rank = null;
    closed();
    if (back?.isConnected) back.focus({ preventScroll: true });
  }

  function update({ ranks, pods, live, gone, row, attempts, mayChange }) {
    if (rank === null) return;
    const all = ranks?.ranks ?? [];
    const mine = all.find((one) => one.rank === rank);
    const worker = mine?.worker ?? context.workerOf.get(rank) ?? null;
    const last = attempts.at(-1)?.workers?.find((one) => one.worker === worker);
    const pod = pods.find((one) => one.worker === worker);
    const found = [["Worker", worker], ["Pod", pod?.name ?? last?.pod], ["Node", pod?.node ?? last?.node], ["Attempt", ranks?.attempt ?? row.attempt]];
    keyed(places, found.filter(([, value]) => known(value) && value !== ""), ([name]) => name, ([name]) => h("div", h("dt", name), h("dd")), (line, [, value]) => text(line.lastChild, value));
    const why = ranks?.why || (worker !== null && ranks?.silent?.[worker]);
    silent.hidden = !why;
    text(silent, why || "");
    collecting.hidden = !mayChange || !live || gone || row.phase !== "Running";
    keyed(figures, mine ? FIGURES : [], ([id]) => id, ([, name]) => h("tr", h("th", { scope: "row" }, name), h("td.number"), h("td.number.muted")), (line, [id, , say]) => {
      const middle = median(all.map((one) => one[id]));
      const slow = id === "stepSeconds" && middle && mine[id] > middle * 1.2;
      text(line.children[1], slow ? `${(mine[id] / middle).toFixed(1)} × the median: ${say(mine[id])}` : say(mine[id]));
      text(line.children[2], say(middle));
      attribute(line.children[1], "class", slow ? "number slow" : "number");
    });
  }

  async function collect() {
    const wanted = rank;
    collecting.disabled = true;
    answer.replaceChildren(h("p.muted", "Asking the ranks …"));
    try {
      const found = await ask(url("stacks", { uid: state.row.uid }), { method: "POST", body: {}, signal });
      if (wanted === rank) answer.replaceChildren(...answered(found, rank));
    } catch (error) {
      if (signal.aborted) return;
      answer.replaceChildren(h("p.note", error.message));
    } finally {
      collecting.disabled = false;
    }
  }

  return { element, open, update };
}

function answered(found, rank) {
  const mine = found.ranks?.[rank];
  if (found.withheld) return [h("p.note", "This job's output isn't kept (runPolicy.keepLogs), and neither are its stacks.")];
  if (!mine) return [h("p.note", found.problem || `Rank ${rank} didn't answer.`)];
  return [
    h("p", `${standing(mine)} `, h("span.muted", clock(seconds(found.collectedAt)))),
    h("pre", { tabindex: 0, "aria-label": `Stacks of rank ${rank}` }, mine.text || "No stacks"),
    copyButton(() => mine.text ?? ""),
  ];
}

/** Returns a rank's state at the time when its stacks were collected. */
export function standing(rank) {
  const facts = [];
  if (known(rank.step)) facts.push(`step ${whole(rank.step)}`);
  if (rank.section) facts.push(`section ${rank.section}`);
  if (known(rank.silentSeconds)) facts.push(`no progress for ${duration(rank.silentSeconds)}`);
  if (rank.state === "T" || rank.state === "t") facts.push("stopped by a signal");
  if (known(rank.collective)) facts.push(`last entered collective ${rank.collective}`);
  if (rank.waits === "collective" || rank.pending) facts.push("waits in a collective");
  else if (rank.waits === "device") facts.push("waits for its device");
  return facts.join(", ") || "its progress is unknown";
}
