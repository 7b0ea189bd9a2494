// SPDX-License-Identifier: Apache-2.0
// The timeline's strip and the map, painted pixel by pixel from what the core drew.

import { blueAt, mixed, ofHex, packed } from "./dom.js";

// Red, green and blue of each band, and of what a search does not find behind them, which a band
// that is put aside looks like.
const asideOf = (colours) => mixed(colours.line, colours.page, 0.3);
export const bandColours = (colours, bands) => [
  ...bands.map(({ hue, blue, isHidden }) => (isHidden ? asideOf(colours) : blue !== undefined ? blueAt(colours, blue)
    : hue < 0 ? mixed(colours.line, colours.grey) : ofHex(colours.hues[hue % colours.hues.length]))),
  asideOf(colours),
];

// The bands from the bottom up: those that are put aside come last.
export const stackOrder = (bands) => {
  const numbers = [...bands, {}].map((_, k) => k);
  return [...numbers.filter((k) => !bands[k]?.isHidden), ...numbers.filter((k) => bands[k]?.isHidden)];
};

// The pixels of a canvas, kept from one picture to the next of the same size.
const images = new WeakMap();
const imageOf = (canvas, width, height) => {
  const held = images.get(canvas);
  if (held && held.image.width === width && held.image.height === height) return held;
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  const fresh = { image, words: new Uint32Array(image.data.buffer) };
  images.set(canvas, fresh);
  return fresh;
};

// Of the colour of a pixel in which a block and a hole were, the block's share: from the emptiest
// to the fullest. mdtp has the same (picture/draw.py).
const [LEAST_BLOCK, MOST_BLOCK] = [0.45, 0.88];
const FULL = 255;

// Colours by how full a pixel is, 256 for each code of the map.
const shaded = (colours, bands) => {
  const table = new Uint32Array(256 * 256).fill(packed(ofHex(colours.page)));
  const sand = ofHex(colours.sand);
  table.fill(packed(sand), 256, 512);
  bandColours(colours, bands).forEach((colour, k) => {
    const from = 256 * (2 + k);
    for (let full = 0; full < FULL; full++) {
      const part = LEAST_BLOCK + (MOST_BLOCK - LEAST_BLOCK) * (full / FULL);
      table[from + full] = packed(colour.map((channel, i) => Math.round(sand[i] + (channel - sand[i]) * part)));
    }
    table[from + FULL] = packed(colour);
  });
  return table;
};

// Paints the codes of the map into a canvas of their own.
export const paintMap = (canvas, shot, colours, bands) => {
  const { image, words } = imageOf(canvas, shot.width, shot.height);
  const table = shaded(colours, bands);
  const { pixels, full, width, height } = shot;
  for (let y = 0; y < height; y++) {
    const below = (height - 1 - y) * width;
    for (let x = 0, i = y * width; x < width; x++, i++) words[i] = table[256 * pixels[i] + full[below + x]];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
};

// Paints the columns of the strip; the top is `top` bytes.
export const paintStrip = (canvas, shot, height, top, colours, bands) => {
  const { image, words } = imageOf(canvas, shot.width, height);
  const fills = bandColours(colours, bands).map(packed);
  const [count, order] = [fills.length, stackOrder(bands)];
  const [page, sand, line] = ["page", "sand", "sand-ink"].map((name) => packed(ofHex(colours[name])));
  const ky = height / top;
  words.fill(page);
  const fill = (x, from, to, colour) => {
    const stop = (height - from) * shot.width;
    for (let at = Math.max(height - to, 0) * shot.width + x; at < stop; at += shot.width) words[at] = colour;
  };
  let before = -1;
  for (let x = 0; x < shot.width; x++) {
    let [held, y] = [0, 0];
    for (const k of order) {
      held += shot.sums ? shot.sums[x * count + k] : (k ? 0 : shot.allocated[x]);
      const next = Math.min(Math.round(held * ky), height);
      if (next > y) { fill(x, y, next, fills[k]); y = next; }
    }
    const reserved = Math.min(Math.round(shot.reserved[x] * ky), height);
    fill(x, y, Math.max(reserved, y), sand);
    const edge = Math.max(reserved, 1);
    if (before < 0) before = edge;
    fill(x, Math.min(edge, before) - 1, Math.max(edge, before), line);
    before = edge;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
};

export const mostOf = (shot) => {
  let most = 1;
  for (let x = 0; x < shot.width; x++) most = Math.max(most, shot.allocated[x], shot.reserved[x]);
  return most;
};
