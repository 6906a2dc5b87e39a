// Only this module makes elements from data. Strings become text nodes, so that nothing is read as HTML: names of jobs,
// failures and logs may come from hostile people.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Returns an element: "p.note" is one with a class. An object behind that has its attributes; `onclick` and the like are
 * listeners, and `style` is an object of properties. What follows are its children.
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

/** Returns a button that sends no form. */
export const button = (properties, ...children) => h("button", { type: "button", ...properties }, ...children);

/** Returns a table that scrolls by itself where it is wider than the page. A title that ends with # is of numbers. */
export const table = (label, titles, body) => h("div.scroll", { tabindex: 0, role: "region", "aria-label": label },
  h("table", h("thead", h("tr", titles.map((title) => h("th", { scope: "col", class: title.endsWith("#") ? "number" : "" }, title.replace("#", ""))))), body));

/** Returns a symbol of index.html's sprite. */
export function icon(name, className = "icon") {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", className);
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** Sets an element's text where it differs: a row that didn't change costs no layout. */
export function text(element, value) {
  const now = value === null || value === undefined ? "" : String(value);
  if (element.textContent !== now) element.textContent = now;
}

/** Sets or removes an attribute where it differs. Those of ARIA say "true" and "false", others are there or not. */
export function attribute(element, name, value) {
  const states = name.startsWith("aria-");
  if (value === null || value === undefined || (value === false && !states)) element.removeAttribute(name);
  else {
    const now = value === true && !states ? "" : String(value);
    if (element.getAttribute(name) !== now) element.setAttribute(name, now);
  }
}

/** Shows `items` in `parent`, one element for each key, so that a focused element keeps the focus. */
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

/** Returns a colour of style.css as the browser computes it in this theme, for a canvas. */
export function colour(name) {
  const probe = document.getElementById("live");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** Returns a function that runs `work` once before the next frame, however often it is called; `now` doesn't wait. */
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

/** Gives the browser a file to save. */
export function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
