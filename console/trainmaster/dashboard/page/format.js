// Formats figures for people. Unknown values become a dash.

export const UNKNOWN = "–";

export const PHASES = ["Running", "Restarting", "Starting", "Pending", "Suspending", "Suspended", "Failed", "Succeeded"];

/** The categories of a job's time (status.timeSpent), in the order of the bar, with their meanings. */
export const CATEGORIES = {
  productive: "new steps",
  evaluate: "evaluation",
  checkpoint: "waiting for checkpoints",
  data: "waiting for data",
  recompute: "repeated steps after a restart",
  stall: "hung, until detected",
  restart: "from a failure to the next attempt",
  load: "imports, model and data, until the first step",
  unreported: "loading or training: the script reports no steps",
  rendezvous: "until all ranks were up",
  pull: "images and volumes",
  schedule: "waiting for nodes",
  queue: "waiting in the queue",
  finish: "from the last step to the end",
  unobserved: "no operator was running",
  suspended: "suspended",
};

const WHOLE = new Intl.NumberFormat("en");
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DATE = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

export const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export const whole = (value) => (known(value) ? WHOLE.format(value) : UNKNOWN);

/** Formats four significant digits: 0.003211, 2.314, 1,234. */
export function figure(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 1000) return WHOLE.format(Math.round(value));
  if (size !== 0 && size < 0.001) return value.toExponential(2).replace("e-", "e−");
  return value.toLocaleString("en", { maximumSignificantDigits: 4, minimumSignificantDigits: size ? 3 : 1 });
}

/** Formats an axis' figure: 0.5, 10, 3e−4. */
export function tick(value) {
  if (value !== 0 && Math.abs(value) < 0.001) return String(Number(value.toPrecision(2))).replace("e-", "e−");
  // An axis has room for six characters: 14.25M.
  return value.toLocaleString("en", { maximumSignificantDigits: 4, ...(Math.abs(value) < 100_000 ? {} : { notation: "compact" }) });
}

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Returns the divisor and the name of the unit for values up to `most`: bytes become GiB, ratios become percent. */
export function unitOf(unit, most) {
  if (unit === "ratio") return [0.01, "%"];
  if (unit === "s") return most < 0.5 ? [0.001, "ms"] : most >= 600 ? [60, "min"] : [1, "s"];
  const [what, per] = unit.split("/");
  if (what !== "bytes") return [1, unit];
  const power = Math.max(0, Math.min(BYTES.length - 1, Math.floor(Math.log2(most || 1) / 10)));
  return [1024 ** power, BYTES[power] + (per ? `/${per}` : "")];
}

export const percent = (share, digits = 0) => (known(share) ? `${(share * 100).toFixed(digits)} %` : UNKNOWN);

/** Formats seconds in the two largest units: 4.2 s, 3 min 12 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 1) return seconds <= 0 ? "0 s" : `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const all = Math.round(seconds);
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => all >= size);
  const count = Math.floor(all / units[first][0]);
  const rest = units[first + 1] ? Math.floor((all % units[first][0]) / units[first + 1][0]) : 0;
  return rest ? `${count} ${units[first][1]} ${rest} ${units[first + 1][1]}` : `${count} ${units[first][1]}`;
}

/** Formats a step's time with three digits, so that ranks can be compared: 0.632 s, 1.17 s. */
export const stepTime = (value) => (!known(value) || value >= 100 ? duration(value) : value < 0.01 ? `${figure(value * 1000)} ms` : `${value.toPrecision(3)} s`);

/** Returns an RFC 3339 time in seconds since the epoch; null if it isn't a time. */
export function seconds(time) {
  const at = typeof time === "string" ? Date.parse(time) / 1000 : NaN;
  return Number.isNaN(at) ? null : at;
}

/** Formats a local time, with its day unless it is today. */
export function clock(at) {
  if (!known(at)) return UNKNOWN;
  const date = new Date(at * 1000);
  return date.toDateString() === new Date().toDateString() ? CLOCK.format(date) : dayClock(at);
}

export const dayClock = (at) => DAY.format(new Date(at * 1000));

