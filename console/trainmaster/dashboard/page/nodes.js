// Shows the nodes that jobs blame for failures or avoid.

import { ask } from "./api.js";
import { attribute, h, icon, keyed, table, text } from "./dom.js";
import { UNKNOWN, count, jobPath, known, whole } from "./format.js";

const AGAIN_MS = 10_000;

export function show(main, { viewer, signal }) {
  document.title = "Nodes · Trainmaster";
  const body = h("tbody");
  const note = h("p.note", { hidden: true });
  const summary = h("span.muted");
  const empty = h("section.empty", { hidden: true }, h("h2", "No node stands out"), h("p", "Nodes on which jobs failed are listed here."));
  const card = h("section.card.table-card", table("Nodes", ["Node", "State", "Failures#", "Blamed by", "Avoided by", "Accelerators#", "Runs now"], body));
  main.append(h("div.card-head.page-head", h("h1", "Nodes"), summary), note, empty, card);

  function links(cell, jobs, extra) {
    keyed(cell, jobs ?? [], (job) => `${job.namespace}/${job.name}`, (job) => h("span.job-link", h("a", { href: jobPath(job.namespace, job.name) }, job.name), h("span.muted")),
      (link, job) => text(link.lastChild, ` ${job.namespace}${extra?.(job) ?? ""}`));
  }

  function fill(found) {
    const nodes = [...found.nodes].sort((a, b) => b.failures - a.failures || b.avoidedBy.length - a.avoidedBy.length || (a.name < b.name ? -1 : 1));
    note.hidden = !found.why;
    text(note, found.why ?? "");
    empty.hidden = nodes.length > 0;
    card.hidden = nodes.length === 0;
    text(summary, nodes.length ? `${count(nodes.length, "node")}, ${whole(nodes.filter((one) => one.failures).length)} blamed, ${whole(nodes.filter((one) => one.avoidedBy.length).length)} avoided` : "");
    keyed(body, nodes, (one) => one.name, () => h("tr", h("th", { scope: "row", class: "code" }), h("td"), h("td.number"), h("td"), h("td"), h("td.number"), h("td")), (line, one) => {
      text(line.children[0], one.name);
      const ready = one.ready === null ? UNKNOWN : one.ready ? "Ready" : "Not ready";
      if (line.dataset.ready !== ready) {
        line.dataset.ready = ready;
        line.children[1].replaceChildren(h("span.badge", { "data-phase": one.ready === false ? "Failed" : "Suspended" }, one.ready !== null && icon(one.ready ? "Succeeded" : "Failed"), ready));
      }
      text(line.children[2], one.failures ? whole(one.failures) : "");
      links(line.children[3], one.blamedBy, (job) => ` (${whole(job.failures)})`);
      links(line.children[4], one.avoidedBy);
      text(line.children[5], known(one.gpus) ? whole(one.gpus) : UNKNOWN);
      links(line.children[6], running(one.pods ?? []), (job) => (job.workers > 1 ? ` (${count(job.workers, "worker")})` : ""));
      attribute(line, "class", one.avoidedBy.length ? "avoided" : null);
    });
  }

  async function loop() {
    const only = viewer.allNamespaces ? "" : `?namespace=${encodeURIComponent(viewer.namespace)}`;
    while (!signal.aborted) {
      try {
        if (!document.hidden) fill(await ask(`/api/nodes${only}`, { signal }));
      } catch (error) {
        if (signal.aborted) return;
        note.hidden = false;
        text(note, error.message);
      }
      await new Promise((done) => setTimeout(done, AGAIN_MS));
    }
  }
  loop();
}

/** Returns the pods' jobs, with the number of workers of each. */
function running(pods) {
  const jobs = {};
  for (const { namespace, job } of pods) (jobs[`${namespace}/${job}`] ??= { namespace, name: job, workers: 0 }).workers++;
  return Object.values(jobs);
}
