// Shows a heat map of ranks over time, which reveals slow ranks. A click or Enter opens a rank. A table repeats it.

import { ask } from "./api.js";
import { announce, attribute, button, h, icon, keyed, onFrame, table, text } from "./dom.js";
import { ZONE, clockOnly, count, figure, firstLine, known, median, stalled, stepTime, whole } from "./format.js";
import { whyEmpty } from "./series.js";
import { column, domain, draw, layout, picture, ramp } from "./heat_drawing.js";

const FIGURES = { stepSeconds: ["Step time", stepTime], gradNorm: ["Gradient norm", figure], loss: ["Loss", figure] };
const COLUMNS = 240;
const FASTEST_MS = 5000;
// A rank is slow if the median of its newest columns is this multiple of all ranks' median.
const STRAGGLES = 1.2;
const NEWEST = 6;
const IN_TABLE = 64;

export function heat(context) {
  const { signal, url, openRank } = context;
  const canvas = h("canvas", { tabindex: 0, role: "application", "aria-roledescription": "heat map", "aria-describedby": "heat-help" });
  const tip = h("div.tip", { hidden: true, "aria-hidden": "true" });
  const scale = h("canvas.scale", { width: 120, height: 8, "aria-hidden": "true" });
  const [low, high] = [h("span"), h("span")];
  const which = h("select", { "aria-label": "Figure", onchange: () => { map = null; read(); } },
    Object.entries(FIGURES).map(([id, [title]]) => h("option", { value: id }, title)));
  const straggler = h("p.straggler", { hidden: true });
  const stopped = h("p.stopped", { hidden: true });
  const note = h("p.note", { hidden: true });
  const body = h("tbody");
  const rest = h("details.heat-table", { ontoggle: () => render() }, h("summary", "As a table, slowest ranks first"),
    table("Ranks", ["Rank", "Worker", "Newest#", "Median#", "Highest#", "Share of the median#"], body));
  const legend = h("span.legend.muted", low, scale, high, h("span.zone", `times in ${ZONE}`));
  const box = h("div.heat-box", canvas, tip);
  const empty = h("p.muted", { hidden: true });
  const element = h("section.card.heat", { hidden: true, "aria-labelledby": "heat-title" },
    h("div.card-head", h("h2", { id: "heat-title" }, "Ranks over time"), which, h("span.spring"), legend),
    stopped, straggler, note, empty, box,
    h("p.visually-hidden", { id: "heat-help" }, "Arrow keys move between ranks and times, Enter opens the rank."), rest);
  const render = onFrame(renderNow);
  let map = null;
  let place = null;
  let limits = [0, 1];
  let ranks = [];
  let cells = null;
  let chosen = null;
  let runs = false;
  let stall = null;
  let begun = false;

  async function read() {
    const wanted = which.value;
    try {
      const found = await ask(url("heat", { columns: COLUMNS, figure: wanted }), { signal });
      if (wanted !== which.value) return;
      map = found;
      limits = domain(map.values, isTime());
      ranks = byRank();
      cells = null;
      found.ranks.forEach((rank, at) => context.workerOf.set(rank, found.workers[at]));
      text(note, found.leftOut ? `${count(found.leftOut, "rank")} of ${whole(found.leftOut + found.ranks.length)} are left out; the slowest, the fastest and a sample of the others are drawn.` : "");
    } catch (error) {
      if (signal.aborted) return;
      text(note, error.message);
    }
    render();
  }

  async function loop() {
    while (!signal.aborted) {
      if (!document.hidden && (runs || !map)) await read();
      // A thousand ranks make a megabyte, so they are requested less often.
      await new Promise((done) => setTimeout(done, Math.max(FASTEST_MS, (map?.ranks.length ?? 0) * 60)));
    }
  }

  const say = () => FIGURES[which.value][1];
  const isTime = () => which.value === "stepSeconds";

  function renderNow() {
    const has = Boolean(map?.at.length && map.ranks.length);
    note.hidden = !note.textContent;
    empty.hidden = has || !note.hidden;
    box.hidden = rest.hidden = legend.hidden = !has;
    if (!has || element.offsetParent === null) return;
    const width = canvas.parentElement.clientWidth;
    place = layout(map.ranks.length, width);
    canvas.style.height = `${place.height}px`;
    if (!cells) {
      cells = picture(map, limits);
      drawScale();
    }
    if (chosen) chosen = [Math.min(chosen[0], map.ranks.length - 1), Math.min(chosen[1], map.at.length - 1)];
    map.until = stall ? Date.now() / 1000 : 0;
    draw(canvas, map, place, cells, document.activeElement === canvas ? chosen : null);
    const slow = ranks.find((rank) => isTime() && rank.times >= STRAGGLES);
    attribute(canvas, "aria-label", `${FIGURES[which.value][0]} of ${count(map.ranks.length, "rank")} over time`);
    showStall();
    straggler.hidden = !slow || Boolean(stall);
    if (slow && straggler.dataset.rank !== String(slow.rank)) {
      straggler.dataset.rank = slow.rank;
      straggler.replaceChildren(icon("warning"), h("span"), button({ class: "quiet", onclick: () => openRank(slow.rank) }, `Open rank ${slow.rank}`));
    }
    if (slow) text(straggler.children[1], `Rank ${slow.rank} (worker ${slow.worker}) takes ${stepTime(slow.newest)} a step, ${slow.times.toFixed(1)} times the median of all ranks.`);
    if (rest.open) fillTable();
  }

  /** Shows where the ranks of a stalled job are. */
  function showStall() {
    stopped.hidden = !stall;
    if (!stall) return;
    const { rank } = stall;
    const id = `${rank} ${stall.message}`;
    if (stopped.dataset.id !== id) {
      stopped.dataset.id = id;
      stopped.replaceChildren(icon("warning"), h("span"), known(rank) && button({ class: "quiet", onclick: () => openRank(rank) }, `Open rank ${rank}`));
    }
    const sentence = stalled(stall);
    text(stopped.children[1], `${sentence[0].toUpperCase()}${sentence.slice(1)}${stall.message ? `: ${firstLine(stall.message)}` : ""}`);
  }

  function drawScale() {
    const shades = ramp();
    const drawing = scale.getContext("2d");
    for (let x = 0; x < scale.width; x++) {
      drawing.fillStyle = `rgb(${shades(x / (scale.width - 1)).slice(0, 3)})`;
      drawing.fillRect(x, 0, 1, scale.height);
    }
    text(low, say()(limits[0]));
    text(high, `${say()(limits[1])} and more`);
  }

  /** Returns the ranks with their figures, slowest first. */
  function byRank() {
    const newest = map.values.slice(-NEWEST);
    const all = median(newest.flat());
    return map.ranks.map((rank, row) => {
      const values = map.values.map((one) => one[row]).filter(known);
      const now = median(newest.map((one) => one[row]));
      return { rank, worker: map.workers[row], newest: now, median: median(values), highest: values.length ? values.reduce((a, b) => Math.max(a, b)) : null, times: known(now) && all ? now / all : 0 };
    }).sort((one, other) => other.times - one.times || one.rank - other.rank);
  }

  function fillTable() {
    keyed(body, ranks.slice(0, IN_TABLE), (one) => one.rank, (one) => h("tr", h("th", { scope: "row" }, button({ class: "link", onclick: () => openRank(one.rank) }, `Rank ${one.rank}`)), [1, 2, 3, 4, 5].map((at) => h("td", { class: at > 1 ? "number" : "" }))), (line, one) => {
      const cells = [one.worker, say()(one.newest), say()(one.median), say()(one.highest), one.times ? `${one.times.toFixed(2)} ×` : ""];
      cells.forEach((cell, at) => text(line.children[at + 1], cell));
      line.lastChild.classList.toggle("slow", isTime() && one.times >= STRAGGLES);
    });
  }

  /** Returns the cell under a pointer: [row, column], or null. */
  function cellAt(event) {
    if (!map || !place) return null;
    const box = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / place.row);
    const x = event.clientX - box.left;
    if (row < 0 || row >= map.ranks.length || x < place.left) return null;
    const index = map.at.findIndex((_, at) => {
      const [from, wide] = column(map, place, at);
      return x >= from && x < from + Math.max(wide, 1);
    });
    return index < 0 ? null : [row, index];
  }

  function sentence([row, index]) {
    const value = map.values[index][row];
    const middle = median(map.values[index]);
    const times = isTime() && known(value) && middle ? `, ${(value / middle).toFixed(2)} × the median` : "";
    return [`Rank ${map.ranks[row]}, worker ${map.workers[row]}`, `${known(value) ? say()(value) : "not reported"}${times}`, `${clockOnly(map.at[index])}, attempt ${map.attempt[index]}`];
  }

  function showTip(cell) {
    tip.hidden = !cell;
    if (!cell) return;
    tip.replaceChildren(...sentence(cell).map((line, at) => h(at ? "span" : "strong", {}, line)));
    const [at] = column(map, place, cell[1]);
    tip.style.left = `${Math.max(0, Math.min(at + 12, place.width - tip.offsetWidth))}px`;
    tip.style.top = `${(cell[0] + 1) * place.row + 6}px`;
  }

  canvas.addEventListener("pointermove", (event) => showTip(cellAt(event)));
  canvas.addEventListener("pointerleave", () => showTip(null));
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (cell) openRank(map.ranks[cell[0]]);
  });
  canvas.addEventListener("focus", () => { chosen ??= map && [0, map.at.length - 1]; render(); });
  canvas.addEventListener("blur", () => { showTip(null); render(); });
  canvas.addEventListener("keydown", (event) => {
    if (!map?.at.length) return;
    chosen ??= [0, map.at.length - 1];
    const [row, index] = chosen;
    const moves = { ArrowUp: [row - 1, index], ArrowDown: [row + 1, index], ArrowLeft: [row, index - 1], ArrowRight: [row, index + 1], Home: [row, 0], End: [row, map.at.length - 1], PageUp: [row - 10, index], PageDown: [row + 10, index] };
    if (event.key === "Enter" || event.key === " ") openRank(map.ranks[row]);
    else if (event.key in moves) {
      const [to, time] = moves[event.key];
      chosen = [Math.max(0, Math.min(map.ranks.length - 1, to)), Math.max(0, Math.min(map.at.length - 1, time))];
      announce(sentence(chosen).join(", "));
      showTip(chosen);
      render();
    } else return;
    event.preventDefault();
  });
  window.addEventListener("theme", () => { cells = null; render(); }, { signal });
  const resized = new ResizeObserver(render);
  resized.observe(canvas.parentElement);
  signal.addEventListener("abort", () => resized.disconnect());

  return {
    element,
    update: (state) => {
      const { row, live, gone } = state;
      runs = live && !gone && row.phase === "Running";
      const stalls = Boolean(stall);
      stall = runs ? (row.stall ?? null) : null;
      element.hidden = live && !row.attempt;
      text(empty, whyEmpty(state, context.viewer));
      if (stall || stalls || !map) render();
      if (!begun && (row.attempt || !live)) {
        begun = true;
        loop();
      }
    },
  };
}