export const clockOnly = (at) => CLOCK.format(new Date(at * 1000));

/** The viewer's time zone, in which all times are shown: UTC, UTC+2. */
export const ZONE = new Intl.DateTimeFormat("en", { timeZoneName: "shortOffset" }).formatToParts().find((part) => part.type === "timeZoneName").value.replace("GMT", "UTC").replace("+0", "");

export const INCREMENTS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800];

/** Returns at most `most` round local times between two times, as [time, label]. */
export function roundTimes(from, to, most) {
  const every = INCREMENTS.find((step) => (to - from) / step <= most) ?? Math.ceil((to - from) / most / 604_800) * 604_800;
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let at = Math.ceil((from - zone) / every) * every + zone; at <= to; at += every)
    ticks.push([at, every >= 86_400 ? DATE.format(at * 1000) : to - from > 86_400 ? dayClock(at) : clockOnly(at).slice(0, every < 60 ? 8 : 5)]);
  return ticks;
}

/** Cuts a long name in the middle, because the end often differs: bert-mrpc-…-7f3a. */
export const shortName = (name, most = 36) => (name.length > most ? `${name.slice(0, Math.ceil(most * 0.6) - 1)}…${name.slice(-Math.floor(most * 0.4))}` : name);

/** Formats an age. From ten on, only the largest unit is shown: 3 h 9 min, 15 h, 10 d. */
export function ago(at) {
  return known(at) ? brief(Math.max(10, Math.floor(Date.now() / 1000 - at))) : UNKNOWN;
}

/** Formats a duration; from ten on, only its largest unit is shown. */
export function brief(seconds) {
  const words = duration(seconds);
  return /^\d\d/.test(words) ? words.split(" ", 2).join(" ") : words;
}

export const count = (number, one, many = `${one}s`) => `${whole(number)} ${number === 1 ? one : many}`;

/** Formats [0,1,2,5] as "0–2, 5". */
export function ranges(numbers) {
  const parts = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = parts.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else parts.push([number, number]);
  }
  return parts.map(([from, to]) => (from === to ? from : `${from}–${to}`)).join(", ");
}

export function median(values) {
  const sorted = values.filter(known).sort((a, b) => a - b);
  if (!sorted.length) return null;
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** Describes a failure: the rank that failed first, how, and where. */
export function culprit(failure) {
  const who = known(failure.rank) ? `rank ${failure.rank}` : known(failure.worker) ? `worker ${failure.worker}` : null;
  const place = [who, failure.node && `on ${failure.node}`].filter(Boolean).join(" ");
  const code = known(failure.exitCode) && `exit code ${failure.exitCode}`;
  return [failure.reason ?? "Failed", [place, code].filter(Boolean).join(", ")].filter(Boolean).join(": ");
}

export const firstLine = (message) => (message ?? "").split("\n", 1)[0];

/** Describes what is wrong with a running job, such as a stall; empty if nothing is. */
export function trouble(row) {
  const { stall } = row;
  if (row.phase !== "Running" || !stall) return row.trouble || row.notice || "";
  const where = firstLine(stall.message);
  return stalled(stall) + (where && `: ${where}`);
}

/** Describes a stall: no step for 88 s (a step takes 0.05 s). */
export function stalled({ since, section, usualSeconds }) {
  const step = !section || section === "train";
  const age = Math.floor(Date.now() / 1000 - seconds(since));
  const usual = known(usualSeconds) ? ` (a ${step ? "step" : section} takes ${Number(usualSeconds.toPrecision(2))} s)` : "";
  return `no ${step ? "step" : `progress in ${section}`} for ${age < 120 ? `${Math.max(0, age)} s` : duration(age)}${usual}`;
}

/** Describes a failure in one line: the exception and its place in the user's code, or else the first line. */
export const cause = (failure) => (failure.exception ? [failure.exception, failure.location && `at ${failure.location}`].filter(Boolean).join(" ") : firstLine(failure.message) || failure.reason || "Failed");

export const jobPath = (namespace, name, uid) =>
  `/jobs/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}${uid ? `?uid=${encodeURIComponent(uid)}` : ""}`;
