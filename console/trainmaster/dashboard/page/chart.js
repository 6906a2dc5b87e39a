// Draws one chart with uPlot: lines over time or steps, shaded repeats, marks of attempts, and a legend with values.

import uPlot from "/page/vendor/uplot.js";
import { attribute, colour, h, keyed, text } from "./dom.js";
import { INCREMENTS, clockOnly, dayClock, duration, figure, known, tick, unitOf, whole } from "./format.js";
import { smoothed } from "./series.js";

const HEIGHT = 150;
const AXIS_FONT = "11px system-ui, sans-serif";
export const COLOURS = 8;
// Marks of attempts that are closer (CSS pixels) are drawn as one.
const NEAR = 14;

/**
 * Returns a chart. `view` is shared by all charts: `x` (time, step or seconds), `smooth`, `log`, `range()`, and
 * `zoom(from, to)`. `show({title, unit, lines, spans, borders, zero, log})` draws lines, each with a `label`, a
 * `colour`, a `table` [x, values], and perhaps `before` and a `limit`.
 */
export function makeChart(view) {
  const heading = h("span.curve-title");
  const left = h("span.muted.left-out");
  const legend = h("ul.lines");
  const host = h("div.plot", { role: "img" });
  const element = h("figure.curve", h("figcaption", heading, left), host, legend);
  let plot = null;
  let built = "";
  let now = null;
  let unit = [1, ""];

  const say = (value) => `${figure(value)}${known(value) && unit[1] ? ` ${unit[1]}` : ""}`;

  function show(found) {
    now = found;
    const log = view.log && found.log;
    const all = found.lines.flatMap((line) => line.table[1]).filter(known);
    unit = unitOf(found.unit, all.reduce((a, b) => Math.max(a, Math.abs(b)), 0));
    text(heading, unit[1] ? `${found.title} (${unit[1]})` : found.title);
    attribute(heading, "title", found.name);
    let skipped = 0;
    const drawn = ([x, values]) => [x, values.map((value) => {
      if (!known(value)) return value;
      if (log && value <= 0) {
        skipped++;
        return null;
      }
      return value / unit[0];
    })];
    // The values of a line are its smoothed ones. The raw line is fainter, and repeated steps are dashed.
    const parts = [];
    const main = found.lines.map((line) => drawn(line.table));
    for (const [index, line] of found.lines.entries()) {
      parts.push({ line, table: view.smooth ? [main[index][0], smoothed(main[index][1], view.smooth)] : main[index] });
      if (view.smooth) parts.push({ line, table: main[index], faint: { alpha: 0.25, width: 1 } });
      if (line.before) parts.push({ line, table: drawn(line.before), faint: { dash: [3, 3], width: 1, alpha: 0.6 } });
    }
    text(left, skipped ? `${whole(skipped)} values ≤ 0 left out` : "");
    const shape = JSON.stringify([parts.map(({ line, faint }) => [line.label, line.colour, faint]), view.x, log, found.zero, unit]);
    const data = parts.length > 1 ? uPlot.join(parts.map(({ table }) => table)) : (parts[0]?.table ?? [[], []]);
    if (shape !== built) {
      built = shape;
      plot?.destroy();
      plot = build(parts, log, data);
    } else plot.setData(data);
    const many = found.lines.length > 1;
    keyed(legend, many || found.lines[0]?.limit ? found.lines : [], (line) => line.label, () => h("li", h("span.swatch"), h("span.name"), h("span.value")), (item, line) => {
      item.firstChild.style.background = `var(--${line.colour})`;
      text(item.children[1], many ? line.label : "");
      attribute(item.children[1], "title", line.title);
    });
    read();
    // A long legend scrolls, so the keyboard must reach it.
    attribute(legend, "tabindex", legend.scrollHeight > legend.clientHeight ? 0 : null);
    const [first, last] = [all[0], all.at(-1)];
    const ends = [Math.min, Math.max].map((best) => all.reduce((a, b) => best(a, b), all[0]));
    attribute(host, "aria-label", all.length ? `${found.title}: from ${say(first / unit[0])} to ${say(last / unit[0])}, lowest ${say(ends[0] / unit[0])}, highest ${say(ends[1] / unit[0])}` : `${found.title}: no values`);
  }

  function build(parts, log, data) {
    const axis = { stroke: colour("muted"), font: AXIS_FONT, grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false } };
    const shades = new Map(parts.map(({ line }) => [line.colour, colour(line.colour)]));
    return new uPlot({
      width: Math.max(120, host.clientWidth || 300),
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 20, 0, 0],
      cursor: { sync: { key: "curves", scales: ["x", null] }, y: false, points: { size: 6 }, focus: { prox: -1 }, drag: { setScale: false } },
      scales: { x: { time: view.x === "time", range: (_, low, high) => view.range() ?? [low, high] }, y: log ? { distr: 3, range: (_, low, high) => (known(low) ? [low / 1.15, high * 1.6] : [1, 10]) } : { range: (_, low, high) => bounds(low, high, now.zero) } },
      axes: [
        { ...axis, size: 22, space: 56, values: labels, ...(view.x === "step" ? {} : { incrs: INCREMENTS }) },
        { ...axis, size: 52, space: 26, values: (_, splits) => splits.map(tick), ...(log ? { splits: (_, index, low, high) => logTicks(low, high), filter: (_, splits) => splits } : {}) },
      ],
      series: [{}, ...parts.map(({ line, faint }) => ({ stroke: shades.get(line.colour), width: 1.5, points: { show: false }, ...faint }))],
      hooks: {
        drawClear: [(u) => shade(u, now)],
        setCursor: [read],
        setSelect: [(u) => {
          const { left: from, width } = u.select;
          if (width < 4) return;
          view.zoom(u.posToVal(from, "x"), u.posToVal(from + width, "x"));
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
      },
    }, data, host);
  }

  /** Returns the labels of places on the horizontal axis that are `every` apart. */
  function labels(u, splits, axis, space, every) {
    const days = u.scales.x.max - u.scales.x.min > 86_400;
    return splits.map((at) => (view.x === "step" ? whole(at) : view.x === "seconds" ? duration(at) : days ? dayClock(at) : clockOnly(at).slice(0, every < 60 ? 8 : 5)));
  }

  /** Shows the values under the cursor, or the newest ones. */
  function read() {
    if (!plot || !now) return;
    const at = plot.cursor.idx;
    const values = now.lines.map((line) => {
      // The faint parts of a line follow its first one.
      const index = plot.data.length > 2 ? 1 + firstPart(line) : 1;
      return lastKnown(plot.data[index] ?? [], known(at) ? at : Infinity);
    });
    now.lines.forEach((line, index) => {
      const item = legend.children[index];
      if (item) text(item.lastChild, `${say(values[index])}${known(line.limit) ? ` of ${say(line.limit / unit[0])}` : ""}`);
    });
    text(reading, now.lines.length === 1 && !legend.children.length ? say(values[0]) : known(at) ? labels(plot, [plot.data[0][at]], 0, 0, 1)[0] : "");
  }

  const firstPart = (wanted) => now.lines.slice(0, now.lines.indexOf(wanted)).reduce((sum, line) => sum + 1 + (view.smooth ? 1 : 0) + (line.before ? 1 : 0), 0);
  const reading = h("span.reading");
  element.firstChild.append(reading);

  host.addEventListener("dblclick", () => view.zoom(null));
  return {
    element,
    show,
    close: () => plot?.destroy(),
    rebuild: () => { built = ""; },
    resize: () => {
      const width = host.clientWidth;
      if (plot && width && width !== plot.width) plot.setSize({ width, height: HEIGHT });
    },
  };
}

