// SPDX-License-Identifier: Apache-2.0
// The whole map once, at fixed resolutions each half of the one before: what a long trace shows
// as long as a cell is no larger than a pixel. Closer up it is drawn from the blocks.

import { rasterize } from "./raster.js";

const WIDTH = 4096;
const HEIGHT = 1024;
const LEVELS = 4;

// A level of half the width and height; a cell keeps the largest class of its four.
const halved = ({ width, height, cells }) => {
  const next = { width: width / 2, height: height / 2, cells: new Uint8Array((width * height) / 4) };
  for (let y = 0; y < next.height; y++) {
    for (let x = 0; x < next.width; x++) {
      const at = 2 * y * width + 2 * x;
      next.cells[y * next.width + x] = Math.max(
        cells[at], cells[at + 1], cells[at + width], cells[at + width + 1]);
    }
  }
  return next;
};

export const makeLevels = (m, axis, classOf) => {
  const whole = { x0: axis.low, x1: axis.high, y0: 0, y1: m.height };
  const cells = new Uint8Array(WIDTH * HEIGHT);
  rasterize(m, axis, whole, WIDTH, HEIGHT, classOf, cells);
  const levels = [{ width: WIDTH, height: HEIGHT, cells }];
  while (levels.length < LEVELS) levels.push(halved(levels[levels.length - 1]));
  return { levels, axis, classOf, whole };
};

// The cells of one direction that each pixel covers: n + 1 borders.
const borders = (low, high, least, most, cells, pixels) => Int32Array.from(
  { length: pixels + 1 },
  (_, k) => Math.round(((low + ((high - low) * k) / pixels - least) / (most - least)) * cells));

// Fills `out` from the coarsest level that has a cell a pixel; false where none has.
export const sample = ({ levels, whole }, view, width, height, out) => {
  const wide = (view.x1 - view.x0) / (whole.x1 - whole.x0);
  const tall = (view.y1 - view.y0) / (whole.y1 - whole.y0);
  const fits = levels.filter((level) => level.width * wide >= width && level.height * tall >= height);
  if (!fits.length) return false;
  const level = fits[fits.length - 1];
  const xs = borders(view.x0, view.x1, whole.x0, whole.x1, level.width, width);
  const ys = borders(view.y0, view.y1, whole.y0, whole.y1, level.height, height);
  for (let py = 0; py < height; py++) {
    // Rows go down, y goes up.
    const [top, bottom] = [level.height - ys[height - py], level.height - ys[height - py - 1]];
    for (let px = 0; px < width; px++) {
      let best = 0;
      for (let y = top; y < bottom; y++) {
        for (let at = y * level.width + xs[px]; at < y * level.width + xs[px + 1]; at++) {
          if (level.cells[at] > best) best = level.cells[at];
        }
      }
      out[py * width + px] = best;
    }
  }
  return true;
};
