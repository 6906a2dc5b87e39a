// Draws a job's charts over all attempts, with a shared cursor. Repeated steps are shaded; lines separate attempts.

import uPlot from "/page/vendor/uplot.js";
import { askText } from "./api.js";
import { attribute, button, colour, h, onFrame, save, text } from "./dom.js";
import { clock, clockOnly, figure, known, percent, stepTime, tick, whole } from "./format.js";
import { drawn, Series } from "./series.js";

const HEIGHT = 132;
const AXIS_FONT = "11px system-ui, sans-serif";
const CHARTS = [
  { title: "Loss", lines: [["loss", "curve"]], say: figure },
  { title: "Samples/s", lines: [["samplesPerSecond", "curve"]], say: figure, zero: true },
  { title: "Step time", lines: [["stepSeconds", "curve", "median"], ["slowestStepSeconds", "curve-slow", "slowest rank"]], say: stepTime, tick: (value) => `${tick(value)} s`, zero: true },
  { title: "Gradient norm", lines: [["gradNorm", "curve"]], say: figure },
  { title: "Learning rate", lines: [["learningRate", "curve"]], say: figure, zero: true },
  { title: "Goodput", lines: [["goodput", "curve"]], say: (value) => percent(value, 1), tick: (value) => percent(value), range: [0, 1] },
];

export function curves(context) {
  const { signal, url, name } = context;
  const grid = h("div.curves");
  const note = h("p.note", { hidden: true });
  const by = h("div.segments", { role: "group", "aria-label": "Horizontal axis" });
  for (const [id, title] of [["time", "Time"], ["step", "Steps"]])
    by.append(button({ "aria-pressed": id === "time", onclick: () => choose(id), "data-axis": id }, title));
  const key = h("span.muted.curve-key", h("span.swatch.redone"), "repeated steps", h("span.swatch.border"), "new attempt");
  const element = h("section.card", { hidden: true, "aria-labelledby": "curves-title" },
    h("div.card-head", h("h2", { id: "curves-title" }, "Curves"), key, h("span.spring"), by,
      button({ class: "quiet", onclick: download }, "CSV")), note, grid);
  const series = new Series(context, onFrame(render));
  let byStep = false;
  let charts = [];

  async function download() {
    save(`${name}.csv`, "text/csv", await askText(url("export", { format: "csv" }), { signal }));
  }

  function choose(axis) {
    byStep = axis === "step";
    for (const button of by.children) attribute(button, "aria-pressed", button.dataset.axis === axis);
    rebuild();
  }

  function rebuild() {
    for (const chart of charts) chart.plot.destroy();
    charts = [];
    grid.replaceChildren();
    render();
  }

  function render() {
    const { data } = series;
    text(note, series.problem);
    note.hidden = !series.problem;
    element.hidden = !series.problem && !data?.at.length;
    if (!data?.at.length || !element.isConnected) return;
    const wanted = CHARTS.filter((chart) => data[chart.lines[0][0]]?.some(known));
    if (wanted.length !== charts.length) {
      for (const chart of charts) chart.plot.destroy();
      grid.replaceChildren();
      charts = wanted.map((chart) => makeChart(grid, chart, byStep));
    }
    for (const chart of charts) chart.show(drawn(data, chart.names, byStep));
  }

  window.addEventListener("theme", () => charts.length && rebuild(), { signal });
  const resized = new ResizeObserver(() => {
    for (const chart of charts) chart.resize();
  });
  resized.observe(grid);
  signal.addEventListener("abort", () => {
    resized.disconnect();
    for (const chart of charts) chart.plot.destroy();
  });

  return {
    element,
    update: ({ row, live, gone }) => {
      series.runs = live && !gone && row.phase !== "Succeeded" && row.phase !== "Failed" && row.phase !== "Suspended";
      if (row.startedAt || row.attempt || !live) series.start();
    },
  };
}

