// SPDX-License-Identifier: Apache-2.0
// The whole map once, at fixed resolutions, width and height halved again and again: what a long
// trace shows as long as a cell is no larger than a pixel. Closer up it is drawn from the blocks.

import { rasterize } from "./raster.js";

const WIDTH = 4096;
const HEIGHT = 1024;
const HALVINGS = 3;

// A level of half the width; a cell keeps the larger class of its two.
const narrower = ({ width, height, cells }) => {
  const found = new Uint8Array(cells.length / 2);
  for (let i = 0, at = 0; i < found.length; i++, at += 2) {
    found[i] = cells[at] > cells[at + 1] ? cells[at] : cells[at + 1];
  }
  return { width: width / 2, height, cells: found };
};

// The same of the height.
const lower = ({ width, height, cells }) => {
  const found = new Uint8Array(cells.length / 2);
  for (let y = 0, i = 0; y < height; y += 2) {
    for (let at = y * width, stop = at + width; at < stop; at++, i++) {
      found[i] = cells[at] > cells[at + width] ? cells[at] : cells[at + width];
    }
  }
  return { width, height: height / 2, cells: found };
};

const row = (level) => {
  const found = [level];
  while (found.length <= HALVINGS) found.push(narrower(found[found.length - 1]));
  return found;
};

export const makeLevels = (m, axis, kinds) => {
  const whole = { x0: axis.low, x1: axis.high, y0: 0, y1: m.height };
  const cells = new Uint8Array(WIDTH * HEIGHT);
  rasterize(m, axis, whole, WIDTH, HEIGHT, kinds, cells);
  let first = { width: WIDTH, height: HEIGHT, cells };
  const levels = row(first);
  for (let k = 0; k < HALVINGS; k++) {
    first = lower(first);
    levels.push(...row(first));
  }
  return { levels: levels.sort((a, b) => b.cells.length - a.cells.length), axis, kinds, whole };
};

// The cells of one direction that each pixel covers: n + 1 borders.
const borders = (low, high, least, most, cells, pixels) => Int32Array.from(
  { length: pixels + 1 },
  (_, k) => Math.round(((low + ((high - low) * k) / pixels - least) / (most - least)) * cells));

// Fills `out` from the smallest level that has a cell a pixel; false where none has.
export const sample = ({ levels, whole }, view, width, height, out) => {
  const wide = (view.x1 - view.x0) / (whole.x1 - whole.x0);
  const tall = (view.y1 - view.y0) / (whole.y1 - whole.y0);
  const fits = levels.filter((level) => level.width * wide >= width && level.height * tall >= height);
  if (!fits.length) return false;
  const level = fits[fits.length - 1];
  const xs = borders(view.x0, view.x1, whole.x0, whole.x1, level.width, width);
  const ys = borders(view.y0, view.y1, whole.y0, whole.y1, level.height, height);
  const { cells, width: line } = level;
  for (let py = 0; py < height; py++) {
    // Rows go down, y goes up.
    const top = (level.height - ys[height - py]) * line;
    const bottom = (level.height - ys[height - py - 1]) * line;
    for (let px = 0, to = py * width; px < width; px++, to++) {
      const first = xs[px];
      const stop = xs[px + 1];
      let best = 0;
      for (let row = top; row < bottom; row += line) {
        for (let at = row + first; at < row + stop; at++) {
          if (cells[at] > best) best = cells[at];
        }
      }
      out[to] = best;
    }
  }
  return true;
};
