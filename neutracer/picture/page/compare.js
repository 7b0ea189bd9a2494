// SPDX-License-Identifier: Apache-2.0
// Two moments, two files, or a file a rank: what grew, and which one is odd.

import { blueAt, byId, fitCanvas, fitted, made, rgb } from "./dom.js";
import { bytes, count, duration, share, steps } from "./units.js";

const ROWS = 25;
const WIDTH = 900;
const HEIGHT = 230;

// The map of ranks and time: a row a rank, as many as fit into its height.
const ROW = 14;
const LEAST_ROW = 2;
const TALLEST = 560;

// A value is odd that is far from the middle one, as far as the others go.
const ODD_SHARE = 0.05;
const ODD_TIMES = 3;

const middleOf = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

export const oddOnes = (values) => {
  const middle = middleOf(values);
  const apart = values.map((value) => Math.abs(value - middle));
  const usual = middleOf(apart);
  return apart.map((by) => by > ODD_SHARE * Math.max(Math.abs(middle), 1) && by > ODD_TIMES * usual);
};

// Differences by name between two lists of holders, the largest first.
export const differences = (before, after) => {
  const found = new Map();
  for (const { name, bytes: size } of before) found.set(name, { name, before: size, after: 0 });
  for (const { name, bytes: size } of after) {
    if (!found.has(name)) found.set(name, { name, before: 0, after: 0 });
    found.get(name).after = size;
  }
  return [...found.values()].map((one) => ({ ...one, by: one.after - one.before }))
    .filter(({ by }) => by).sort((a, b) => Math.abs(b.by) - Math.abs(a.by));
};

const signed = (size) => `${size > 0 ? "+" : size < 0 ? "−" : ""}${bytes(Math.abs(size))}`;

// Words under a point of an axis, within the picture.
const tick = (pen, text, x, y, width) => pen.fillText(text, Math.min(x, width - pen.measureText(text).width / 2 - 1), y);

// `run`: what a click on a row's first cell does, where there is something.
const table = (box, title, heads, rows) => {
  made(box, "h2", title);
  const frame = made(box, "div", "", "wide-table");
  const own = made(frame, "table");
  const head = made(made(own, "thead"), "tr");
  heads.forEach((name, k) => made(head, "th", name, k ? "num" : ""));
  const body = made(own, "tbody");
  for (const { cells, isOdd, run } of rows) {
    const line = made(body, "tr", "", isOdd ? "odd" : "");
    const [first, ...rest] = cells;
    const name = made(line, "td", run ? "" : first);
    if (run) made(name, "button", first, "link").addEventListener("click", run);
    for (const cell of rest) made(line, "td", cell, "num");
  }
};

const growth = (box, title, before, after, names) => {
  const rows = differences(before, after);
  table(box, title, ["", ...names, "difference"], rows.slice(0, ROWS).map((one) => ({
    cells: [one.name, bytes(one.before), bytes(one.after), signed(one.by)],
  })));
  if (!rows.length) made(box, "p", "No difference.", "muted");
};

