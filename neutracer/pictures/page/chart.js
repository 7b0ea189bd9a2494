// SPDX-License-Identifier: Apache-2.0
// Drawing of the timeline and, under it, the address map, on one time axis.

import { blueAt, fitCanvas, ofHex, packed, rgb } from "./dom.js";
import { makeLevels, sample } from "./lod.js";
import { BLUES, DIM, FIRST_BLUE, FREE, rasterize } from "./raster.js";
import { groupSums, highest, placeName } from "./model.js";
import { bytes, count, duration, steps } from "./units.js";

const FONT = "12px system-ui, sans-serif";

// Where things stand in a chart of this size.
export const geometry = (width, height) => {
  const narrow = width < 560;
  const left = narrow ? 72 : 92;
  const right = narrow ? 10 : 94;
  const stripTop = 24;
  const stripHeight = Math.round(Math.min(Math.max(height * 0.22, 70), 150));
  const mapTop = stripTop + stripHeight + 16;
  return {
    width, height, narrow, left, right, stripTop, stripHeight, mapTop,
    plotWidth: Math.max(width - left - right, 40),
    mapHeight: Math.max(height - mapTop - 40, 60),
  };
};

// Neighbours in the pile differ clearly; the last group is what is left.
const SHARES = [0.85, 0.3, 0.65, 0.05, 1, 0.45];

export const groupColours = (colours, groups) =>
  Array.from({ length: groups + 1 }, (_, g) =>
    rgb(g === groups ? mixed(colours.line, colours.grey) : blueAt(colours, SHARES[g % SHARES.length])));

const mixed = (a, b, share = 0.5) => {
  const [x, y] = [ofHex(a), ofHex(b)];
  return x.map((channel, i) => Math.round(channel + (y[i] - channel) * share));
};

// What each pixel column of the timeline shows: the highest moment within it.
export const stripColumns = (app, width) => {
  const { m, axis, view } = app;
  const events = new Int32Array(width);
  const reserved = new Float64Array(width);
  let from = axis.eventAt(view.x0);
  const step = (view.x1 - view.x0) / width;
  for (let x = 0; x < width; x++) {
    const to = axis.eventAt(view.x0 + (x + 1) * step);
    const first = Math.max(from, 0);
    if (to < 0) { events[x] = -1; reserved[x] = m.startReserved; continue; }
    events[x] = highest(m, "allocated", first, to + 1);
    reserved[x] = m.reserved[highest(m, "reserved", first, to + 1)];
    from = to;
  }
  return { events, reserved };
};

const drawStrip = (app, g, pen) => {
  const { m, colours } = app;
  const columns = stripColumns(app, g.plotWidth);
  let most = 1;
  for (let x = 0; x < g.plotWidth; x++) most = Math.max(most, columns.reserved[x]);
  for (const event of columns.events) if (event >= 0) most = Math.max(most, m.allocated[event]);
  const bottom = g.stripTop + g.stripHeight;
  const ky = g.stripHeight / (most * 1.06);
  const fills = groupColours(colours, m.groups.length);
  pen.fillStyle = colours.sand;
  for (let x = 0; x < g.plotWidth; x++) {
    const h = columns.reserved[x] * ky;
    pen.fillRect(g.left + x, bottom - h, 1, h);
  }
  const layers = fills.map(() => new Path2D());
  groupSums(m, columns.events, (x, sums) => {
    const event = columns.events[x];
    const total = event < 0 ? m.startAllocated : m.allocated[event];
    let y = bottom;
    for (let k = 0; k < sums.length; k++) {
      const h = sums[k] * ky;
      y -= h;
      if (h > 0) layers[k].rect(g.left + x, y, 1, h);
    }
    // What is not kept one by one stands on top of the last group.
    const rest = bottom - total * ky;
    if (y - rest > 0.5) layers[sums.length - 1].rect(g.left + x, rest, 1, y - rest);
  });
  layers.forEach((layer, k) => { pen.fillStyle = fills[k]; pen.fill(layer); });
  pen.strokeStyle = colours["sand-ink"];
  pen.beginPath();
  for (let x = 0; x < g.plotWidth; x++) {
    const y = bottom - columns.reserved[x] * ky;
    if (x) pen.lineTo(g.left + x, y); else pen.moveTo(g.left, y);
    pen.lineTo(g.left + x + 1, y);
  }
  pen.stroke();
  frame(app, g, pen, g.stripTop, g.stripHeight, 0, most * 1.06, g.stripHeight / 30);
  legend(app, g, pen, fills);
};

