// Only this module creates elements from data. Strings become text nodes, never HTML, because attackers may choose
// names of jobs, failures and logs.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Returns an element: "p.note" has the tag p and the class note. An object that follows has attributes, listeners (such
 * as `onclick`) and `style`, an object of properties. All other arguments are children.
 */
export function h(kind, ...children) {
  const properties = children[0]?.constructor === Object ? children.shift() : {};
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  element.classList.add(...classes);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else attribute(element, name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Returns a button that doesn't submit a form. */
export const button = (properties, ...children) => h("button", { type: "button", ...properties }, ...children);

/**
 * Returns a table that scrolls if it is wider than the page, and says so. A title that ends with # marks a column of
 * numbers.
 */
export function table(label, titles, body) {
  const inner = h("table", h("thead", h("tr", titles.map((title) => h("th", { scope: "col", class: title.endsWith("#") ? "number" : "" }, title.replace("#", ""))))), body);
  const box = h("div.scroll", { tabindex: 0, role: "region", "aria-label": label }, inner);
  const hint = h("p.scroll-hint", { hidden: true }, "Scroll sideways for more columns →");
  const watch = new ResizeObserver(() => { hint.hidden = inner.offsetWidth <= box.clientWidth; });
  watch.observe(inner);
  watch.observe(box);
  return h("div", hint, box);
}

/** Returns a symbol from the sprite in index.html. */
export function icon(name, className = "icon") {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", className);
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** Sets an element's text if it differs, so that unchanged rows cause no layout. */
export function text(element, value) {
  const now = value === null || value === undefined ? "" : String(value);
  if (element.textContent !== now) element.textContent = now;
}

/** Sets or removes an attribute if it differs. Booleans of ARIA are "true" or "false"; others are present or absent. */
export function attribute(element, name, value) {
  const states = name.startsWith("aria-");
  if (value === null || value === undefined || (value === false && !states)) element.removeAttribute(name);
  else {
    const now = value === true && !states ? "" : String(value);
    if (element.getAttribute(name) !== now) element.setAttribute(name, now);
  }
}

/** Shows `items` in `parent`, with one element per key, so that a focused element keeps the focus. */
export function keyed(parent, items, key, make, fill) {
  const had = (parent.keyed ??= new Map());
  const has = new Map();
  let next = parent.firstElementChild;
  for (const item of items) {
    const id = String(key(item));
    const element = had.get(id) ?? make(item);
    had.delete(id);
    has.set(id, element);
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
    fill(element, item);
  }
  for (const element of had.values()) element.remove();
  parent.keyed = has;
}

/** Announces a text to screen readers. */
export function announce(sentence) {
  text(document.getElementById("live"), sentence);
}

/** Returns a colour from style.css for a canvas, as the browser computes it in this theme. */
export function colour(name) {
  const probe = document.getElementById("live");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** Returns a function that runs `work` once before the next frame. `now` runs waiting work at once. */
export function onFrame(work) {
  let asked = 0;
  const run = () => {
    asked = 0;
    work();
  };
  const ask = () => {
    asked ||= requestAnimationFrame(run);
  };
  ask.cancel = () => {
    cancelAnimationFrame(asked);
    asked = 0;
  };
  ask.now = () => {
    if (!asked) return;
    ask.cancel();
    work();
  };
  return ask;
}

/** Returns a button that copies what `read` returns. */
export function copyButton(read, label = "Copy") {
  const words = h("span", label);
  return button({
    class: "quiet",
    onclick: async () => {
      await navigator.clipboard.writeText(await read());
      text(words, "Copied");
      announce("Copied");
      setTimeout(() => text(words, label), 1500);
    },
  }, icon("copy"), words);
}

/** Downloads a file. */
export function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