function makeChart(grid, { title, lines, say, tick: ticks = tick, zero, range }, byStep) {
  const values = h("span.reading");
  const host = h("div.plot", { role: "img" });
  const box = h("figure.curve", h("figcaption", h("span.curve-title", title), values), host);
  grid.append(box);
  let now = { spans: [], borders: [], before: null };
  let zoomed = false;
  const line = ([, stroke, label], extra = {}) => ({ label: label ?? title, stroke: colour(stroke), width: 1.5, points: { show: false }, ...extra });
  const axis = { stroke: colour("muted"), font: AXIS_FONT, grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false } };
  const plot = new uPlot({
    width: Math.max(120, host.clientWidth || 300),
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 20, 0, 0],
    cursor: { sync: { key: byStep ? "steps" : "time" }, y: false, points: { size: 6 }, focus: { prox: -1 } },
    scales: { x: { time: !byStep }, y: { range: range ?? ((_, low, high) => bounds(low, high, zero)) } },
    axes: [
      { ...axis, size: 24, space: 64, values: (u, splits) => splits.map((at) => (byStep ? whole(at) : u.scales.x.max - u.scales.x.min > 86_400 ? clock(at) : clockOnly(at).slice(0, u.scales.x.max - u.scales.x.min > 1800 ? 5 : 8))) },
      { ...axis, size: 52, space: 28, values: (_, splits) => splits.map(ticks) },
    ],
    series: [{}, ...lines.map((one) => line(one)), ...lines.map((one) => line(one, { dash: [3, 3], width: 1, alpha: 0.6 }))],
    hooks: {
      drawClear: [(u) => shade(u, now)],
      setCursor: [read],
      setSelect: [(u) => { zoomed = u.select.width > 0; }],
    },
  }, [[], ...lines.map(() => []), ...lines.map(() => [])], host);
  host.addEventListener("dblclick", () => { zoomed = false; });

  function read(u) {
    const at = u.cursor.idx ?? lastKnown(u.data[1]);
    if (at === null || at === undefined) return;
    const parts = lines.map(([, , label], index) => {
      const value = u.data[index + 1][at] ?? u.data[index + 1 + lines.length]?.[at];
      return label ? `${label} ${say(value)}` : say(value);
    });
    text(values, parts.join(", "));
  }

  return {
    plot,
    names: lines.map(([name]) => name),
    show: (found) => {
      now = found;
      plot.setData([found.x, ...found.values, ...(found.before ?? found.values.map((list) => list.map(() => null)))], !zoomed);
      if (zoomed) plot.redraw();
      if (plot.cursor.idx === null || plot.cursor.idx === undefined) read(plot);
      const all = found.values[0].filter(known);
      attribute(host, "aria-label", `${title}: from ${say(all[0])} to ${say(all.at(-1))}, lowest ${say(all.reduce((a, b) => Math.min(a, b), Infinity))}, highest ${say(all.reduce((a, b) => Math.max(a, b), -Infinity))}`);
    },
    resize: () => {
      const width = host.clientWidth;
      if (width && width !== plot.width) plot.setSize({ width, height: HEIGHT });
    },
  };
}

function lastKnown(values) {
  for (let at = values.length - 1; at >= 0; at--) if (known(values[at])) return at;
  return null;
}

/** Returns the ends of the vertical axis, with some margin. Axes of shares start at zero. */
function bounds(low, high, zero) {
  if (!known(low)) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  // This leaves room for the attempts' numbers at the top.
  return [zero ? 0 : low - room, high + room * 3];
}

/** Shades repeated steps, and draws a dashed line where an attempt begins. Curves are drawn above both. */
function shade(u, { spans, borders }) {
  const { ctx } = u;
  const { left, top, width, height } = u.bbox;
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
  ctx.lineWidth = devicePixelRatio;
  ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const { x, attempt } of borders) {
    const at = Math.round(u.valToPos(x, "x", true)) + 0.5;
    ctx.beginPath();
    ctx.moveTo(at, top);
    ctx.lineTo(at, top + height);
    ctx.stroke();
    // The axes' drawing settings are still in effect here.
    ctx.textAlign = "left";
    ctx.fillText(String(attempt), at + 3 * devicePixelRatio, top + 10 * devicePixelRatio);
  }
  ctx.restore();
}
