// Shows the head of a job's page: its phase and progress, and three actions.

import { ask } from "./api.js";
import { badge, ending, setBadge, share } from "./columns.js";
import { announce, attribute, button, h, icon, text } from "./dom.js";
import { UNKNOWN, clock, count, duration, figure, known, percent, seconds, trouble, whole } from "./format.js";

const PHONE = matchMedia("(max-width: 760px)");
const ACTIONS = {
  suspend: ["Suspend", "Its ranks save a checkpoint and stop, and its pods release their nodes."],
  resume: ["Resume", "It gets pods again."],
  restart: ["Restart", "Its ranks save a checkpoint and start again in the same pods. This counts as no restart."],
};

export function header({ namespace, name, url, signal, state }) {
  const phase = badge("Pending");
  const reason = h("span.muted.reason");
  const said = h("p.note", { role: "status", hidden: true });
  const wrong = h("p.trouble", { hidden: true }, icon("warning"), h("span"));
  const buttons = Object.fromEntries(Object.entries(ACTIONS).map(([id, [title]]) =>
    [id, button({ hidden: true, onclick: () => confirm(id) }, title)]));
  const dialog = h("dialog.small", { "aria-labelledby": "confirm-title" });
  const fill = h("span.fill");
  const track = h("span.track", { role: "progressbar", "aria-label": "Progress", "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  const facts = {};
  const fact = (id, title) => h("div", { class: `fact ${id}` }, (facts[`${id}Title`] = h("dt", title)),
    h("dd", (facts[id] = h("span.value")), (facts[`${id}More`] = h("span.more"))));
  let tiles = null;
  let brief = null;
  const element = h("header.job-head", {},
    h("div.title", {},
      h("p.crumbs", h("a", { href: "/" }, "Jobs"), " / ", h("a", { href: `/?namespace=${encodeURIComponent(namespace)}` }, namespace)),
      h("div.title-line", h("h1", name), phase, reason),
      h("div.actions", Object.values(buttons))),
    said, wrong,
    (tiles = h("details.figures-fold", { open: !PHONE.matches }, (brief = h("summary")), h("dl.facts", h("div.fact.progress", h("dt", "Progress"), h("dd", {},
      (facts.progress = h("span.value")), track, (facts.progressMore = h("span.more")))), fact("eta", "Time left"), fact("speed", "Speed"), fact("loss", "Loss"),
      fact("goodput", "Goodput"), fact("attempt", "Attempt"), fact("workers", "Workers")))),
    dialog);
  PHONE.addEventListener("change", () => { tiles.open = !PHONE.matches; }, { signal });

  function confirm(id) {
    const [title, what] = ACTIONS[id];
    dialog.replaceChildren(h("div", h("h2", { id: "confirm-title" }, `${title} ${name}?`),
      h("p", what, id === "resume" && ` ${state.resumes}`), id === "suspend" && state.warning && h("p.note", state.warning),
      h("form", { method: "dialog", class: "buttons", onsubmit: (event) => event.submitter.value && act(id) },
        h("button", { value: "" }, "Cancel"), h("button", { value: id, class: "primary" }, title))));
    dialog.showModal();
  }

  async function act(id) {
    buttons[id].disabled = true;
    try {
      // Another job may have this name now.
      say((await ask(url(id, { uid: state.row.uid }), { method: "POST", body: {}, signal })).sentence);
    } catch (error) {
      if (!signal.aborted) say(error.message);
    }
    buttons[id].disabled = false;
  }

  function say(sentence) {
    text(said, sentence);
    said.hidden = false;
    announce(sentence);
  }

  function update({ row, status, spec, live, gone, mayChange }) {
    const deleted = gone || !live;
    const sentence = deleted ? `${ending(row)}.`.replace(/\.\.$/, ".") : trouble(row);
    // A screen reader announces trouble once, not each second.
    if (sentence && wrong.hidden && !deleted) announce(sentence);
    wrong.hidden = !sentence;
    wrong.classList.toggle("ended", deleted);
    text(wrong.lastChild, sentence);
    const from = gone ? "" : ", shown from the history";
    const ended = row.phase === "Succeeded" || row.phase === "Failed";
    setBadge(phase, row.phase, Boolean(!deleted && sentence));
    text(reason, deleted ? `deleted${row.deletedAt ? ` ${clock(seconds(row.deletedAt))}` : ""}${from}` : row.reason === row.phase ? "" : row.reason);
    const fixed = deleted || ended || !mayChange;
    buttons.suspend.hidden = fixed || row.suspended;
    buttons.resume.hidden = fixed || !row.suspended;
    buttons.restart.hidden = fixed || row.phase !== "Running";

    // A waiting job has no figures yet, so the reason comes first.
    tiles.hidden = !ended && !row.running && !known(row.step);
    const done = share(row);
    fill.style.width = `${(done ?? 0) * 100}%`;
    attribute(track, "data-phase", row.phase);
    attribute(track, "aria-valuenow", done === null ? null : Math.floor(done * 100));
    const figures = {
      progress: [done === null ? UNKNOWN : percent(Math.floor(done * 1000) / 1000, done < 1 ? 1 : 0), known(row.step) ? `step ${whole(row.step)}${row.totalSteps ? ` of ${whole(row.totalSteps)}` : ""}` : "no step yet"],
      eta: left(row, ended),
      speed: [known(row.samplesPerSecond) && !row.stall ? `${figure(row.samplesPerSecond)}/s` : UNKNOWN, "samples"],
      loss: [figure(row.loss), known(status.progress?.epoch) ? `epoch ${figure(status.progress.epoch)}` : ""],
      goodput: [percent(row.goodput, 1), "of its time in new steps"],
      attempt: [row.attempt ? whole(row.attempt) : UNKNOWN, restarts(row, spec)],
      workers: [ended ? whole(row.desired) : known(row.running) ? `${whole(row.running)}/${whole(row.desired)}` : UNKNOWN, ranks(spec)],
    };
    text(brief, [...figures.progress, ...(ended ? figures.eta.slice(0, 1) : row.etaSeconds && !row.stall ? [`${figures.eta[0]} left`] : [])].join(", "));
    text(facts.etaTitle, ended ? "Duration" : "Time left");
    for (const [id, [value, more]] of Object.entries(figures)) {
      text(facts[id], value);
      text(facts[`${id}More`], more);
    }
  }

  return { element, update };
}

function left(row, ended) {
  const from = seconds(row.startedAt);
  const to = seconds(row.completedAt);
  if (ended && known(from) && known(to)) return [duration(to - from), `ended ${clock(to)}`];
  if (row.phase !== "Running" || row.stall || !known(row.etaSeconds)) return [UNKNOWN, known(from) ? `since ${clock(from)}` : "not started"];
  return [duration(row.etaSeconds), `until ${clock(Date.now() / 1000 + row.etaSeconds).replace(/:\d\d$/, "")}`];
}

function restarts(row, spec) {
  const most = spec.failurePolicy?.maxRestarts;
  const counted = `${whole(row.restarts)}${known(most) ? ` of ${whole(most)}` : ""} restarts`;
  return row.disruptions ? `${counted}, ${count(row.disruptions, "disruption")}` : counted;
}

function ranks(spec) {
  const each = spec.processesPerWorker ?? spec.resources?.gpus;
  return typeof each === "number" && typeof spec.workers === "number" ? `${whole(each * spec.workers)} ranks` : "up";
}