/** Returns the last known value at or before an index. A gap is unknown. */
function lastKnown(values, at) {
  for (let index = Math.min(at, values.length - 1); index >= 0; index--) {
    if (known(values[index])) return values[index];
    if (values[index] === null && at !== Infinity) return null;
  }
  return null;
}

/** Returns round figures of a logarithmic axis: 1, 2, 5, 10, or in a wide range powers of ten. */
function logTicks(low, high) {
  const found = [];
  const every = Math.ceil(Math.log10(high / low) / 6);
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += every)
    for (const part of every > 1 || high / low > 1000 ? [1] : [1, 2, 5]) found.push(part * 10 ** power);
  return found.filter((at) => at >= low && at <= high);
}

/** Returns the ends of the vertical axis, with some margin. */
function bounds(low, high, zero) {
  if (!known(low)) return [0, 1];
  const bottom = zero ? Math.min(0, low) : low;
  const room = (high - bottom || Math.abs(high) || 1) * 0.06;
  // This leaves room for the attempts' numbers at the top.
  return [zero ? bottom : low - room, high + room * 3];
}

/** Shades repeated steps, and draws a dashed line where an attempt begins. Curves are drawn above both. */
function shade(u, { spans, borders }) {
  const { ctx } = u;
  const { left, top, width, height } = u.bbox;
  const scale = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.fillStyle = colour("redone");
  for (const [from, to] of spans) {
    const at = u.valToPos(from, "x", true);
    ctx.fillRect(at, top, Math.max(2, u.valToPos(to, "x", true) - at), height);
  }
  ctx.strokeStyle = ctx.fillStyle = colour("muted");
  ctx.lineWidth = scale;
  ctx.font = `${10 * scale}px system-ui, sans-serif`;
  // The axes' drawing settings are still in effect here.
  ctx.textAlign = "left";
  ctx.setLineDash([3 * scale, 3 * scale]);
  const marks = [];
  for (const { x, attempt } of borders) {
    const at = Math.round(u.valToPos(x, "x", true)) + 0.5;
    if (marks.length && at - marks.at(-1).at < NEAR * scale) marks.at(-1).last = attempt;
    else marks.push({ at, first: attempt, last: attempt });
  }
  let free = -Infinity;
  for (const { at, first, last } of marks) {
    ctx.globalAlpha = marks.length > 6 ? 0.5 : 1;
    ctx.beginPath();
    ctx.moveTo(at, top);
    ctx.lineTo(at, top + height);
    ctx.stroke();
    const label = first === last ? String(first) : `${first}–${last}`;
    const end = at + ctx.measureText(label).width + 8 * scale;
    if (at < free || end > left + width) continue;
    ctx.globalAlpha = 1;
    ctx.fillText(label, at + 3 * scale, top + 10 * scale);
    free = end;
  }
  ctx.restore();
}
