// Shows a job's attempts on a timeline: a segment for each attempt, and a mark with a message for each failure.

import { attribute, h, icon, keyed, text } from "./dom.js";
import { clock, clockOnly, count, culprit, duration, firstLine, known, seconds } from "./format.js";

const TICKS = 6;
// Marks that are closer than this are placed in two rows.
const NEAR = 0.025;
const CALM = { Succeeded: "succeeded", Running: "running", Starting: "running", Joined: "running", Failed: "failed", Disrupted: "disrupted" };

export function timeline() {
  const line = h("ol.line-of-time", { "aria-label": "Attempts" });
  const marks = h("div.marks");
  const ticks = h("div.ticks", { "aria-hidden": "true" });
  const failures = h("ol.failures");
  const summary = h("span.muted");
  const element = h("section.card.timeline", { "aria-labelledby": "timeline-title" },
    h("div.card-head", h("h2", { id: "timeline-title" }, "Attempts"), summary),
    h("div.time-box", marks, line, ticks), failures);

  function update({ row, attempts, live, gone, goneAt }) {
    element.hidden = attempts.length === 0;
    if (element.hidden) return;
    const from = seconds(row.createdAt) ?? seconds(attempts[0].startedAt);
    const ended = seconds(row.completedAt) ?? seconds(row.deletedAt) ?? (gone ? goneAt : null);
    const last = attempts.at(-1);
    const to = Math.max(from + 1, ended ?? (live ? Date.now() / 1000 : (seconds(last.endedAt) ?? from)));
    const part = (at) => Math.max(0, Math.min(1, (at - from) / (to - from)));

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
      text(item.lastChild, part(end) - part(start) > 0.12 ? `Attempt ${one.attempt}` : one.attempt);
    });

    const failed = attempts.filter((one) => one.failure);
    let before = -1;
    let level = 0;
    const places = new Map();
    for (const one of failed) {
      const at = part(seconds(one.failure.failedAt) ?? seconds(one.endedAt) ?? from);
      level = at - before < NEAR ? (level + 1) % 2 : 0;
      places.set(one, [at, level]);
      before = at;
    }
    keyed(marks, failed, (one) => one.attempt, (one) => h("a.mark", { href: `#failure-${one.attempt}`, onclick: (event) => {
      event.preventDefault();
      const item = document.getElementById(`failure-${one.attempt}`);
      item.scrollIntoView({ block: "nearest" });
      item.focus();
    } }, icon("Failed"), h("span")), (mark, one) => {
      const [at, height] = places.get(one);
      mark.style.left = `${at * 100}%`;
      mark.classList.toggle("counted", one.failure.counted !== false);
      mark.classList.toggle("raised", height === 1);
      text(mark.lastChild, one.attempt);
      const words = `Attempt ${one.attempt} failed: ${culprit(one.failure)}. ${firstLine(one.failure.message)}`;
      attribute(mark, "aria-label", words);
      attribute(mark, "title", words);
    });
    keyed(failures, [...failed].reverse(), (one) => one.attempt, makeFailure, fillFailure);

    // Labels are at least a second apart, so that none appears twice.
    const many = Math.max(1, Math.min(innerWidth < 600 ? 3 : TICKS, Math.floor(to - from)));
    const short = to - from < 86_400;
    keyed(ticks, [...Array(many + 1).keys()], (at) => at, () => h("span"), (tick, at) => {
      tick.style.left = `${(at / many) * 100}%`;
      text(tick, short ? clockOnly(from + ((to - from) * at) / many).slice(0, to - from > 1800 ? 5 : 8) : clock(from + ((to - from) * at) / many));
    });
    text(summary, `${count(attempts.length, "attempt")} in ${duration(to - from)}${failed.length ? `, ${count(failed.length, "failure")}` : ""}`);
  }

  return { element, update };
}

function makeFailure(one) {
  return h("li", { id: `failure-${one.attempt}`, tabindex: -1 },
    h("span.number", icon("Failed"), h("span", one.attempt)),
    h("div", h("p.who", h("strong"), h("span.muted")), h("p.message"),
      h("details", h("summary", "Last lines"), h("pre", { tabindex: 0 }))));
}

function fillFailure(item, { failure }) {
  const [who, message, more] = item.lastChild.children;
  const lines = (failure.message ?? "").split("\n");
  const { seconds: took, repeatedSteps: steps } = failure.recovery ?? {};
  const redone = known(steps) ? `, ${count(steps, "step")} repeated` : "";
  const after = known(took) ? `, trained again ${duration(took)} later${redone}` : "";
  item.classList.toggle("counted", failure.counted !== false);
  text(who.firstChild, culprit(failure));
  text(who.lastChild, ` ${clock(seconds(failure.failedAt))}${failure.counted === false ? ", not counted as a restart" : ""}${after}`);
  text(message, lines[0]);
  more.hidden = lines.length < 2;
  text(more.lastChild, lines.slice(1).join("\n"));
}
