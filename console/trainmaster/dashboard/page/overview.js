// Shows the first tab: why a job waits, its attempts, where its time went, its curves, and its ranks' heat map.

import { curves } from "./curves.js";
import { h } from "./dom.js";
import { heat } from "./heat.js";
import { timeline } from "./timeline.js";
import { timeSpent } from "./time_spent.js";
import { why } from "./why.js";

export function overview(context) {
  const parts = [why(context), timeline(context), timeSpent(context), curves(context), heat(context)];
  const [reasons, attempts, spent, ...charts] = parts.map((part) => part.element);
  return {
    element: h("div.cards", reasons, h("div.beside", attempts, spent), charts),
    update: (state) => parts.forEach((part) => part.update(state)),
  };
}
