// Shows a job's attempts on a timeline: a segment for each attempt, and a mark for its failures. Below, identical
// failures are one entry, with the exception first.

import { attribute, h, icon, keyed, text } from "./dom.js";
import { ZONE, cause, clock, count, culprit, duration, firstLine, known, roundTimes, seconds, whole } from "./format.js";

// Width of a mark (CSS pixels). Marks that are closer are drawn as one.
const MARK = 68;
// The newest entries are visible, the others are folded.
const OPEN = 3;
const CALM = { Succeeded: "succeeded", Running: "running", Starting: "running", Joined: "running", Failed: "failed", Disrupted: "disrupted" };

export function timeline() {
  const line = h("ol.line-of-time", { "aria-label": "Attempts" });
  const marks = h("div.marks");
  const ticks = h("div.ticks", { "aria-hidden": "true" });
  const newest = h("ol.failures");
  const older = h("ol.failures");
  const folded = h("details", h("summary.muted"), older);
  const summary = h("span.muted");
  const element = h("section.card.timeline", { hidden: true, "aria-labelledby": "timeline-title" },
    h("div.card-head", h("h2", { id: "timeline-title" }, "Attempts"), summary), h("div.time-box", marks, line, ticks), newest, folded);

  function update({ row, attempts, live, gone, goneAt }) {
    element.hidden = attempts.length === 0;
    if (element.hidden) return;
    const from = seconds(row.createdAt) ?? seconds(attempts[0].startedAt);
    const ended = seconds(row.completedAt) ?? seconds(row.deletedAt) ?? (gone ? goneAt : null);
    const last = attempts.at(-1);
    const to = Math.max(from + 1, ended ?? (live ? Date.now() / 1000 : (seconds(last.endedAt) ?? from)));
    const part = (at) => Math.max(0, Math.min(1, (at - from) / (to - from)));

    const width = line.clientWidth || 600;
    const starts = attempts.map((one, at) => seconds(one.startedAt) ?? seconds(attempts[at - 1]?.endedAt) ?? from);
    keyed(line, attempts, (one) => one.attempt, () => h("li", h("span.starting"), h("span.label")), (item, one) => {
      const start = starts[attempts.indexOf(one)];
      const end = seconds(one.endedAt) ?? to;
      // The start of an ended attempt's ranks may be unknown.
      const up = seconds(one.runningAt) ?? (one === last && !one.endedAt ? end : start);
      const outcome = CALM[one.outcome] ?? "stopped";
      attribute(item, "class", `segment ${outcome}`);
      item.style.left = `${part(start) * 100}%`;
      item.style.width = `${(part(end) - part(start)) * 100}%`;
      item.firstChild.style.width = `${end > start ? Math.min(100, ((up - start) / (end - start)) * 100) : 0}%`;
      const steps = known(one.firstStep) && known(one.lastStep) ? `, steps ${one.firstStep} to ${one.lastStep}` : "";
      const members = one.trainingWith ? ` with ${one.trainingWith}` : "";
      const words = `Attempt ${one.attempt}: ${one.outcome}, ${duration(end - start)} from ${clock(start)}${members}${steps}`;
      attribute(item, "title", words);
      attribute(item, "aria-label", words);
      const wide = (part(end) - part(start)) * width;
      text(item.lastChild, wide > 85 ? `Attempt ${one.attempt}` : wide > 32 ? one.attempt : "");
    });

    const failed = attempts.filter((one) => one.failure);
    const groups = grouped(failed);
    const clusters = [];
    for (const one of failed) {
      const at = part(seconds(one.failure.failedAt) ?? seconds(one.endedAt) ?? from);
      const near = clusters.at(-1);
      if (near && (at - near.from) * width < MARK) near.all.push(one);
      else clusters.push({ all: [one], from: at });
    }
    keyed(marks, clusters, (one) => one.all[0].attempt, () => h("a.mark", { onclick: (event) => {
      event.preventDefault();
      const item = document.getElementById(event.currentTarget.hash.slice(1));
      if (older.contains(item)) folded.open = true;
      item.scrollIntoView({ block: "nearest" });
      item.focus();
    } }, icon("Failed"), h("span")), (mark, { all, from: at }) => {
      mark.style.left = `${at * 100}%`;
      mark.classList.toggle("counted", all.some((one) => one.failure.counted !== false));
      const which = all.length > 1 ? `${all[0].attempt}–${all.at(-1).attempt}` : all[0].attempt;
      text(mark.lastChild, which);
      const words = all.length > 1 ? `Attempts ${which} failed. The last: ${cause(all.at(-1).failure)}`
        : `Attempt ${all[0].attempt} failed: ${culprit(all[0].failure)}. ${cause(all[0].failure)}`;
      attribute(mark, "aria-label", words);
      attribute(mark, "title", words);
      attribute(mark, "href", `#failure-${groups.find((group) => group.all.includes(all.at(-1))).last.attempt}`);
    });
    keyed(newest, groups.slice(0, OPEN), (group) => group.all[0].attempt, makeFailure, fillFailure);
    keyed(older, groups.slice(OPEN), (group) => group.all[0].attempt, makeFailure, fillFailure);
    folded.hidden = groups.length <= OPEN;
    text(folded.firstChild, `${count(groups.length - OPEN, "earlier failure")}`);

    keyed(ticks, roundTimes(from, to, Math.max(2, Math.floor(width / (to - from > 86_400 ? 110 : 75)))), ([at]) => at, () => h("span"), (tick, [at, label]) => {
      tick.style.left = `${part(at) * 100}%`;
      text(tick, label);
    });
    const all = groups.reduce((sum, group) => sum + group.times, 0);
    text(summary, `${count(attempts.length, "attempt")} in ${duration(to - from)}${all ? `, ${count(all, "failure")}` : ""}, times in ${ZONE}`);
  }

  return { element, update };
}

