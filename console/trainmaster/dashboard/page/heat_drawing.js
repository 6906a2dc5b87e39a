// Draws the heat map: a row for each rank, time from left to right, and a colour for each figure.

import { colour, h } from "./dom.js";
import { known, roundTimes } from "./format.js";

const GUTTER = 44;
const FOOT = 20;
const TALLEST = 420;

/** Returns the layout for a number of ranks and a width (CSS pixels). */
export function layout(ranks, width) {
  const height = Math.min(TALLEST, 20 * ranks) + FOOT;
  return { left: GUTTER, row: (height - FOOT) / ranks, width, height, plot: width - GUTTER - 1, foot: FOOT };
}

/** Returns the figures of the palest and of the strongest colour. */
export function domain(values, isTime) {
  const all = Float64Array.from(values.flat().filter(known)).sort();
  if (!all.length) return [0, 1];
  const at = (share) => all[Math.min(all.length - 1, Math.floor(share * all.length))];
  const low = at(0.02);
  // Steps always differ a little. The strongest colours are for ranks that take at least half as long again.
  const high = isTime ? Math.max(at(0.995), at(0.5) * 1.5) : at(0.98);
  return [low, high > low ? high : low + (Math.abs(low) || 1)];
}

/** Returns a function from a share (0 to 1) to a colour of this theme: red, green, blue, opacity. */
export function ramp() {
  const stops = ["heat-0", "heat-1", "heat-2", "heat-3", "heat-4"].map((name) => colour(name).match(/[\d.]+/g).slice(0, 3).map(Number));
  const colours = Array.from({ length: 64 }, (_, index) => {
    const at = (index / 63) * (stops.length - 1);
    const from = stops[Math.floor(at)];
    const to = stops[Math.min(stops.length - 1, Math.floor(at) + 1)];
    const mix = from.map((one, part) => Math.round(one + (to[part] - one) * (at % 1)));
    return [...mix, 255];
  });
  return (share) => colours[Math.max(0, Math.min(63, Math.round(share * 63)))];
}

/** Returns the seconds from left to right. A stalled job's map ends now, so that the silence is visible. */
const span = (map) => Math.max(map.at.at(-1), map.until ?? 0) - map.at[0] + map.resolutionSeconds || 1;

/** Returns the horizontal place and width of a column. */
export function column(map, place, index) {
  const from = map.at[0];
  const all = span(map);
  // A small delay isn't drawn as a gap.
  const next = map.at[index + 1] - map.at[index];
  const wide = next < map.resolutionSeconds * 1.6 ? next : map.resolutionSeconds;
  return [place.left + ((map.at[index] - from) / all) * place.plot, (wide / all) * place.plot];
}

/**
 * Returns a picture with a pixel for each figure. It is made once and drawn often. If several ranks share a pixel, it
 * shows their largest figure, so that one slow rank among a thousand stays visible.
 */
export function picture(map, [low, high]) {
  const many = map.ranks.length;
  const canvas = h("canvas", { width: map.at.length, height: Math.min(many, TALLEST) });
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const shades = ramp();
  map.values.forEach((values, index) => {
    const largest = new Array(canvas.height).fill(null);
    values.forEach((value, rank) => {
      const row = Math.floor((rank * canvas.height) / many);
      if (known(value)) largest[row] = Math.max(largest[row] ?? value, value);
    });
    largest.forEach((value, row) => known(value) && image.data.set(shades((value - low) / (high - low)), (row * canvas.width + index) * 4));
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Draws the map, and a frame around the selected cell ([row, column]). */
export function draw(canvas, map, place, cells, chosen) {
  const scale = devicePixelRatio;
  const pixels = [Math.round(place.width * scale), Math.round(place.height * scale)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, place.width, place.height);
  context.imageSmoothingEnabled = false;
  const snap = (value) => Math.round(value * scale) / scale;
  const tall = place.height - place.foot;
  map.at.forEach((_, index) => {
    const [at, wide] = column(map, place, index);
    context.drawImage(cells, index, 0, 1, cells.height, snap(at), 0, Math.max(1 / scale, snap(at + wide) - snap(at)), tall);
  });
  if (place.row >= 8) map.ranks.forEach((_, row) => context.clearRect(place.left, snap((row + 1) * place.row) - 1, place.plot + 1, 1));
  labels(context, map, place);
  if (!chosen) return;
  const [at, wide] = column(map, place, chosen[1]);
  context.strokeStyle = colour("text");
  context.lineWidth = 1.5;
  context.strokeRect(at - 1, chosen[0] * place.row - 0.5, Math.max(4, wide) + 2, Math.max(4, place.row));
}

function labels(context, map, place) {
  context.fillStyle = context.strokeStyle = colour("muted");
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  const every = 2 ** Math.max(0, Math.ceil(Math.log2((place.row < 3 ? 20 : 13) / place.row)));
  map.ranks.forEach((rank, row) => {
    if (row % every === 0) context.fillText(`rank ${rank}`.slice(place.row < 3 ? 5 : 0), place.left - 5, (row + 0.5) * place.row);
  });
  context.textBaseline = "alphabetic";
  const from = map.at[0];
  const all = span(map);
  context.textAlign = "center";
  for (const [at, label] of roundTimes(from, from + all, Math.max(2, Math.floor(place.plot / 90)))) {
    const half = context.measureText(label).width / 2;
    const x = place.left + (place.plot * (at - from)) / all;
    context.fillText(label, Math.min(x, place.width - half), place.height - 4);
  }
  // Marks where an attempt begins.
  context.setLineDash([3, 3]);
  map.attempt.forEach((attempt, index) => {
    if (index === 0 || attempt === map.attempt[index - 1]) return;
    const [at] = column(map, place, index);
    context.beginPath();
    context.moveTo(at - 0.5, 0);
    context.lineTo(at - 0.5, place.height - place.foot);
    context.stroke();
  });
  context.setLineDash([]);
}
