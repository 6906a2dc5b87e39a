// Shows where a job's time went: one bar with goodput's categories, and their meanings.

import { attribute, h, keyed, text } from "./dom.js";
import { CATEGORIES, duration, known, percent, seconds } from "./format.js";

// In seconds. The status is written less often than once a second.
const UNBOOKED = 20;

export function timeSpent() {
  const bar = h("div.spent-bar", { "aria-hidden": "true" });
  const legend = h("ul.spent-legend");
  const meanings = h("dl.meanings");
  const sentence = h("span.muted");
  const element = h("section.card.spent", { "aria-labelledby": "spent-title" },
    h("div.card-head", h("h2", { id: "spent-title" }, "Where every second went"), sentence), bar, legend,
    h("details", h("summary.muted", "Categories"), meanings));

  function update({ status, row, live }) {
    const spent = Object.keys(CATEGORIES).map((name) => ({ name, seconds: status.timeSpent?.[name] ?? 0 })).filter((one) => one.seconds > 0);
    const all = spent.reduce((sum, one) => sum + one.seconds, 0);
    element.hidden = all === 0;
    if (element.hidden) return;
    const share = (one) => one.seconds / all;
    // If a job waits or reports no progress, its newest time isn't accounted for yet.
    const since = live && !row.completedAt ? Date.now() / 1000 - seconds(status.timeSpent.until) : 0;
    text(sentence, `${duration(all)} in all${since > UNBOOKED ? `, last ${duration(since)} not accounted` : ""}${known(row.goodput) ? `, goodput ${percent(row.goodput, 1)}` : ""}`);
    keyed(bar, spent, (one) => one.name, (one) => h("span.part", { "data-category": one.name }, h("span")), (part, one) => {
      // If the flex growths sum to less than 1, they leave room.
      part.style.flexGrow = String(100 * share(one));
      attribute(part, "title", `${one.name}: ${duration(one.seconds)}, ${percent(share(one), 1)}`);
      text(part.firstChild, share(one) > 0.12 ? `${one.name} ${percent(share(one))}` : "");
    });
    keyed(legend, spent, (one) => one.name,
      (one) => h("li", h("span.swatch", { "data-category": one.name }), h("span.category", one.name),
        h("span.amount"), h("span.amount.muted")),
      (item, one) => {
        text(item.children[2], duration(one.seconds));
        text(item.children[3], percent(share(one), 1));
      });
    keyed(meanings, spent, (one) => one.name, (one) => h("div", h("dt", one.name), h("dd", CATEGORIES[one.name])), () => {});
  }

  return { element, update };
}
