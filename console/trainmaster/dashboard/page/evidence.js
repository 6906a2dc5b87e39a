// Shows the evidence of failed attempts. In the stacks of a hang, ranks that differ from the others come first.

import { ask } from "./api.js";
import { copyButton, h, table } from "./dom.js";
import { cause, clock, count, culprit, firstLine, known, ranges, seconds, whole } from "./format.js";
import { standing } from "./rank.js";

export function evidence({ url, signal }) {
  const element = h("section.cards");
  let failures = null;

  async function read() {
    try {
      const { items } = await ask(url("evidence"), { signal });
      element.replaceChildren(...(items.length ? [...items].sort((a, b) => b.attempt - a.attempt).map(card)
        : [h("div.empty", h("h2", "No attempt has failed"), h("p", "Evidence of a failed attempt is kept here: who failed first, every worker's report, the stacks of a hang."))]));
    } catch (error) {
      if (signal.aborted) return;
      element.replaceChildren(h("p.note", error.message));
    }
  }

  return {
    element,
    update: ({ attempts }) => {
      const now = attempts.filter((one) => one.failure).length;
      if (now === failures) return;
      failures = now;
      read();
    },
  };
}

function card(one, at) {
  const newest = at === 0;
  const failure = one.failure ?? {};
  const groups = grouped(one.ranks ?? {}, failure.rank);
  const workers = Object.entries(one.workers ?? {});
  const logs = Object.entries(one.logs ?? {});
  return h("details.card.evidence", { open: newest },
    h("summary", h("h2", `Attempt ${one.attempt}: ${cause(failure)}`), h("span.muted", `${failure.exception ? `${culprit(failure)}, ` : ""}${clock(seconds(failure.failedAt))}`)),
    groups.length > 0 && h("h3", groups.length > 1 ? "Stacks, different ones first" : "Stacks"),
    groups.map((group, at) => h("details", { open: at === 0 },
      h("summary", h("strong", `${group.ranks.length > 1 ? "Ranks" : "Rank"} ${ranges(group.ranks)}`), ` ${stood(group.states)}`,
        group.ranks.length > 1 && h("span.muted", `, ${count(group.ranks.length, "rank")} alike`)),
      h("pre", { tabindex: 0 }, group.states[0].text || "No stacks"), copyButton(() => group.states[0].text ?? ""))),
    workers.length > 0 && h("h3", "Workers' reports"),
    workers.length > 0 && table(`Workers' reports of attempt ${one.attempt}`, ["Worker", "State", "Reason", "Rank", "Exit code", "Error"],
      h("tbody", workers.map(([worker, report]) => h("tr", h("th", { scope: "row" }, worker),
        [report.state, report.reason, report.rank, report.exitCode, firstLine(report.error)].map((cell) => h("td", String(cell ?? ""))))))),
    logs.map(([worker, text]) => h("details", h("summary", `The log of worker ${worker} ends`), h("pre", { tabindex: 0 }, text))));
}

/** Returns the state of a group of ranks, with the steps of all of them. */
function stood(states) {
  const steps = states.map((one) => one.step).filter(known).sort((a, b) => a - b);
  return steps[0] === steps.at(-1) ? standing(states[0]) : `steps ${whole(steps[0])} to ${whole(steps.at(-1))}`;
}

/** Groups ranks with equal stacks. The group with the rank that failed first comes first, then the smallest groups. */
function grouped(ranks, first) {
  const groups = new Map();
  for (const [rank, state] of Object.entries(ranks)) {
    // Addresses, line counts and thread ids differ between ranks in the same state.
    const key = `${state.waits ?? ""} ${(state.text ?? "").replace(/0x[\da-f]+|\d+/gi, "#")}`;
    const group = groups.get(key) ?? { ranks: [], states: [] };
    group.ranks.push(Number(rank));
    group.states.push(state);
    groups.set(key, group);
  }
  const has = (group) => group.ranks.includes(first);
  return [...groups.values()].sort((a, b) => has(b) - has(a) || a.ranks.length - b.ranks.length);
}
