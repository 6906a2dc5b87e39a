// Shows the lines of all ranks as they arrive. Only visible lines have elements. A viewer who scrolls up stays there.

import { follow } from "./api.js";
import { attribute, button, h, onFrame, save, text } from "./dom.js";
import { clockOnly, count, known } from "./format.js";
import { Rows } from "./rows.js";

const LINE = 20;
const MOST = 20_000;
const TAIL = 2000;

/** A view of lines. `only` is a fixed selection, such as {rank: 5}. */
export class LogView {
  constructor({ url, signal }, only = {}) {
    Object.assign(this, { url, outer: signal, only });
    this.lines = [];
    this.query = "";
    this.choice = {};
    this.follows = true;
    this.missed = 0;
    this.host = h("div.log-lines");
    this.box = h("div.log-box", { tabindex: 0, role: "log", "aria-live": "off", "aria-label": "Log" }, this.host);
    this.status = h("span.muted");
    this.down = button({ class: "newest", hidden: true, onclick: () => this.toNewest() });
    this.element = h("div.log-view", this.box, this.down);
    this.rows = new Rows({ host: this.host, scroller: this.box, height: LINE, key: (line) => line.number, make: makeLine, fill: fillLine });
    this.render = onFrame(() => this.renderNow());
    this.number = 0;
    this.box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    signal.addEventListener("abort", () => this.rows.close());
  }

  /** Reads the lines of another worker, rank or attempt. */
  read(choice = {}) {
    this.close();
    this.choice = choice;
    this.stream = new AbortController();
    this.problem = "";
    this.ended = false;
    const refused = (sentence) => { this.problem = sentence; this.render(); };
    follow(this.url("logs", { tail: TAIL, follow: 1, ...this.only, ...choice }), {
      // After an interruption, the dashboard sends the tail again.
      opened: () => { this.lines = []; this.problem = this.note = ""; this.render(); },
      note: ({ sentence }) => { this.note = `${sentence}: `; this.render(); },
      lines: (found) => this.add(found),
      end: () => { this.ended = true; this.render(); },
      problem: ({ sentence }) => refused(sentence),
      refused,
    }, AbortSignal.any([this.outer, this.stream.signal]));
  }

  close() {
    this.stream?.abort();
    this.stream = null;
  }

  add(found) {
    for (const line of found) this.lines.push({ ...line, number: this.number++ });
    if (this.lines.length > MOST) this.lines.splice(0, this.lines.length - MOST);
    if (!this.follows) this.missed += found.length;
    this.render();
  }

  search(query) {
    this.query = query.toLowerCase();
    this.render();
  }

  get shown() {
    return this.query ? this.lines.filter((line) => line.text.toLowerCase().includes(this.query)) : this.lines;
  }

  renderNow() {
    const { shown } = this;
    this.rows.items = shown;
    this.rows.paint();
    if (this.follows) this.box.scrollTop = this.box.scrollHeight;
    const kind = this.ended ? "complete" : this.follows ? "live" : "paused";
    text(this.status, this.problem || `${this.note}${count(shown.length, "line")}${this.query ? ` of ${count(this.lines.length, "line")}` : ""}, ${kind}`);
    this.down.hidden = this.follows;
    text(this.down, this.missed ? `${count(this.missed, "new line")}: show the newest` : "Show the newest");
  }

  scrolled() {
    const below = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight;
    const follows = below < LINE * 2;
    if (follows === this.follows) return;
    this.follows = follows;
    this.missed = 0;
    this.render();
  }

  toNewest() {
    this.follows = true;
    this.missed = 0;
    this.renderNow();
    this.box.focus();
  }

  download(name) {
    const lines = this.shown.map((line) => `${known(line.at) ? new Date(line.at * 1000).toISOString() : ""}\t${label(line)}\t${line.text}`);
    save(name, "text/plain", `${lines.join("\n")}\n`);
  }
}

const label = (line) => (known(line.rank) ? `rank ${line.rank}` : `worker ${line.worker}`);

function makeLine() {
  return h("div.log-line", h("time"), h("span.who"), h("span.said"));
}

function fillLine(element, line) {
  text(element.children[0], known(line.at) ? clockOnly(line.at) : "");
  text(element.children[1], label(line));
  text(element.children[2], line.text);
  element.classList.toggle("alarm", /\b(error|exception|traceback|killed|fatal|nan)\b/i.test(line.text));
}

/** Shows the tab with the lines of all ranks. */
export function logs(context) {
  const view = new LogView(context);
  const choices = { worker: choice("Worker"), rank: choice("Rank"), attempt: choice("Attempt") };
  const search = h("input", { type: "search", placeholder: "Text in lines", "aria-label": "Text in lines", oninput: () => view.search(search.value) });
  const element = h("section.card.logs", { "aria-label": "Logs" },
    h("div.card-head", Object.values(choices), search, h("span.spring"), view.status,
      button({ class: "quiet", onclick: () => view.download(`${context.name}.log`) }, "Download")),
    view.element);
  let counts = "";

  function choice(title) {
    return h("select", { "aria-label": title, onchange: () => read() }, h("option", { value: "" }, `${title}: all`));
  }

  function read() {
    view.read(Object.fromEntries(Object.entries(choices).map(([id, select]) => [id, select.value]).filter(([, value]) => value !== "")));
  }

  function fill(select, title, numbers) {
    const had = select.value;
    select.replaceChildren(h("option", { value: "" }, `${title}: all`), ...numbers.map((number) => h("option", { value: number }, `${title} ${number}`)));
    select.value = numbers.map(String).includes(had) ? had : "";
  }

  return {
    element,
    shown: () => (view.stream ? view.render() : read()),
    update: ({ pods, ranks, attempts }) => {
      const numbers = {
        worker: [...new Set(pods.map((pod) => pod.worker))].filter(known).sort((a, b) => a - b),
        rank: (ranks?.ranks ?? []).map((one) => one.rank),
        attempt: attempts.map((one) => one.attempt),
      };
      const now = JSON.stringify(numbers);
      if (now === counts) return;
      counts = now;
      for (const [id, select] of Object.entries(choices)) {
        fill(select, { worker: "Worker", rank: "Rank", attempt: "Attempt" }[id], numbers[id]);
        attribute(select, "hidden", numbers[id].length < 2);
      }
    },
  };
}
