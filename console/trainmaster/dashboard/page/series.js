// Reads a job's metrics over all attempts, newer points while the job runs, and the same metrics of other jobs. Turns
// them into the lines of charts.

import uPlot from "/page/vendor/uplot.js";
import { ask } from "./api.js";
import { known, seconds } from "./format.js";

const POINTS = 1000;
const AGAIN_MS = 4000;
const COMPARED_MS = 20_000;
const NAMES_MS = 10_000;
// The history thins its figures, so all of them are read again regularly.
const WHOLE_MS = 300_000;
// Seconds without a point after which a line has a gap: this many points, at least so long.
const GAP_POINTS = 5;
const GAP_SECONDS = 15;

/** Returns the reason why a job's charts are empty. */
export function whyEmpty({ row, live, gone, ranks }, viewer) {
  if (!live || gone) return "The history has no figures of this job: it keeps them for a limited time.";
  if (ranks?.why) return ranks.why;
  if (row.notice) return row.notice;
  if (row.phase !== "Running" && !viewer.history) return "No figures: without a history, charts begin when somebody opens this page while the job runs (docs/history.md).";
  if (!known(row.step)) return "No samples yet: no rank has reported a step.";
  return "No samples yet: the first ones appear a few seconds after the first step.";
}

/**
 * Reads now, and repeatedly while `runs` is true. `choose(names)` returns the metrics to read. If there are `jobs`, they
 * are compared.
 */
export class Series {
  constructor({ url, signal }, choose, changed) {
    Object.assign(this, { url, signal, choose, changed });
    // Metrics that have values, or null until they are known.
    this.names = null;
    this.note = this.problem = "";
    // Curves by their metric's name, and with other jobs, comparisons by it.
    this.curves = new Map();
    this.compared = new Map();
    this.jobs = [];
    this.x = "time";
    this.runs = false;
    this.readAt = this.namedAt = 0;
  }

  start() {
    if (!this.begun) this.loop();
    this.begun = true;
  }

  /** Reads other metrics or jobs at once. */
  again() {
    this.readAt = 0;
    this.compared.clear();
    this.wake?.();
  }

  async loop() {
    while (!this.signal.aborted) {
      if (!document.hidden) await this.read();
      do {
        await new Promise((done) => {
          this.wake = done;
          setTimeout(done, this.jobs.length ? COMPARED_MS : AGAIN_MS);
        });
      } while (!this.runs && this.readAt && this.curves.size + this.compared.size && !this.signal.aborted);
    }
  }

  async read() {
    let asked = null;
    try {
      if (Date.now() - this.namedAt > NAMES_MS) {
        const { items, note } = await ask(this.url("metrics"), { signal: this.signal });
        this.names = items;
        this.note = note ?? "";
        this.namedAt = Date.now();
      }
      const wanted = this.choose(this.names);
      asked = this.choice(wanted);
      const whole = !this.curves.size || Date.now() - this.readAt > WHOLE_MS || wanted.some((name) => !this.curves.has(name));
      if (whole) this.readAt = Date.now();
      if (this.jobs.length) await this.compare(wanted, asked);
      else if (wanted.length) await this.readCurves(wanted, whole);
      this.problem = "";
    } catch (error) {
      if (this.signal.aborted) return;
      this.problem = error.message;
    }
    this.changed();
  }

  choice(wanted) {
    return JSON.stringify([wanted, this.jobs, this.x]);
  }

  async readCurves(wanted, whole) {
    const had = whole ? [] : wanted.map((name) => this.curves.get(name).at.at(-1));
    const from = had.length && had.every(known) ? { from: Math.min(...had) } : {};
    const { curves } = await ask(this.url("curves", { names: wanted.join(","), points: POINTS, ...from }), { signal: this.signal });
    if (!("from" in from)) this.curves.clear();
    for (const curve of curves) this.curves.set(curve.name, joined(this.curves.get(curve.name), curve));
  }

  /** Reads one metric after the other, until the choice changes. */
  async compare(wanted, asked) {
    for (const metric of wanted) {
      const query = new URLSearchParams({ metric, x: this.x === "step" ? "step" : "seconds", points: POINTS });
      for (const job of this.jobs) query.append("job", job);
      const found = await ask(`/api/compare?${query}`, { signal: this.signal });
      if (asked !== this.choice(this.choose(this.names))) return this.again();
      this.compared.set(metric, found);
      this.changed();
    }
  }
}

