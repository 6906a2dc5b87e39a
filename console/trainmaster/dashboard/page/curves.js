// Shows a job's metrics as charts with a shared axis and cursor: what its ranks report, and what its workers use. The
// same metrics of other jobs can be drawn over them. The URL contains the choices, so users can share a view.

import { askText } from "./api.js";
import { COLOURS, makeChart } from "./chart.js";
import { attribute, button, h, keyed, onFrame, save, text } from "./dom.js";
import { ZONE, known, shortName, whole } from "./format.js";
import { pickJobs, pickMetrics } from "./picker.js";
import { Series, borders, lineName, repeated, tables, whyEmpty } from "./series.js";

// The usual metrics in their order, with their titles. An axis of `zero` begins at 0.
const KNOWN = {
  loss: ["Loss"],
  samplesPerSecond: ["Speed", { zero: true }],
  stepSeconds: ["Step time", { zero: true, with: ["slowestStepSeconds", "median", "slowest rank"] }],
  gradNorm: ["Gradient norm"],
  learningRate: ["Learning rate", { zero: true }],
  goodput: ["Goodput", { zero: true }],
  gpuUtilization: ["GPU utilisation", { zero: true }],
  gpuMemoryBytes: ["GPU memory", { zero: true }],
  cpuCores: ["Processor", { zero: true }],
  memoryBytes: ["Memory", { zero: true }],
  networkReceiveBytesPerSecond: ["Network", { zero: true, with: ["networkTransmitBytesPerSecond", "received", "sent"] }],
};
const SECOND = Object.fromEntries(Object.entries(KNOWN).flatMap(([name, [, more]]) => (more?.with ? [[more.with[0], name]] : [])));
// An answer has at most 32 curves, two for each chart, and compares at most 8 jobs.
const MOST_CHARTS = 16;
const MOST_JOBS = 8;

const titleOf = (name) => KNOWN[name]?.[0] ?? name;