const legend = (app, g, pen, fills) => {
  const { m, colours } = app;
  let x = g.left;
  const key = (fill, text) => {
    const width = pen.measureText(text).width + 28;
    if (x + width > g.width) return;
    pen.fillStyle = fill;
    pen.fillRect(x, 7, 12, 10);
    pen.fillStyle = colours.grey;
    pen.fillText(text, x + 16, 16);
    x += width;
  };
  pen.textAlign = "left";
  key(colours.sand, "reserved, free");
  const shown = g.narrow ? 1 : m.groups.length;
  m.groups.slice(0, shown).forEach((place, k) => key(fills[k], shortened(placeName(m, place), 34)));
  if (m.hasOthers) key(fills[fills.length - 1], "others");
};

const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// The border of a plot, with ticks in bytes.
const frame = (app, g, pen, top, height, low, high, most) => {
  const { colours } = app;
  pen.strokeStyle = colours.line;
  pen.strokeRect(g.left - 0.5, top - 0.5, g.plotWidth + 1, height + 1);
  pen.fillStyle = colours.grey;
  pen.textAlign = "right";
  for (const at of steps(low, high, most, true)) {
    const y = top + height - ((at - low) / (high - low)) * height;
    pen.fillText(bytes(at), g.left - 7, Math.min(y + 4, top + height + 3));
    pen.fillRect(g.left - 4, Math.round(y), 3, 1);
  }
};

// From so many blocks on the map comes from its levels as long as they are finer than pixels,
// and beyond from the blocks: at half the resolution while it is moved, and sharp at rest.
const COARSE_ROWS = 50000;

const drawMap = (app, g, pen, scale) => {
  const { m, colours, view } = app;
  const fine = app.moving && m.rows > COARSE_ROWS ? 0.5 : scale;
  const [width, height] = [Math.round(g.plotWidth * fine), Math.round(g.mapHeight * fine)];
  const map = imageOf(app, width, height);
  const many = m.rows > COARSE_ROWS;
  if (!many || !sample(levelsOf(app), view, width, height, map.classes)) {
    rasterize(m, app.axis, view, width, height, app.shownClasses, map.classes);
  }
  const { lut } = app;
  const { words, classes } = map;
  for (let i = 0; i < words.length; i++) words[i] = lut[classes[i]];
  map.pen.putImageData(map.image, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(map.canvas, g.left, g.mapTop, g.plotWidth, g.mapHeight);
  borders(app, g, pen);
  frame(app, g, pen, g.mapTop, g.mapHeight, view.y0, view.y1, g.mapHeight / 48);
  if (g.narrow) return;
  pen.save();
  pen.translate(14, g.mapTop + g.mapHeight / 2);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "center";
  pen.fillStyle = colours.grey;
  const what = app.state.raw ? "address, above the lowest" : "address, only what was ever reserved";
  pen.fillText(what, 0, 0);
  pen.restore();
};

// The map at fixed resolutions, made anew where axis or search have changed.
const levelsOf = (app) => {
  const known = app.levels;
  if (!known || known.axis !== app.axis || known.classOf !== app.shownClasses) {
    app.levels = makeLevels(app.m, app.axis, app.shownClasses);
  }
  return app.levels;
};

// What the map is made in: a class and a colour a pixel; one a resolution is kept.
const imageOf = (app, width, height) => {
  app.images ??= new Map();
  const key = `${width} ${height}`;
  if (!app.images.has(key)) {
    if (app.images.size > 3) app.images.clear();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width, height];
    const image = new ImageData(width, height);
    app.images.set(key, {
      canvas, image, pen: canvas.getContext("2d", { alpha: false }),
      words: new Uint32Array(image.data.buffer), classes: new Uint8Array(width * height),
    });
  }
  return app.images.get(key);
};

