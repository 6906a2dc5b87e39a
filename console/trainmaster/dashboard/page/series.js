// Reads a job's figures over all attempts, and newer ones while the job runs.

import { ask } from "./api.js";

const POINTS = 1000;
const AGAIN_MS = 4000;
// The history thins its figures, so all of them are read again regularly.
const WHOLE_MS = 300_000;

export class Series {
  constructor({ url, signal }, changed) {
    Object.assign(this, { url, signal, changed });
    this.data = null;
    this.problem = "";
    this.runs = false;
    this.readAt = 0;
  }

  /** Reads now, and repeatedly while `runs` is true. */
  start() {
    if (!this.begun) this.loop();
    this.begun = true;
  }

  async loop() {
    while (!this.signal.aborted) {
      if (!document.hidden) await this.read();
      await new Promise((done) => setTimeout(done, AGAIN_MS));
      while (!this.runs && this.data && !this.signal.aborted) await new Promise((done) => setTimeout(done, AGAIN_MS));
    }
  }

  async read() {
    const whole = !this.data?.at.length || Date.now() - this.readAt > WHOLE_MS;
    try {
      const found = await ask(this.url("series", whole ? { points: POINTS } : { points: POINTS, from: this.data.at.at(-1) }), { signal: this.signal });
      if (whole) this.readAt = Date.now();
      this.data = whole ? found : joined(this.data, found);
      this.problem = "";
    } catch (error) {
      if (this.signal.aborted) return;
      this.problem = error.message;
    }
    this.changed();
  }
}

/** Returns a series, extended by the newer points of another one. */
function joined(had, found) {
  const last = had.at.at(-1) ?? -Infinity;
  const first = found.at.findIndex((at) => at > last);
  if (first < 0) return had;
  const all = { ...had };
  for (const [name, values] of Object.entries(found)) if (Array.isArray(values) && Array.isArray(had[name])) all[name] = had[name].concat(values.slice(first));
  return all;
}

/** Returns a list's runs of true, as [first index, last index]. */
export function runs(flags) {
  const found = [];
  flags.forEach((flag, at) => {
    if (!flag) return;
    if (at > 0 && flags[at - 1]) found.at(-1)[1] = at;
    else found.push([at, at]);
  });
  return found;
}

/**
 * Returns the data to draw: `x`, a list of values for each figure (in `before`, steps that were repeated later), the
 * spans of x with repeated steps, and the borders of attempts.
 */
export function drawn(data, names, byStep) {
  return byStep ? drawnBySteps(data, names) : drawnByTime(data, names);
}

function drawnByTime(data, names) {
  const x = [];
  const values = names.map(() => []);
  const borders = [];
  data.at.forEach((at, index) => {
    if (index > 0 && data.attempt[index] !== data.attempt[index - 1]) {
      // This point has no value, so that no line connects two attempts.
      const between = (data.at[index - 1] + at) / 2;
      borders.push({ x: between, attempt: data.attempt[index] });
      x.push(between);
      values.forEach((list) => list.push(null));
    }
    x.push(at);
    names.forEach((name, column) => values[column].push(data[name]?.[index] ?? null));
  });
  const spans = runs(data.redone ?? []).map(([first, last]) => [data.at[Math.max(0, first)], data.at[last]]);
  return { x, values, before: null, spans, borders };
}

function drawnBySteps(data, names) {
  const newest = new Map();
  const earlier = new Map();
  const borders = [];
  data.step.forEach((step, index) => {
    if (step === null) return;
    if (index > 0 && data.attempt[index] !== data.attempt[index - 1]) {
      borders.push({ x: step, attempt: data.attempt[index] });
      // Steps that the previous attempt had already done are repeated.
      for (const [done, at] of newest)
        if (done >= step) {
          earlier.set(done, at);
          newest.delete(done);
        }
    }
    newest.set(step, index);
  });
  const x = [...new Set([...newest.keys(), ...earlier.keys()])].sort((a, b) => a - b);
  const spans = runs(data.redone ?? []).map(([first, last]) => [data.step[first], data.step[last]]);
  // In uPlot, null makes a gap in the line. Undefined, for a step that only the other pass has, makes none.
  const list = (from, missing) => names.map((name) => x.map((step) => (from.has(step) ? (data[name]?.[from.get(step)] ?? null) : missing(step))));
  const before = (step) => (spans.some(([first, last]) => first <= step && step <= last) ? undefined : null);
  return { x, values: list(newest, () => undefined), before: earlier.size ? list(earlier, before) : null, spans, borders };
}
