// Selects and sorts the jobs to show. The URL contains the choice, so users can share it.

import { PHASES, trouble } from "./format.js";

/** A chip for running jobs that aren't well. */
export const TROUBLE = "In trouble";

export class Filters {
  constructor(search) {
    const found = new URLSearchParams(search);
    this.phases = new Set((found.get("phase") ?? "").split(",").filter((phase) => [TROUBLE, ...PHASES, "Deleted"].includes(phase)));
    this.namespace = found.get("namespace") ?? "";
    this.query = found.get("q") ?? "";
    this.sort = found.get("sort") ?? "created";
    this.descending = found.get("order") ? found.get("order") === "down" : this.sort === "created";
    this.deleted = found.get("deleted") === "1";
  }

  /** Returns the URL's query for this choice, without defaults. */
  toSearch() {
    const search = new URLSearchParams();
    if (this.phases.size) search.set("phase", [...this.phases].join(","));
    if (this.namespace) search.set("namespace", this.namespace);
    if (this.query) search.set("q", this.query);
    if (this.sort !== "created" || !this.descending) {
      search.set("sort", this.sort);
      search.set("order", this.descending ? "down" : "up");
    }
    if (this.deleted) search.set("deleted", "1");
    const all = search.toString();
    return all && `?${all}`;
  }

  get any() {
    return Boolean(this.phases.size || this.namespace || this.query);
  }

  clear() {
    this.phases.clear();
    this.namespace = this.query = "";
  }

  /** Returns the rows to show, in order, and the number of rows in each phase before the filter by phase. */
  apply(rows, columns) {
    const words = this.query.toLowerCase().split(/\s+/).filter(Boolean);
    const counts = {};
    const chosen = [];
    for (const row of rows) {
      if (this.namespace && row.namespace !== this.namespace) continue;
      if (words.length) {
        const all = `${row.namespace}/${row.name} ${row.failure ?? ""} ${row.queue ?? ""} ${row.reason ?? ""} ${row.waits ?? ""}`.toLowerCase();
        if (!words.every((word) => all.includes(word))) continue;
      }
      const phase = row.deletedAt ? "Deleted" : row.phase;
      counts[phase] = (counts[phase] ?? 0) + 1;
      const wrong = !row.deletedAt && trouble(row);
      if (wrong) counts[TROUBLE] = (counts[TROUBLE] ?? 0) + 1;
      if (!this.phases.size || this.phases.has(phase) || (wrong && this.phases.has(TROUBLE))) chosen.push(row);
    }
    const column = columns.find((one) => one.id === this.sort) ?? columns.at(-1);
    const by = this.descending ? -1 : 1;
    const keys = new Map(chosen.map((row) => [row, column.sort(row)]));
    chosen.sort((one, other) => by * order(keys.get(one), keys.get(other), by) || order(one.name, other.name, 1));
    return { rows: chosen, counts };
  }
}

/** Compares two values. Unknown values are last in both directions. */
function order(one, other, by) {
  const missing = (one === null || one === undefined) - (other === null || other === undefined);
  if (missing) return missing * by;
  return one < other ? -1 : one > other ? 1 : 0;
}
