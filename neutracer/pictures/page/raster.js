// SPDX-License-Identifier: Apache-2.0
// The address map as one class a pixel. Every block marks at least one pixel; where several
// meet in one, the largest stays.

import { CHUNK } from "./model.js";

export const FREE = 1;
export const DIM = 2;
export const FIRST_BLUE = 3;
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
  const found = new Uint8Array(m.rows);
  for (let i = 0; i < m.rows; i++) {
    const step = Math.round(Math.log2(m.size[i] / low) * scale);
    found[i] = FIRST_BLUE + Math.min(Math.max(step, 0), BLUES - 1);
  }
  return { of: found, low, high };
};

// Marks the rows [first, stop) of boxes that the view has a part of; the innermost loop of
// the page, and so without calls. `of` has typed arrays: made, end, y, size, value.
const mark = (of, first, stop, edges, view, width, height, out) => {
  const { made, end, y, size, value } = of;
  const { x0, y0 } = view;
  const kx = width / (view.x1 - x0);
  const ky = height / (view.y1 - y0);
  for (let i = first; i < stop; i++) {
    const l = (edges[made[i] + 1] - x0) * kx;
    if (l >= width) continue;
    const r = (edges[end[i] + 1] - x0) * kx;
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

// `view`: x0, x1 in the axis' coordinate, y0, y1 in bytes; y grows upwards.
export const rasterize = (m, axis, view, width, height, classOf, out) => {
  out.fill(0);
  const s = m.segments;
  s.value ??= new Uint8Array(s.count).fill(FREE);
  mark(s, 0, s.count, axis.edges, view, width, height, out);
  const first = axis.eventAt(view.x0);
  const last = axis.eventAt(view.x1);
  const k = m.index;
  const rows = { made: m.made, end: m.end, y: m.y, size: m.size, value: classOf };
  for (let c = 0; c < k.first.length; c++) {
    if (k.first[c] > last || k.last[c] < first) continue;
    if (k.low[c] >= view.y1 || k.high[c] <= view.y0) continue;
    const stop = Math.min((c + 1) * CHUNK, m.rows);
    mark(rows, c * CHUNK, stop, axis.edges, view, width, height, out);
  }
  return out;
};
