// SPDX-License-Identifier: Apache-2.0
// Drawing of the timeline and, under it, the address map, on one time axis. The plots are
// painted pixel by pixel; around them only what has changed is written again.

import { fitCanvas } from "./dom.js";
import { paintMap } from "./map.js";
import { paintStrip, stripColumns } from "./strip.js";
import { bytes, count, steps } from "./units.js";

const FONT = "12px system-ui, sans-serif";

// Where things stand in a chart of this size.
export const geometry = (width, height) => {
  const narrow = width < 560;
  const left = narrow ? 72 : 92;
  const right = narrow ? 10 : 94;
  const stripTop = 10;
  const stripHeight = Math.round(Math.min(Math.max(height * 0.22, 70), 150));
  const mapTop = stripTop + stripHeight + 16;
  return {
    width, height, narrow, left, right, stripTop, stripHeight, mapTop,
    plotWidth: Math.max(width - left - right, 40),
    mapHeight: Math.max(height - mapTop - 40, 60),
  };
};

// A picture to paint into; one a name is kept, until its size changes.
const imageOf = (app, name, width, height) => {
  app.images ??= {};
  const known = app.images[name];
  if (known && known.image.width === width && known.image.height === height) return known;
  const image = new ImageData(Math.max(width, 1), Math.max(height, 1));
  app.images[name] = { image, words: new Uint32Array(image.data.buffer) };
  return app.images[name];
};

// Paints one of the two plots, at the pixels of the screen.
const plot = (app, g, pen, scale, name, top, height, paint) => {
  const [wide, high] = [Math.round(g.plotWidth * scale), Math.round(height * scale)];
  const { image, words } = imageOf(app, name, wide, high);
  paint(words, wide, high);
  pen.putImageData(image, Math.round(g.left * scale), Math.round(top * scale));
};

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

// The name of the time axis; where nothing was recorded, there is one moment and no tick.
const timeName = ({ m, axis }) => (!m.n ? "no history: the moment of the snapshot"
  : axis.kind === "time" ? "time since the first event" : "allocator event");

const drawTime = (app, g, pen) => {
  const { axis, view, colours, m } = app;
  const base = g.mapTop + g.mapHeight;
  pen.fillStyle = colours.grey;
  pen.textAlign = "center";
  const toX = (at) => g.left + ((at - view.x0) / (view.x1 - view.x0)) * g.plotWidth;
  // Events and microseconds are whole.
  const span = view.x1 - view.x0;
  const most = axis.kind === "event" || span < 2e3 ? Math.min(g.plotWidth / 80, span) : g.plotWidth / 80;
  for (const at of m.n ? steps(view.x0, view.x1, most) : []) {
    if (at < 0) continue;
    pen.fillRect(Math.round(toX(at)), base + 1, 1, 4);
    pen.fillText(axis.kind === "time" ? timeTick(at, view) : count(at), toX(at), base + 17);
  }
  pen.fillText(timeName(app), g.left + g.plotWidth / 2, base + 33);
  pen.save();
  pen.beginPath();
  pen.rect(g.left, g.stripTop, g.plotWidth, base - g.stripTop);
  pen.clip();
  for (const { event, asked } of m.oom) {
    const x = toX(axis.edges[event + 1]);
    if (x < g.left - 1 || x > g.left + g.plotWidth + 1) continue;
    pen.fillStyle = colours.red;
    pen.fillRect(Math.round(x) - 1, g.stripTop, 3, base - g.stripTop);
    const text = `OOM, needed ${bytes(asked)}`;
    const left = x - pen.measureText(text).width > g.left;
    pen.textAlign = left ? "right" : "left";
    halo(app, pen, text, x + (left ? -5 : 5), g.stripTop + 13);
  }
  pen.restore();
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
  if (span < 2e3) return `${count(us)} µs`;
  const [unit, name] = span >= 2e6 ? [1e6, "s"] : [1e3, "ms"];
  const places = Math.max(0, Math.min(3, Math.ceil(-Math.log10(span / unit / 8))));
  return `${(us / unit).toFixed(places)} ${name}`;
};

const drawScale = (app, g, pen) => {
  if (g.narrow || !app.m.rows) return;
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

// What stands around the plots and moves with no step in time.
const surround = (app, g, pen, most) => {
  const { colours, view } = app;
  pen.fillStyle = colours.page;
  pen.fillRect(0, 0, g.width, g.height);
  frame(app, g, pen, g.stripTop, g.stripHeight, 0, most, g.stripHeight / 22);
  if (app.m.segments.count) frame(app, g, pen, g.mapTop, g.mapHeight, view.y0, view.y1, g.mapHeight / 48);
  drawScale(app, g, pen);
  if (g.narrow || !app.m.segments.count) return;
  pen.save();
  pen.translate(14, g.mapTop + g.mapHeight / 2);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "center";
  pen.fillStyle = colours.grey;
  const what = app.state.raw ? "address, above the lowest" : "address (reserved ranges only)";
  pen.fillText(what, 0, 0);
  pen.restore();
};

export const drawChart = (app, canvas, g) => {
  const { pen, scale, isNew } = fitCanvas(canvas, g.width, g.height);
  const { view, colours, sizes } = app;
  pen.font = FONT;
  pen.lineWidth = 1;
  const columns = stripColumns(app, Math.round(g.plotWidth * scale));
  // Where an OOM is named, its name has a line of its own above the pile.
  const most = columns.most * (app.m.oom.length ? g.stripHeight / (g.stripHeight - 22) : 1.06);
  const key = [most, view.y0, view.y1, g.width, g.height, scale, colours.page, sizes.low, sizes.high,
    app.state.raw].join();
  if (isNew || app.surround !== key) {
    app.surround = key;
    surround(app, g, pen, most);
  } else {
    pen.fillStyle = colours.page;
    // Below the map only time stands; the lowest byte tick reaches a little further down.
    const base = g.mapTop + g.mapHeight;
    pen.fillRect(g.left - 2, base + 1, g.width, 5);
    pen.fillRect(0, base + 5, g.width, g.height);
  }
  plot(app, g, pen, scale, "strip", g.stripTop, g.stripHeight,
    (words, wide, high) => paintStrip(app, columns, most, words, wide, high));
  plot(app, g, pen, scale, "map", g.mapTop, g.mapHeight,
    (words, wide, high) => paintMap(app, words, wide, high));
  borders(app, g, pen);
  drawTime(app, g, pen);
  if (!app.m.segments.count) halo(app, pen, "nothing was reserved", g.left + g.plotWidth / 2, g.mapTop + g.mapHeight / 2);
};