export function curves(context) {
  const { signal, url, name, place, fragment } = context;
  const grid = h("div.curves");
  const note = h("p.note", { hidden: true });
  const empty = h("p.muted", { hidden: true });
  const series = new Series(context, chosenNames, onFrame(render));
  const view = { x: "time", smooth: 0, log: false, zoomed: null, ends: null, range: () => view.zoomed ?? view.ends, zoom: (from, to) => choose({ zoom: known(from) ? `${Number(from.toPrecision(12))},${Number(to.toPrecision(12))}` : null }) };
  const by = h("div.segments", { role: "group", "aria-label": "Horizontal axis" },
    [["time", "Time"], ["step", "Steps"]].map(([id, title]) => button({ "data-axis": id, onclick: () => choose({ x: id === "time" ? null : id, zoom: null }) }, title)));
  const smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, oninput: () => choose({ smooth: smooth.value === "0" ? null : smooth.value }) });
  const weight = h("output");
  const log = h("input", { type: "checkbox", onchange: () => choose({ log: log.checked ? 1 : null }) });
  const reset = button({ class: "quiet", hidden: true, onclick: () => choose({ zoom: null }) }, "Reset zoom");
  const metricsButton = button({ onclick: () => pickMetrics({ items: offered().map((one) => ({ id: one, title: titleOf(one), more: one in KNOWN ? one : "" })), chosen: shownNames(), most: MOST_CHARTS, done: (names) => choose({ metrics: names ? names.join(",") : null }) }) }, "Metrics");
  const compareButton = button({ onclick: () => pickJobs({ context, chosen: others(), most: MOST_JOBS - 1, done: (jobs) => choose({ with: jobs.length ? jobs.join(",") : null, zoom: null }) }) }, "Compare");
  const key = h("ul.lines.jobs-key", { "aria-label": "Compared jobs" });
  const legend = h("span.muted.curve-key", h("span.swatch.redone"), "repeated steps", h("span.swatch.border"), "failure, new attempt");
  const zone = h("span.muted.zone");
  const controls = h("div.curve-controls", by, h("label.switch", "Smoothing", smooth, weight), h("label.switch", log, "log scale"), reset, h("span.spring"), metricsButton, compareButton);
  const element = h("section.card", { hidden: true, "aria-labelledby": "curves-title" },
    h("div.card-head", h("h2", { id: "curves-title" }, "Curves"), legend, zone, h("span.spring"),
      button({ class: "quiet", onclick: download }, "CSV")), controls, key, note, empty, grid);
  const charts = new Map();
  let state = null;

  async function download() {
    save(`${name}.csv`, "text/csv", await askText(url("export", { format: "csv" }), { signal }));
  }

  /** Changes the choices in the URL, and draws them. */
  function choose(change) {
    place(change);
    placed();
  }

  const others = () => (fragment().get("with") ?? "").split(",").filter((job) => job.split("/").length === 3).slice(0, MOST_JOBS - 1);

  /** Reads the choices from the URL. */
  function placed() {
    const found = fragment();
    const compares = others().length > 0;
    const x = found.get("x") === "step" ? "step" : compares ? "seconds" : "time";
    view.smooth = Math.max(0, Math.min(0.99, Number(found.get("smooth")) || 0));
    view.log = found.get("log") === "1";
    const zoom = (found.get("zoom") ?? "").split(",").map(Number);
    view.zoomed = zoom.length === 2 && zoom.every(Number.isFinite) && zoom[0] < zoom[1] ? zoom : null;
    view.x = x;
    for (const one of by.children) attribute(one, "aria-pressed", (one.dataset.axis === "step") === (x === "step"));
    smooth.value = view.smooth;
    text(weight, view.smooth ? view.smooth.toFixed(2) : "off");
    log.checked = view.log;
    reset.hidden = !view.zoomed;
    const jobs = compares && state ? [`${context.namespace}/${name}/${state.row.uid}`, ...others()] : [];
    if (JSON.stringify([jobs, found.get("metrics"), compares && x]) !== series.asked) {
      series.asked = JSON.stringify([jobs, found.get("metrics"), compares && x]);
      series.jobs = jobs;
      series.x = x;
      series.again();
    }
    render();
  }

  /** Returns the metrics that have charts of their own, the usual ones first. */
  function offered() {
    const names = (series.names ?? []).map((one) => one.name);
    const limits = new Set((series.names ?? []).map((one) => one.limitedBy));
    return [...Object.keys(KNOWN).filter((one) => names.includes(one)), ...names.filter((one) => !(one in KNOWN) && !(one in SECOND) && !limits.has(one))];
  }

  function shownNames() {
    const all = offered();
    const chosen = fragment().get("metrics")?.split(",").filter((one) => all.includes(one));
    // Steps of system metrics aren't known, so jobs are compared over time only.
    return (chosen?.length ? chosen : all).filter((one) => view.x !== "step" || !others().length || isTraining(one)).slice(0, MOST_CHARTS);
  }

  /** Returns the metrics to read. One whose steps are known is always among them. */
  function chosenNames() {
    const names = shownNames().flatMap((one) => [one, ...(KNOWN[one]?.[1]?.with ?? []).slice(0, 1).filter((other) => !series.jobs.length && series.names.some((each) => each.name === other))]);
    const clock = offered().find(isTraining);
    return series.jobs.length || !clock || names.includes(clock) ? names : [...names, clock];
  }

  const isTraining = (one) => series.names?.find((each) => each.name === one)?.kind === "training";

  /** Returns what a chart of this job shows. */
  function ofJob(metric) {
    const { x } = view;
    const clock = series.curves.get(offered().find(isTraining));
    const [second, ...labels] = KNOWN[metric]?.[1]?.with ?? [];
    const found = [metric, second].map((one) => series.curves.get(one)).filter((curve) => curve?.lines.length);
    const lines = found.flatMap((curve, index) => curve.lines.map((line, at) => {
      const { main, before } = tables(curve, line, x === "step", clock);
      const label = [lineName(line), found.length > 1 && labels[index]].filter(Boolean).join(" ");
      return { label: label || titleOf(metric), colour: `line-${(at * found.length + index) % COLOURS}`, table: main, before, limit: line.limit };
    }));
    const marks = clock ?? found[0];
    return { lines, unit: found[0]?.unit ?? "", spans: marks ? repeated(marks, x === "step") : [], borders: marks ? borders(state.attempts, marks, x === "step") : [] };
  }

  /** Returns what a chart of several jobs shows. */
  function ofJobs(metric) {
    const found = series.compared.get(metric);
    const lines = (found?.runs ?? []).map((run, at) => ({ label: shortName(run.name, 24), title: `${run.namespace}/${run.name}`, colour: `line-${at % COLOURS}`, table: [run.x, run.values], before: null, limit: null, problem: run.problem }));
    return { lines: lines.filter((line) => line.table[0].length), unit: found?.unit ?? "", spans: [], borders: [] };
  }

  function render() {
    if (!state) return;
    const compares = series.jobs.length > 0;
    const names = series.names ? shownNames() : [];
    const shown = names.map((metric) => ({ metric, ...(compares ? ofJobs(metric) : ofJob(metric)) }));
    const has = shown.some((one) => one.lines.length);
    const problems = compares ? [...new Set([...series.compared.values()].flatMap((found) => found.runs.map((run) => run.problem && `${run.name}: ${run.problem}`)).filter(Boolean))] : [];
    const sentence = [series.problem, series.note, ...problems].filter(Boolean).join(" ");
    text(note, sentence);
    note.hidden = !sentence;
    empty.hidden = has || !note.hidden || compares;
    text(empty, series.names ? whyEmpty(state, context.viewer) : "Reading …");
    controls.hidden = !has && !compares;
    legend.hidden = !has || compares;
    text(zone, has && view.x === "time" ? `times in ${ZONE}` : compares && view.x === "seconds" ? "time since each job's first point" : "");
    const chosen = fragment().has("metrics");
    text(metricsButton, chosen ? `Metrics: ${whole(names.length)} of ${whole(offered().length)}` : "Metrics");
    text(compareButton, compares ? `Compared: ${series.jobs.length} jobs` : "Compare");
    keyed(key, compares ? series.jobs : [], (job) => job, (job) => h("li", h("span.swatch"), h("a"), job.startsWith(`${context.namespace}/${name}/`) ? null
      : button({ class: "link", "aria-label": `Leave out ${job.split("/")[1]}`, onclick: () => choose({ with: others().filter((one) => one !== job).join(",") || null }) }, "×")), (item, job) => {
      const [namespace, other, uid] = job.split("/");
      item.firstChild.style.background = `var(--line-${series.jobs.indexOf(job) % COLOURS})`;
      text(item.children[1], shortName(other));
      attribute(item.children[1], "title", `${namespace}/${other}`);
      attribute(item.children[1], "href", `/jobs/${encodeURIComponent(namespace)}/${encodeURIComponent(other)}?uid=${encodeURIComponent(uid)}`);
    });
    if (!element.isConnected || element.offsetParent === null) return;
    const xs = shown.flatMap((one) => one.lines.flatMap((line) => [line.table[0][0], line.table[0].at(-1)])).filter(known);
    view.ends = xs.length ? [xs.reduce((a, b) => Math.min(a, b)), xs.reduce((a, b) => Math.max(a, b))] : null;
    if (view.ends && view.ends[0] === view.ends[1]) view.ends[1]++;
    const drawn = shown.filter((one) => one.lines.length);
    keyed(grid, drawn, (one) => one.metric, (one) => {
      const chart = makeChart(view);
      charts.set(one.metric, chart);
      chart.element.chart = chart;
      return chart.element;
    }, (box, one) => {
      const { metric, ...lines } = one;
      box.chart.show({ title: titleOf(metric), name: metric, log: isTraining(metric) && one.unit !== "ratio", zero: KNOWN[metric]?.[1]?.zero, ...lines });
    });
    for (const [metric, chart] of charts)
      if (!chart.element.isConnected) {
        chart.close();
        charts.delete(metric);
      }
  }

  const rebuild = () => {
    for (const chart of charts.values()) chart.rebuild();
    render();
  };
  window.addEventListener("theme", rebuild, { signal });
  const resized = new ResizeObserver(() => {
    for (const chart of charts.values()) chart.resize();
    // The charts may have been hidden until now.
    if (!charts.size) render();
  });
  resized.observe(grid);
  signal.addEventListener("abort", () => {
    resized.disconnect();
    for (const chart of charts.values()) chart.close();
  });

  let drawnFor = "";
  return {
    element,
    update: (found) => {
      state = found;
      const { row, live, gone, attempts } = state;
      series.runs = live && !gone && !["Succeeded", "Failed", "Suspended"].includes(row.phase);
      element.hidden = live && !row.attempt && !row.startedAt;
      if (element.hidden) return;
      series.start();
      const now = JSON.stringify([location.hash, row.uid, attempts.length]);
      if (empty.hidden && now === drawnFor) return;
      drawnFor = now;
      placed();
    },
  };
}
