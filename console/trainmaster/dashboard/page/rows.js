// A list in which only visible rows have elements, so that a thousand jobs or twenty thousand lines cost little.

import { onFrame } from "./dom.js";

const OVERSCAN = 6;

/**
 * Shows `items` in `host`, each `height` pixels high. `scroller` is the element that scrolls, or the window.
 * `key(item)` identifies an item, `make()` returns a row, and `fill(row, item, index)` shows an item in a row.
 */
export class Rows {
  constructor({ host, scroller = window, height, key, make, fill }) {
    Object.assign(this, { host, scroller, height, key, make, fill });
    this.items = [];
    this.shown = new Map();
    this.pool = [];
    this.ask = onFrame(() => this.paint());
    scroller.addEventListener("scroll", this.ask, { passive: true });
    window.addEventListener("resize", this.ask);
  }

  close() {
    this.ask.cancel();
    this.scroller.removeEventListener("scroll", this.ask);
    window.removeEventListener("resize", this.ask);
  }

  set(items) {
    this.items = items;
    this.ask();
  }

  /** Returns the visible part of the list, in pixels from its top. */
  view() {
    const host = this.host.getBoundingClientRect();
    if (this.scroller === window) return [-host.top, window.innerHeight - host.top];
    const box = this.scroller.getBoundingClientRect();
    return [box.top - host.top, box.bottom - host.top];
  }

  paint() {
    const { host, height, items } = this;
    const full = `${items.length * height}px`;
    if (host.style.height !== full) host.style.height = full;
    const [top, bottom] = this.view();
    const first = Math.max(0, Math.floor(top / height) - OVERSCAN);
    const last = Math.min(items.length, Math.ceil(bottom / height) + OVERSCAN);
    const focused = document.activeElement;
    const keys = new Set();
    for (let index = first; index < last; index++) keys.add(this.key(items[index]));
    for (const [key, row] of this.shown) {
      if (keys.has(key)) continue;
      // A focused row isn't reused for another item, because Enter would then open the wrong job.
      if (row.contains(focused)) row.remove();
      else this.pool.push(row);
      this.shown.delete(key);
    }
    let next = host.firstElementChild;
    for (let index = first; index < last; index++) {
      const key = this.key(items[index]);
      let row = this.shown.get(key);
      if (!row) {
        row = this.pool.pop() ?? this.make();
        this.shown.set(key, row);
      }
      this.fill(row, items[index], index);
      const place = `translateY(${index * height}px)`;
      if (row.style.transform !== place) row.style.transform = place;
      // Elements have the order of the items, because screen readers use it.
      if (row === next) next = next.nextElementSibling;
      else host.insertBefore(row, next);
    }
    while (next) {
      const after = next.nextElementSibling;
      next.remove();
      next = after;
    }
    if (focused !== document.activeElement && host.contains(focused)) focused.focus({ preventScroll: true });
  }

  /** Scrolls until an item is visible, `margin` pixels from the edge, and returns its row. */
  reveal(index, margin = 0) {
    const [top, bottom] = this.view();
    const start = index * this.height;
    let by = 0;
    if (start < top + margin) by = start - top - margin;
    else if (start + this.height > bottom - 8) by = start + this.height - bottom + 8;
    if (by) this.scroller.scrollBy({ top: by, behavior: "instant" });
    this.paint();
    return this.shown.get(this.key(this.items[index]));
  }
}