// Hairlines between segments, where they do not hide what they part.
const borders = (app, g, pen) => {
  const { m, view, colours } = app;
  const ky = g.mapHeight / (view.y1 - view.y0);
  const seen = m.borders.filter((y) => y > view.y0 && y < view.y1);
  if (seen.length > g.mapHeight / 8) return;
  pen.fillStyle = colours.line;
  for (const y of seen) {
    pen.fillRect(g.left, Math.round(g.mapTop + g.mapHeight - (y - view.y0) * ky), g.plotWidth, 1);
  }
};

const drawTime = (app, g, pen) => {
  const { axis, view, colours, m } = app;
  const base = g.mapTop + g.mapHeight;
  pen.fillStyle = colours.grey;
  pen.textAlign = "center";
  const toX = (at) => g.left + ((at - view.x0) / (view.x1 - view.x0)) * g.plotWidth;
  for (const at of steps(view.x0, view.x1, g.plotWidth / 90)) {
    if (axis.kind === "event" && !Number.isInteger(at)) continue;
    pen.fillRect(Math.round(toX(at)), base + 1, 1, 4);
    pen.fillText(axis.kind === "time" ? timeTick(at, view) : count(at), toX(at), base + 17);
  }
  pen.fillText(axis.kind === "time" ? "time since the first event" : "allocator event",
    g.left + g.plotWidth / 2, base + 33);
  for (const { event, asked } of m.oom) {
    const x = toX(axis.edges[event + 1]);
    if (x < g.left - 1 || x > g.left + g.plotWidth + 1) continue;
    pen.fillStyle = colours.red;
    pen.fillRect(Math.round(x) - 1, g.stripTop, 3, base - g.stripTop);
    const text = `OOM, asked ${bytes(asked)}`;
    const left = x - pen.measureText(text).width > g.left;
    pen.textAlign = left ? "right" : "left";
    halo(app, pen, text, x + (left ? -5 : 5), g.stripTop + 13);
  }
};

const halo = (app, pen, text, x, y) => {
  pen.font = `600 ${FONT}`;
  pen.lineWidth = 4;
  pen.strokeStyle = app.colours.page;
  pen.strokeText(text, x, y);
  pen.lineWidth = 1;
  pen.fillText(text, x, y);
  pen.font = FONT;
};

// Ticks of one axis have one unit and as many digits as they differ by.
const timeTick = (us, { x0, x1 }) => {
  const span = x1 - x0;
  const [unit, name] = span >= 2e6 ? [1e6, "s"] : span >= 2e3 ? [1e3, "ms"] : [1, "µs"];
  const places = Math.max(0, Math.min(3, Math.ceil(-Math.log10(span / unit / 8))));
  return `${(us / unit).toFixed(places)} ${name}`;
};

const drawScale = (app, g, pen) => {
  if (g.narrow) return;
  const { colours, sizes } = app;
  const [x, top, height] = [g.left + g.plotWidth + 16, g.mapTop, Math.min(g.mapHeight - 50, 260)];
  const blues = pen.createLinearGradient(0, top + height, 0, top);
  colours.blues.forEach((blue, k) => blues.addColorStop(k / 4, blue));
  pen.fillStyle = blues;
  pen.fillRect(x, top, 12, height);
  pen.fillStyle = colours.grey;
  pen.textAlign = "left";
  const span = Math.log2(sizes.high / sizes.low);
  const whole = Math.max(1, Math.ceil(span / 7));
  for (let at = Math.ceil(Math.log2(sizes.low)); at <= Math.log2(sizes.high); at += whole) {
    const y = top + height * (1 - (at - Math.log2(sizes.low)) / span);
    pen.fillText(bytes(2 ** at), x + 17, y + 4);
  }
  pen.fillText("block size", x, top + height + 18);
  pen.fillStyle = colours.sand;
  pen.fillRect(x, top + height + 30, 12, 12);
  pen.fillStyle = colours.grey;
  pen.fillText("free", x + 17, top + height + 40);
};