/** Groups identical failures in a row, newest first. The status counts failures that it no longer lists. */
function grouped(failed) {
  const groups = [];
  for (const one of failed) {
    const { reason, rank, worker, exitCode, counted } = one.failure;
    // Numbers differ between identical failures: steps, addresses, times.
    const key = JSON.stringify([reason, rank ?? worker, exitCode, counted !== false, cause(one.failure).replace(/\d+/g, "#")]);
    const group = groups.at(-1)?.key === key ? groups.at(-1) : groups[groups.push({ key, all: [], times: 0 }) - 1];
    group.all.push(one);
    group.last = one;
    group.times = Math.max(group.all.length, one.failure.count ?? 1);
  }
  return groups.reverse();
}

function makeFailure() {
  return h("li", { tabindex: -1 },
    h("span.number", icon("Failed"), h("span")),
    h("div", h("p.who", h("strong"), h("span.muted")), h("p.message"),
      h("details", h("summary", "Details"), h("pre", { tabindex: 0 }))));
}

function fillFailure(item, { all, last, times }) {
  const { failure } = last;
  const [who, message, more] = item.lastChild.children;
  const { seconds: took, repeatedSteps: steps } = failure.recovery ?? {};
  const redone = known(steps) ? `, ${count(steps, "step")} repeated` : "";
  const first = seconds(all[0].failure.failedAt);
  const facts = [
    times > 1 && `${whole(times)} times`,
    times > 1 && all.length > 1 ? `${clock(first)} to ${clock(seconds(failure.failedAt))}` : clock(seconds(failure.failedAt)),
    failure.counted === false && "not counted as a restart",
    known(took) && `trained again ${duration(took)} later${redone}`,
  ];
  attribute(item, "id", `failure-${last.attempt}`);
  item.classList.toggle("counted", failure.counted !== false);
  text(item.firstChild.lastChild, all.length > 1 ? `${all[0].attempt}–${last.attempt}` : last.attempt);
  text(who.firstChild, failure.exception ?? culprit(failure));
  text(who.lastChild, ` ${facts.filter(Boolean).join(", ")}`);
  text(message, failure.exception ? [failure.location && `at ${failure.location}`, culprit(failure)].filter(Boolean).join(" · ") : firstLine(failure.message));
  const rest = failure.exception ? (failure.message ?? "") : (failure.message ?? "").split("\n").slice(1).join("\n");
  more.hidden = !rest;
  text(more.lastChild, rest);
}
