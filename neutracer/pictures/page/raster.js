// SPDX-License-Identifier: Apache-2.0
// The address map as one class a pixel. Every block marks at least one pixel; where several
// meet in one, the largest stays.

import { CHUNK } from "./model.js";

export const FREE = 1;
export const DIM = 2;
// In use by blocks that the page does not hold one by one, where these are drawn coarsely.
export const OTHER = 3;
export const FIRST_BLUE = 4;
export const BLUES = 60;

// The sizes between which the blue scale runs: what is smaller than `low` has 2 % of all
// bytes times events, and what is larger than `high` as little.
const bounds = (m) => {
  const weights = new Float64Array(65 * 4);
  let all = 0;
  for (let i = 0; i < m.rows; i++) {
    const weight = m.size[i] * Math.max(m.end[i] - Math.max(m.made[i], 0), 1);
    weights[Math.max(0, Math.floor(Math.log2(m.size[i]) * 4))] += weight;
    all += weight;
  }
  const used = [...weights.keys()].filter((k) => weights[k] > 0);
  if (!used.length) return [512, 1024];
  let sum = 0;
  const low = used.find((k) => (sum += weights[k]) > 0.02 * all);
  sum = 0;
  const high = used.reverse().find((k) => (sum += weights[k]) > 0.005 * all);
  return [2 ** (Math.floor(Math.min(low, high - 8) / 4)), 2 ** Math.ceil((high + 1) / 4)];
};

// By allocation, its class: a step of the blue scale, which is logarithmic in bytes.
export const classes = (m) => {
  const [low, high] = bounds(m);
  const scale = (BLUES - 1) / Math.log2(high / low);
  const classOf = (log) => {
    const step = Math.round((log - Math.log2(low)) * scale);
    return FIRST_BLUE + Math.min(Math.max(step, 0), BLUES - 1);
  };
  const found = new Uint8Array(m.rows);
  for (let i = 0; i < m.rows; i++) found[i] = classOf(Math.log2(m.size[i]));
  // The cells of the coarse picture have four classes a doubling, from 1 on.
  const cells = Uint8Array.from({ length: 256 }, (_, c) => (c ? classOf((c - 0.5) / 4) : 0));
  return { of: found, low, high, cells };
};

// Marks the rows [first, stop) of boxes that the view has a part of; the innermost loop of
// the page, and so without calls. `of` has typed arrays: left, right, y, size, value.
const mark = (of, first, stop, view, width, height, out) => {
  const { left: begins, right: ends, y, size, value } = of;
  const { x0, y0 } = view;
  const kx = width / (view.x1 - x0);
  const ky = height / (view.y1 - y0);
  for (let i = first; i < stop; i++) {
    const l = (begins[i] - x0) * kx;
    if (l >= width) continue;
    const r = (ends[i] - x0) * kx;
    if (r < 0) continue;
    const b = (y[i] - y0) * ky;
    if (b >= height) continue;
    const t = b + size[i] * ky;
    if (t < 0 || y[i] < 0) continue;
    let left = l > 0 ? (l + 0.5) | 0 : 0;
    if (left >= width) left = width - 1;
    let right = r < width ? (r + 0.5) | 0 : width;
    if (right <= left) right = left + 1;
    let low = b > 0 ? (b + 0.5) | 0 : 0;
    if (low >= height) low = height - 1;
    let high = t < height ? (t + 0.5) | 0 : height;
    if (high <= low) high = low + 1;
    const v = value[i];
    for (let row = height - high; row < height - low; row++) {
      const base = row * width;
      for (let p = base + left; p < base + right; p++) if (out[p] < v) out[p] = v;
    }
  }
};

// Where rows begin and end on an axis.
const spans = (of, edges, count) => {
  const [left, right] = [new Float64Array(count), new Float64Array(count)];
  for (let i = 0; i < count; i++) {
    left[i] = edges[of.made[i] + 1];
    right[i] = edges[of.end[i] + 1];
  }
  return { left, right, y: of.y, size: of.size };
};