/** Returns a curve, extended by the newer points of another one. */
function joined(had, found) {
  const kinds = (curve) => curve.lines.map(lineName).join();
  if (!had || kinds(had) !== kinds(found)) return found;
  const last = had.at.at(-1) ?? -Infinity;
  const first = found.at.findIndex((at) => at > last);
  if (first < 0) return had;
  const all = { ...found };
  for (const name of ["at", "attempt", "step", "redone"]) all[name] = had[name].concat(found[name].slice(first));
  all.lines = found.lines.map((line, index) => ({ ...line, values: had.lines[index].values.concat(line.values.slice(first)) }));
  return all;
}

/** Names a metric's line among several: worker 1, GPU 0. */
export const lineName = ({ worker, gpu, of }) => of ?? [known(worker) && `worker ${worker}`, known(gpu) && `GPU ${gpu}`].filter(Boolean).join(", ");

/** Returns a list's runs of true, as [first index, last index]. */
function runs(flags) {
  const found = [];
  flags.forEach((flag, at) => {
    if (!flag) return;
    if (at > 0 && flags[at - 1]) found.at(-1)[1] = at;
    else found.push([at, at]);
  });
  return found;
}

/** Returns the spans of x in which steps were repeated. */
export const repeated = (curve, byStep) => runs(curve.redone).map(([first, last]) => [(byStep ? curve.step : curve.at)[first], (byStep ? curve.step : curve.at)[last]]);

/** Returns where attempts after the first begin: where the previous one failed. */
export function borders(attempts, curve, byStep) {
  const found = [];
  attempts.slice(1).forEach(({ attempt }, index) => {
    const before = attempts[index];
    const last = curve.attempt.lastIndexOf(before.attempt);
    const places = byStep ? [before.lastStep, before.failure?.step, curve.step[last]] : [seconds(before.failure?.failedAt), seconds(before.endedAt), curve.at[last]];
    const x = places.find(known);
    if (known(x)) found.push({ x, attempt });
  });
  return found;
}

/**
 * Returns a curve's lines as [x, values] tables; `before` has steps that were repeated later. `clock` is a curve whose
 * steps are known, for metrics that know only their time.
 */
export function tables(curve, line, byStep, clock) {
  if (!byStep) return { main: byTime(curve, line.values), before: null };
  const steps = curve.kind === "system" ? stepsAt(curve, clock) : curve.step;
  const newest = new Map();
  const earlier = new Map();
  let attempt = null;
  steps.forEach((step, index) => {
    if (!known(step)) return;
    if (attempt !== null && curve.attempt[index] !== attempt)
      // Steps that the previous attempt had already done are repeated.
      for (const [done, at] of newest)
        if (done >= step) {
          earlier.set(done, at);
          newest.delete(done);
        }
    attempt = curve.attempt[index];
    newest.set(step, index);
  });
  const table = (from) => {
    const x = [...from.keys()].sort((a, b) => a - b);
    return [x, x.map((step) => line.values[from.get(step)] ?? null)];
  };
  const before = table(earlier);
  // No line connects two spans of repeated steps.
  const all = [...new Set([...newest.keys(), ...earlier.keys()])].sort((a, b) => a - b);
  const spans = curve.kind === "system" || !earlier.size ? [] : repeated(curve, true);
  const rest = all.filter((step) => !earlier.has(step) && !spans.some(([first, last]) => first <= step && step <= last));
  return { main: table(newest), before: earlier.size && curve.kind !== "system" ? uPlot.join([before, [rest, rest.map(() => null)]]).slice(0, 2) : null };
}

/** Returns times and values, with a null where an attempt ends and where no points were recorded. */
function byTime(curve, values) {
  const x = [];
  const found = [];
  const longest = Math.max(GAP_SECONDS, GAP_POINTS * curve.resolutionSeconds);
  curve.at.forEach((at, index) => {
    const last = curve.at[index - 1];
    if (index > 0 && (curve.attempt[index] !== curve.attempt[index - 1] || at - last > longest)) {
      x.push((last + at) / 2);
      found.push(null);
    }
    x.push(at);
    found.push(values[index] ?? null);
  });
  return [x, found];
}

/** Returns the steps at a curve's times, from the last earlier point of another curve in the same attempt. */
function stepsAt(curve, clock) {
  let next = 0;
  return curve.at.map((at, index) => {
    while (next < (clock?.at.length ?? 0) && clock.at[next] <= at) next++;
    return next && clock.attempt[next - 1] === curve.attempt[index] ? clock.step[next - 1] : null;
  });
}

/** Smooths values as TensorBoard does: an exponential moving average without the bias of its start. */
export function smoothed(values, weight) {
  let last = 0;
  let all = 0;
  return values.map((value) => {
    if (!known(value)) return value;
    all++;
    last = last * weight + (1 - weight) * value;
    return last / (1 - weight ** all);
  });
}
