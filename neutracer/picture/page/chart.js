// SPDX-License-Identifier: Apache-2.0
// Drawing of the chart: the strip of the timeline, lanes, and the address map, on one time
// axis. The core draws both pictures for exactly the range on the screen; until they come,
// the last ones stand where they belong in the new range.

import { fitCanvas, rgb } from "./dom.js";
import { byteTicks, bytes, count, digits, steps } from "./units.js";

const FONT = "12px system-ui, sans-serif";
const LANE = 16;

// Where things stand in a chart of this size, with so many lanes.
export const geometry = (width, height, lanes, hasOom) => {
  const narrow = width < 560;
  const left = narrow ? 76 : 92;
  const right = narrow ? 8 : 16;
  const stripTop = hasOom ? 24 : 10;
  const stripHeight = Math.round(Math.min(Math.max(height * 0.24, 70), 160));
  const laneTop = stripTop + stripHeight + 6;
  const mapTop = laneTop + lanes * LANE + 10;
  return {
    width, height, narrow, left, right, stripTop, stripHeight, laneTop, laneHeight: LANE, mapTop,
    plotWidth: Math.max(width - left - right, 40),
    mapHeight: Math.max(height - mapTop - 40, 60),
  };
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

// The border of a plot, with ticks in bytes.
const frame = (app, g, pen, top, height, low, high, most) => {
  const { colours } = app;
  pen.strokeStyle = colours.line;
  pen.strokeRect(g.left - 0.5, top - 0.5, g.plotWidth + 1, height + 1);
  pen.fillStyle = colours.grey;
  pen.textAlign = "right";
  const ticks = steps(low, high, most, true);
  const words = byteTicks(ticks);
  ticks.forEach((at, k) => {
    const y = top + height - ((at - low) / (high - low)) * height;
    pen.fillText(words[k], g.left - 7, Math.min(y + 4, top + height + 3));
    pen.fillRect(g.left - 4, Math.round(y), 3, 1);
  });
};

// Hairlines between segments, where they do not hide what they part.
const borders = (app, g, pen) => {
  const { view, colours } = app;
  const ky = g.mapHeight / (view.y1 - view.y0);
  const seen = app.axis.borders.filter((y) => y > view.y0 && y < view.y1);
  if (seen.length > g.mapHeight / 8) return;
  pen.fillStyle = colours.line;
  for (const y of seen) {
    pen.fillRect(g.left, Math.round(g.mapTop + g.mapHeight - (y - view.y0) * ky), g.plotWidth, 1);
  }
};

// Ticks of one axis have one unit and as many digits as they differ by.
const timeTick = (us, { x0, x1 }) => {
  const span = x1 - x0;
  if (span < 2e3) return `${count(us)} µs`;
  const [unit, name] = span >= 1e6 ? [1e6, "s"] : [1e3, "ms"];
  const places = Math.max(0, Math.min(3, Math.ceil(-Math.log10(span / unit / 8))));
  return `${digits(us / unit, places)} ${name}`;
};

const timeName = ({ trace, axis }) => (!trace.events ? "no history: the moment of the snapshot"
  : axis.byTime ? "time since the first event" : "allocator event");

const toPixel = (app, g) => (x) => g.left + ((x - app.view.x0) / (app.view.x1 - app.view.x0)) * g.plotWidth;

const drawTime = (app, g, pen) => {
  const { axis, view, colours, trace } = app;
  const base = g.mapTop + g.mapHeight;
  pen.fillStyle = colours.grey;
  pen.textAlign = "center";
  const toX = toPixel(app, g);
  const span = view.x1 - view.x0;
  const most = Math.min(g.plotWidth / 80, Math.max(span, 1));
  // By event position p stands behind event p - 1.
  const shift = axis.byTime ? 0 : 1;
  for (const at of trace.events ? steps(view.x0 - shift, view.x1 - shift, most) : []) {
    if (at < 0) continue;
    pen.fillRect(Math.round(toX(at + shift)), base + 1, 1, 4);
    const text = axis.byTime ? timeTick(at, view) : count(at);
    // The last one ends with the chart, not behind it.
    const half = pen.measureText(text).width / 2;
    pen.fillText(text, Math.min(toX(at + shift), g.width - half - 2), base + 17);
  }
  pen.fillText(timeName(app), g.left + g.plotWidth / 2, base + 33);
  // Out of memory: a line through all plots, and its words in a line of their own above.
  let taken = -1e9;
  for (const { x, asked } of app.ooms) {
    const px = toX(x);
    if (px < g.left - 1 || px > g.left + g.plotWidth + 1) continue;
    pen.fillStyle = colours.red;
    pen.fillRect(Math.round(px) - 1, g.stripTop - 4, 3, base - g.stripTop + 4);
    const text = `OOM, needed ${bytes(asked)}`;
    const width = pen.measureText(text).width + 12;
    const left = px - width > g.left;
    if (px - (left ? width : 0) < taken) continue;
    taken = px + (left ? 4 : width);
    pen.textAlign = left ? "right" : "left";
    halo(app, pen, text, px + (left ? 2 : -2), g.stripTop - 10);
  }
};

// As much of a text as there is room for.
const fitting = (pen, text, room) => {
  const width = pen.measureText(text).width;
  if (width <= room) return text;
  const kept = Math.floor((text.length * room) / width) - 1;
  return kept > 1 ? `${text.slice(0, kept)}…` : "";
};

const drawLanes = (app, g, pen) => {
  const toX = toPixel(app, g);
  app.axis.lanes.lanes.forEach(({ kind, ranges }, k) => {
    const top = g.laneTop + k * g.laneHeight;
    pen.fillStyle = app.colours.grey;
    pen.textAlign = "right";
    // Narrow pages have room for a short word.
    pen.fillText(g.narrow && kind === "annotations" ? "ranges" : kind, g.left - 7, top + 11);
    pen.save();
    pen.beginPath();
    pen.rect(g.left, top, g.plotWidth, g.laneHeight);
    pen.clip();
    pen.textAlign = "left";
    let painted = -1;
    ranges.forEach(({ name, x0, x1 }, n) => {
      const [a, b] = [toX(x0), toX(x1)];
      if (b < g.left || a > g.left + g.plotWidth || (b <= painted && b - a < 1)) return;
      painted = b;
      pen.fillStyle = n % 2 ? app.colours.surface : app.colours.line;
      pen.fillRect(a, top + 1, Math.max(b - a - 0.5, 0.7), g.laneHeight - 2);
      if (b - a < 26) return;
      pen.fillStyle = app.colours.ink;
      const from = Math.max(a, g.left);
      const room = Math.min(b, g.left + g.plotWidth) - from - 8;
      // Of a step, its number says as much.
      const short = kind === "steps" && pen.measureText(name).width > room ? name.replace(/^step /, "") : name;
      pen.fillText(fitting(pen, short, room), from + 4, top + 12);
    });
    pen.restore();
  });
};

// What each private pool has reserved, as a line over the strip.
const drawPools = (app, g, pen, top) => {
  const toX = toPixel(app, g);
  const toY = (size) => g.stripTop + g.stripHeight - (size / top) * g.stripHeight;
  pen.save();
  pen.beginPath();
  pen.rect(g.left, g.stripTop, g.plotWidth, g.stripHeight);
  pen.clip();
  pen.setLineDash([5, 3]);
  pen.lineWidth = 1.5;
  pen.strokeStyle = app.colours.ink;
  for (const { steps: changes } of app.axis.lanes.pools) {
    pen.beginPath();
    let [x, size] = [g.left, 0];
    pen.moveTo(x, toY(0));
    for (const [at, next] of changes) {
      x = Math.min(Math.max(toX(at), g.left - 2), g.left + g.plotWidth + 2);
      pen.lineTo(x, toY(size));
      pen.lineTo(x, toY(next));
      size = next;
    }
    pen.lineTo(g.left + g.plotWidth, toY(size));
    pen.stroke();
  }
  pen.restore();
};

// A tile of strokes, which go on in the next one.
const hatch = (pen, colour) => {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const ink = tile.getContext("2d");
  ink.strokeStyle = colour;
  for (const x of [-8, 0, 8]) { ink.moveTo(x, 8); ink.lineTo(x + 8, 0); }
  ink.stroke();
  return pen.createPattern(tile, "repeat");
};

// Strokes over blocks that are kept past their last use.
const drawIdle = (app, g, pen) => {
  const { view, colours, axis } = app;
  if (!axis.lanes.idle.length) return;
  const [toX, ky] = [toPixel(app, g), g.mapHeight / (view.y1 - view.y0)];
  const toY = (y) => g.mapTop + g.mapHeight - (y - view.y0) * ky;
  pen.save();
  pen.beginPath();
  pen.rect(g.left, g.mapTop, g.plotWidth, g.mapHeight);
  pen.clip();
  pen.beginPath();
  for (const { x0, x1, y0, y1 } of axis.lanes.idle) {
    if (x1 > view.x0 && x0 < view.x1 && y1 > view.y0 && y0 < view.y1) pen.rect(toX(x0), toY(y1), toX(x1) - toX(x0), (y1 - y0) * ky);
  }
  pen.fillStyle = hatch(pen, colours.page);
  pen.fill();
  pen.restore();
};

// Puts a picture of an older view where it belongs in this one.
const putPicture = (app, g, pen, canvas, top, height, shot, isMap) => {
  const { view } = app;
  pen.save();
  pen.beginPath();
  pen.rect(g.left, top, g.plotWidth, height);
  pen.clip();
  const kx = g.plotWidth / (view.x1 - view.x0);
  const x = g.left + (shot.x0 - view.x0) * kx;
  const width = (shot.x1 - shot.x0) * kx;
  if (isMap) {
    const ky = height / (view.y1 - view.y0);
    const y = top + height - (shot.y1 - view.y0) * ky;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(canvas, x, y, width, (shot.y1 - shot.y0) * ky);
  } else {
    pen.imageSmoothingEnabled = false;
    pen.drawImage(canvas, x, top, width, height);
  }
  pen.restore();
};

export const drawChart = (app, canvas, g) => {
  const { pen } = fitCanvas(canvas, g.width, g.height);
  const { view, colours, shot } = app;
  pen.font = FONT;
  pen.lineWidth = 1;
  pen.fillStyle = colours.page;
  pen.fillRect(0, 0, g.width, g.height);
  if (!shot) return;
  putPicture(app, g, pen, app.stripCanvas, g.stripTop, g.stripHeight, shot, false);
  drawPools(app, g, pen, shot.top);
  frame(app, g, pen, g.stripTop, g.stripHeight, 0, shot.top, g.stripHeight / 22);
  drawLanes(app, g, pen);
  if (app.trace.segments) {
    putPicture(app, g, pen, app.mapCanvas, g.mapTop, g.mapHeight, shot, true);
    drawIdle(app, g, pen);
    borders(app, g, pen);
    frame(app, g, pen, g.mapTop, g.mapHeight, view.y0, view.y1, g.mapHeight / 48);
  } else {
    pen.textAlign = "center";
    pen.fillStyle = colours.ink;
    halo(app, pen, "nothing was reserved", g.left + g.plotWidth / 2, g.mapTop + g.mapHeight / 2);
  }
  drawTime(app, g, pen);
  if (g.narrow || !app.trace.segments) return;
  pen.save();
  pen.translate(14, g.mapTop + g.mapHeight / 2);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "center";
  pen.fillStyle = colours.grey;
  pen.fillText(app.state.raw ? "address, above the lowest" : "address (reserved ranges only)", 0, 0);
  pen.restore();
};

// A picture of its own: the strip above the map, without an axis.
export const drawSmall = (canvas, colours, strip, map, height) => {
  const width = Math.floor(canvas.parentElement.getBoundingClientRect().width);
  const { pen } = fitCanvas(canvas, width, height);
  pen.fillStyle = colours.page;
  pen.fillRect(0, 0, width, height);
  const split = Math.round(height * 0.35);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(strip, 0, 0, width, split - 4);
  pen.drawImage(map, 0, split, width, height - split);
  pen.strokeStyle = rgb([128, 128, 128]);
  pen.strokeRect(0.5, 0.5, width - 1, split - 5);
  pen.strokeRect(0.5, split + 0.5, width - 1, height - split - 1);
};
