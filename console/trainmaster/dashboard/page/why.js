// Shows why a job isn't running: one sentence, the evidence, and what to do next.

import { ask } from "./api.js";
import { attribute, h } from "./dom.js";
import { command } from "./signin.js";

const WITHOUT = ["Running", "Succeeded"];
const AGAIN_MS = 10_000;

export function why({ url, signal }) {
  const element = h("section.card.why", { hidden: true, "aria-live": "polite" });
  let asked = false;
  let shown = "";
  let phase = null;

  async function read() {
    try {
      const found = await ask(url("why"), { signal });
      if (!WITHOUT.includes(phase)) fill(found);
    } catch (error) {
      if (signal.aborted) return;
      fill({ sentence: `Why isn't known: ${error.message}`, evidence: [], next: [], others: [], unread: [] });
    }
    setTimeout(() => {
      asked = false;
      if (!signal.aborted && phase && !WITHOUT.includes(phase)) askOnce();
    }, AGAIN_MS);
  }

  function askOnce() {
    if (asked) return;
    asked = true;
    read();
  }

  function fill(found) {
    // Unchanged parts stay, so that a focused button keeps the focus.
    const now = JSON.stringify(found);
    if (now === shown) return;
    shown = now;
    element.hidden = false;
    element.replaceChildren(...[
      h("h2", found.certainty === "likely" ? "Why (likely)" : "Why"),
      h("p.lead", found.sentence),
      found.evidence.length > 0 && h("ul.evidence-list", found.evidence.map((line) => h("li", line))),
      found.next.length > 0 && h("h3", "What to do next"),
      found.next.length > 0 && h("ol.steps", found.next.map((step) => h("li", h("span", step.text), step.command && command(step.command)))),
      found.others.length > 0 && h("details", h("summary", `Also seen (${found.others.length})`), h("ul", found.others.map((line) => h("li", line)))),
      found.unread.length > 0 && h("p.muted", `Not read: ${found.unread.join("; ")}`),
    ].filter(Boolean));
  }

  return {
    element,
    update: ({ row, live, gone }) => {
      attribute(element, "data-phase", row.phase);
      if (phase !== row.phase) {
        phase = row.phase;
        if (WITHOUT.includes(phase)) {
          element.hidden = true;
          shown = "";
        }
      }
      if (!WITHOUT.includes(phase) && live && !gone) askOnce();
    },
  };
}