// `open` shows the file of a number.
export const compare = (app, open) => {
  let mark = null;
  const isMarked = () => mark?.file === app.files[app.fileIndex] && mark.device === app.state.device;
  const marked = () => {
    const { device, event } = app.state;
    mark = { file: app.files[app.fileIndex], device, event };
  };

  // A file at its peak, looked at once.
  const summaryOf = async (file) => {
    if (file.summary) return file.summary;
    const { trace } = file;
    const event = trace.peak.allocated.event;
    const moment = await file.ask("moment", { event });
    const columns = await file.ask("draw", {
      x0: 0, x1: file.axis.width, y0: 0, y1: file.axis.height, width: WIDTH, height: 0,
    });
    const first = trace.ooms[0];
    const oom = first ? (await file.ask("moment", { event: first.event })).x : null;
    file.summary = { event, moment, columns, oom };
    return file.summary;
  };

  // Where each file begins on one axis: by the clock where traces of one run say so, else together.
  const offsetsOf = (files) => {
    const timed = files.every(({ axis, trace }) => axis.byTime && trace.firstTime);
    const begins = files.map(({ trace }) => trace.firstTime);
    const first = Math.min(...begins);
    const ends = files.map(({ axis }, k) => begins[k] - first + axis.width);
    const longest = Math.max(...files.map(({ axis }) => axis.width));
    return timed && Math.max(...ends) <= 2 * longest ? begins.map((begin) => begin - first) : begins.map(() => 0);
  };

  // Allocated bytes by rank and time: darker is more, blank is outside of a trace, red ran out.
  const drawMap = (files, summaries, odd) => {
    const canvas = byId("compare-canvas");
    const width = canvas.parentElement.clientWidth;
    const tall = Math.max(LEAST_ROW, Math.min(ROW, Math.floor(TALLEST / files.length)));
    const [left, top, high] = [Math.min(180, Math.round(width / 3)), 22, tall * files.length];
    const { pen } = fitCanvas(canvas, width, top + high + 26);
    const { colours } = app;
    pen.fillStyle = colours.page;
    pen.fillRect(0, 0, width, top + high + 26);
    pen.font = "12px system-ui, sans-serif";
    const offsets = offsetsOf(files);
    const span = Math.max(...files.map(({ axis }, k) => offsets[k] + axis.width), 1);
    const most = Math.max(...summaries.map(({ columns }) => Math.max(...columns.allocated)), 1);
    const wide = width - left - 10;
    summaries.forEach(({ columns, oom }, k) => {
      const y = top + k * tall;
      const step = (wide * files[k].axis.width) / span / columns.width;
      const begin = left + (wide * offsets[k]) / span;
      for (let x = 0; x < columns.width; x++) {
        pen.fillStyle = rgb(blueAt(colours, columns.allocated[x] / most));
        pen.fillRect(begin + x * step, y, step + 0.5, tall - (tall > 4 ? 1 : 0));
      }
      pen.fillStyle = colours.red;
      if (oom !== null) pen.fillRect(Math.min(begin + (wide * oom) / span, left + wide - 3), y, 3, tall);
      if (tall < 11) return;
      pen.fillStyle = odd[k] ? colours.red : colours.grey;
      pen.textAlign = "right";
      pen.fillText(fitted(pen, files[k].title, left - 12), left - 6, y + tall - 3);
    });
    pen.fillStyle = colours.grey;
    pen.textAlign = "center";
    for (const at of steps(0, span, wide / 90)) {
      tick(pen, files[0].axis.byTime ? duration(at) : count(at), left + (at / span) * wide, top + high + 18, width);
    }
    pen.textAlign = "left";
    pen.fillText(`allocated by file and time, the darkest is ${bytes(most)}`, left, 14, wide);
  };

  // Both files' lines on one axis: by time since their first events, or by events.
  const drawTwo = (files, summaries) => {
    const canvas = byId("compare-canvas");
    const width = canvas.parentElement.clientWidth;
    const { pen } = fitCanvas(canvas, width, HEIGHT);
    const { colours } = app;
    pen.fillStyle = colours.page;
    pen.fillRect(0, 0, width, HEIGHT);
    pen.font = "12px system-ui, sans-serif";
    const [left, top, wide, high] = [80, 20, width - 90, HEIGHT - 46];
    const longest = Math.max(...files.map(({ axis }) => axis.width));
    const most = 1.04 * Math.max(...summaries.map(({ columns }) => Math.max(...columns.reserved, ...columns.allocated)));
    pen.textAlign = "right";
    pen.fillStyle = colours.grey;
    for (const at of steps(0, most, 5, true)) pen.fillText(bytes(at), left - 6, top + high - (at / most) * high + 4);
    pen.textAlign = "center";
    for (const at of steps(0, longest, wide / 90)) {
      tick(pen, files[0].axis.byTime ? duration(at) : count(at), left + (at / longest) * wide, HEIGHT - 8, width);
    }
    pen.strokeStyle = colours.line;
    pen.strokeRect(left, top, wide, high);
    summaries.forEach(({ columns }, k) => {
      const scale = (wide * files[k].axis.width) / longest / columns.width;
      for (const [name, dash] of [["allocated", []], ["reserved", [5, 3]]]) {
        pen.beginPath();
        pen.setLineDash(dash);
        pen.strokeStyle = colours.hues[[2, 1][k]];
        pen.lineWidth = 1.6;
        for (let x = 0; x < columns.width; x++) {
          pen.lineTo(left + (x + 0.5) * scale, top + high - (columns[name][x] / most) * high);
        }
        pen.stroke();
      }
      pen.setLineDash([]);
      pen.textAlign = "left";
      pen.fillStyle = colours.hues[[2, 1][k]];
      pen.fillText(fitted(pen, files[k].title, wide / 2 - 10), left + k * (wide / 2), 13);
    });
  };

  const ranks = (box, files, summaries) => {
    const figures = {
      peak: files.map(({ trace }) => trace.peak.allocated.bytes),
      reserved: files.map(({ trace }) => trace.peak.reserved.bytes),
      unused: files.map(({ trace }) => trace.peak.reserved.bytes - trace.peak.allocated.bytes),
      failed: files.map(({ trace }) => trace.ooms.length),
    };
    const odd = files.map(() => false);
    if (files.length > 2) {
      for (const values of Object.values(figures)) oddOnes(values).forEach((is, k) => { odd[k] ||= is; });
    }
    const holders = summaries.map(({ moment }) => moment.places[0]);
    table(box, "Files", ["", "peak allocated", "peak reserved", "unused", "OOM", "largest holder"],
      files.map((file, k) => ({
        isOdd: odd[k], run: () => open(app.files.indexOf(file)),
        cells: [odd[k] ? `${file.title} (differs)` : file.title, bytes(figures.peak[k]), bytes(figures.reserved[k]),
          `${bytes(figures.unused[k])}, ${share(figures.unused[k] / Math.max(figures.reserved[k], 1))}`,
          String(file.trace.ooms.length), holders[k] ? `${bytes(holders[k].bytes)} ${holders[k].name}` : "–"],
      })));
    return odd;
  };

  const moments = async (box) => {
    const tools = byId("compare-moments");
    tools.replaceChildren();
    const button = made(tools, "button", "mark the cursor");
    button.addEventListener("click", () => { marked(); guarded(); });
    const here = `event ${count(app.state.event)}`;
    if (!isMarked()) {
      made(tools, "span", `Mark a moment (now ${here}), move the cursor, and see here what changed.`, "muted");
      return;
    }
    made(tools, "span", `marked: event ${count(mark.event)}; the cursor: ${here}`, "muted");
    const [before, after] = await Promise.all([mark.event, app.state.event].map((event) => app.ask("moment", { event, all: true })));
    const names = [`event ${count(mark.event)}`, here];
    growth(box, "What changed, by line", before.places, after.places, names);
    growth(box, "What changed, by category", before.categories, after.categories, names);
  };

  let drawn = 0;
  const draw = async () => {
    if (app.state.tab !== "compare" || !app.trace) return;
    const mine = ++drawn;
    const box = made(null, "div");
    const canvas = byId("compare-canvas");
    // Those that are still being opened come later.
    const files = app.files.filter(({ trace, axis }) => trace && axis);
    canvas.hidden = files.length < 2;
    byId("compare-words").textContent = files.length > 2 ? `${files.length} files`
      : files.length === 2 ? "2 files: allocated, and dashed what is reserved"
        : "two moments of this file; drop another file to compare files";
    await moments(box);
    if (files.length > 1) {
      const summaries = [];
      for (const file of files) summaries.push(await summaryOf(file));
      if (mine !== drawn) return;
      const odd = ranks(box, files, summaries);
      if (files.length > 2) drawMap(files, summaries, odd);
      if (files.length === 2) {
        drawTwo(files, summaries);
        const names = files.map(({ title }) => title);
        const [before, after] = await Promise.all(files.map(
          (file, k) => file.ask("moment", { event: summaries[k].event, all: true })));
        growth(box, "At their peaks, by line", before.places, after.places, names);
        growth(box, "At their peaks, by category", before.categories, after.categories, names);
      }
    }
    if (mine === drawn) byId("compare-tables").replaceChildren(...box.childNodes);
  };
  // Of what another trace or axis has replaced, nothing failed that matters.
  const guarded = () => {
    const { serial } = app;
    return draw().catch((error) => { if (serial === app.serial) app.complain(error); });
  };
  return { draw: guarded, mark: () => { marked(); app.set({ tab: "compare" }); } };
};
