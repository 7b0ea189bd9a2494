// SPDX-License-Identifier: Apache-2.0
// The address map in the colours of the palette, from its levels or from the blocks.

import { blueAt, mixed, ofHex, packed } from "./dom.js";
import { makeLevels, sample } from "./lod.js";
import { BLUES, DIM, FIRST_BLUE, FREE, OTHER, rasterize } from "./raster.js";

// From so many blocks on the map comes from its levels as long as they are finer than pixels,
// and beyond from the blocks: at half the resolution while it is moved, and sharp at rest.
const COARSE_ROWS = 50000;

export const otherColour = (colours) => mixed(colours.blues[0], colours.grey, 0.3);

export const colourTable = (colours) => {
  const lut = new Uint32Array(256);
  lut[0] = packed(ofHex(colours.page));
  lut[FREE] = packed(ofHex(colours.sand));
  lut[DIM] = packed(mixed(colours.line, colours.grey, 0.25));
  lut[OTHER] = packed(otherColour(colours));
  for (let k = 0; k < BLUES; k++) lut[FIRST_BLUE + k] = packed(blueAt(colours, k / (BLUES - 1)));
  return lut;
};

// Makes the map at fixed resolutions, where there are so many blocks that it helps.
export const prepareMap = (app) => {
  if (app.m.rows > COARSE_ROWS) app.levels = makeLevels(app.m, app.axis, app.kinds);
};

// These levels; where axis or search have changed they are made anew, in a moment.
const levelsOf = (app) => {
  const known = app.levels;
  if (known && known.axis === app.axis && known.kinds === app.kinds) return known;
  if (!app.levelsAsked) {
    app.levelsAsked = true;
    setTimeout(() => {
      app.levelsAsked = false;
      prepareMap(app);
    }, 60);
  }
  return null;
};

const classesFor = (app, width, height) => {
  app.rasters ??= new Map();
  const key = `${width} ${height}`;
  if (app.rasters.size > 3 && !app.rasters.has(key)) app.rasters.clear();
  if (!app.rasters.has(key)) app.rasters.set(key, new Uint8Array(width * height));
  return app.rasters.get(key);
};

// Paints the view into `words`, a colour a pixel.
export const paintMap = (app, words, width, height) => {
  const { m, axis, view, kinds, lut } = app;
  const many = m.rows > COARSE_ROWS;
  const levels = many ? levelsOf(app) : null;
  let classes = classesFor(app, width, height);
  if (levels && sample(levels, view, width, height, classes)) {
    for (let i = 0; i < words.length; i++) words[i] = lut[classes[i]];
    return;
  }
  if (!many || !app.moving) {
    rasterize(m, axis, view, width, height, kinds, classes);
    for (let i = 0; i < words.length; i++) words[i] = lut[classes[i]];
    return;
  }
  const [half, low] = [Math.ceil(width / 2), Math.ceil(height / 2)];
  classes = classesFor(app, half, low);
  rasterize(m, axis, view, half, low, kinds, classes);
  for (let y = 0; y < height; y++) {
    const from = (y >> 1) * half;
    for (let x = 0, at = y * width; x < width; x++, at++) words[at] = lut[classes[from + (x >> 1)]];
  }
};