// What an axis makes of blocks and segments, for `rasterize`.
export const boxes = (m, axis) => ({
  blocks: spans(m, axis.edges, m.rows),
  segments: {
    ...spans(m.segments, axis.edges, m.segments.count),
    value: new Uint8Array(m.segments.count).fill(FREE),
  },
});

// The cells of one direction that each of `pixels` covers: pairs of first and last.
const cellsOf = (pixels, cells, at) => {
  const found = new Int32Array(2 * pixels);
  for (let k = 0; k < pixels; k++) {
    found[2 * k] = Math.min(Math.max(at(k), 0), cells - 1);
    found[2 * k + 1] = Math.min(Math.max(at(k + 1, true), found[2 * k]), cells - 1);
  }
  return found;
};

// The column of the coarse picture at a coordinate: it counts states, of which the first
// stands before the first event. `last`: of what lies just before the coordinate.
const coarseColumn = (m, axis, x, last) => {
  const event = axis.kind === "event" ? Math.ceil(x) - (last ? 1 : 0) : m.number[Math.max(axis.eventAt(x), 0)];
  return Math.floor(((Math.min(event, m.meta.events - 1) + 1) * m.coarse.width) / (m.meta.events + 1));
};

// Marks what the page does not hold one by one: in blues where a cell is no larger than a
// pixel, else as one flat class.
const markCoarse = (m, axis, view, width, height, blues, out) => {
  const { cells, width: wide, height: high } = m.coarse;
  const xs = cellsOf(width, wide, (k, last) =>
    coarseColumn(m, axis, view.x0 + ((view.x1 - view.x0) * k) / width, last));
  const ys = cellsOf(height, high, (k, last) => {
    const y = m.compactOf(view.y0 + ((view.y1 - view.y0) * k) / height);
    return last ? Math.ceil((y / m.compact) * high) - 1 : Math.floor((y / m.compact) * high);
  });
  const fine = (view.y1 - view.y0) / height >= m.compact / high && xs[2 * width - 1] - xs[0] >= width;
  for (let py = 0; py < height; py++) {
    const base = (height - 1 - py) * width;
    for (let px = 0; px < width; px++) {
      let best = 0;
      for (let row = ys[2 * py]; row <= ys[2 * py + 1]; row++) {
        for (let at = row * wide + xs[2 * px]; at <= row * wide + xs[2 * px + 1]; at++) {
          if (cells[at] > best) best = cells[at];
        }
      }
      if (best) out[base + px] = Math.max(out[base + px], fine ? blues[best] : OTHER);
    }
  }
};

// Whether something that the page does not hold one by one was in use near a point.
export const coarseAt = (m, axis, x, y) => {
  if (!m.coarse) return false;
  const column = Math.min(Math.max(coarseColumn(m, axis, x, false), 0), m.coarse.width - 1);
  const row = Math.min(Math.floor((m.compactOf(y) / m.compact) * m.coarse.height), m.coarse.height - 1);
  return row >= 0 && m.coarse.cells[row * m.coarse.width + column] > 0;
};

// `view`: x0, x1 in the axis' coordinate, y0, y1 in bytes; y grows upwards. `kinds`: the
// class of each allocation, and those of the coarse cells.
export const rasterize = (m, axis, view, width, height, kinds, out) => {
  out.fill(0);
  const of = axis.boxes;
  mark(of.segments, 0, m.segments.count, view, width, height, out);
  if (m.coarse) markCoarse(m, axis, view, width, height, kinds.cells, out);
  const first = axis.eventAt(view.x0);
  const last = axis.eventAt(view.x1);
  const k = m.index;
  const rows = { ...of.blocks, value: kinds.of };
  for (let c = 0; c < k.first.length; c++) {
    if (k.first[c] > last || k.last[c] < first) continue;
    if (k.low[c] >= view.y1 || k.high[c] <= view.y0) continue;
    const stop = Math.min((c + 1) * CHUNK, m.rows);
    mark(rows, c * CHUNK, stop, view, width, height, out);
  }
  return out;
};