export const colourTable = (colours) => {
  const lut = new Uint32Array(256);
  lut[0] = packed(ofHex(colours.page));
  lut[FREE] = packed(ofHex(colours.sand));
  lut[DIM] = packed(mixed(colours.line, colours.grey, 0.25));
  for (let k = 0; k < BLUES; k++) lut[FIRST_BLUE + k] = packed(blueAt(colours, k / (BLUES - 1)));
  return lut;
};

export const drawChart = (app, canvas, g) => {
  const { pen, scale } = fitCanvas(canvas, g.width, g.height);
  pen.font = FONT;
  pen.lineWidth = 1;
  pen.fillStyle = app.colours.page;
  pen.fillRect(0, 0, g.width, g.height);
  drawStrip(app, g, pen);
  drawMap(app, g, pen, scale);
  drawTime(app, g, pen);
  drawScale(app, g, pen);
};

// Cursor, selection and the chosen block, on a canvas of their own.
export const drawOver = (app, canvas, g) => {
  const { pen } = fitCanvas(canvas, g.width, g.height);
  const { axis, view, colours, state, m } = app;
  pen.clearRect(0, 0, g.width, g.height);
  const toX = (at) => g.left + ((at - view.x0) / (view.x1 - view.x0)) * g.plotWidth;
  const ky = g.mapHeight / (view.y1 - view.y0);
  const toY = (y) => g.mapTop + g.mapHeight - (y - view.y0) * ky;
  const bottom = g.mapTop + g.mapHeight;
  pen.save();
  pen.beginPath();
  pen.rect(g.left, g.stripTop, g.plotWidth, bottom - g.stripTop);
  pen.clip();
  if (state.range) {
    const [a, b] = state.range.map(toX);
    pen.globalAlpha = 0.16;
    pen.fillStyle = colours.ink;
    pen.fillRect(a, g.stripTop, b - a, bottom - g.stripTop);
    pen.globalAlpha = 1;
    for (const x of [a, b]) pen.fillRect(Math.round(x), g.stripTop, 1, bottom - g.stripTop);
  }
  const marked = [[state.pin, 2.5], [app.hovered, 1.5]];
  for (const [row, line] of marked) {
    if (row < 0 || row >= m.rows || m.y[row] < 0) continue;
    const [l, r] = [toX(axis.edges[m.made[row] + 1]), toX(axis.edges[m.end[row] + 1])];
    const [t, b] = [toY(m.y[row] + m.size[row]), toY(m.y[row])];
    pen.lineWidth = line + 2;
    pen.strokeStyle = colours.page;
    pen.strokeRect(l - 1, t - 1, Math.max(r - l, 1) + 2, Math.max(b - t, 1) + 2);
    pen.lineWidth = line;
    pen.strokeStyle = colours.ink;
    pen.strokeRect(l - 1, t - 1, Math.max(r - l, 1) + 2, Math.max(b - t, 1) + 2);
  }
  pen.fillStyle = colours.ink;
  const x = toX(app.cursorX());
  pen.fillRect(Math.round(x), g.stripTop, 1, bottom - g.stripTop);
  pen.restore();
};

export const cursorWords = (app, event) => {
  const { m } = app;
  if (event < 0) return "before the first event";
  return m.time ? duration(m.time[event]) : `event ${count(event)}`;
};
