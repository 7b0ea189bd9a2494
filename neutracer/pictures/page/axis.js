// SPDX-License-Identifier: Apache-2.0
// The axis that timeline and address map share: seconds or events, as one coordinate.

import { boxes } from "./raster.js";

// An event's state lasts until the next one; what is there before the first event and after
// the last one gets this share of the axis.
const MARGIN = 0.008;

export const makeAxis = (m, kind) => {
  const timed = kind === "time" && m.isTimed;
  const x = new Float64Array(m.n);
  for (let i = 0, latest = 0; i < m.n; i++) {
    latest = timed ? Math.max(latest, m.time[i]) : (m.number ? m.number[i] : i);
    x[i] = latest;
  }
  const first = m.n ? x[0] : 0;
  const last = m.n ? x[m.n - 1] : 1;
  const margin = Math.max((last - first) * MARGIN, timed ? 1e-3 : 1);
  const before = m.startReserved > 0 ? margin : 0;
  // edges[e + 1] is where event e happens; edges[0] the beginning, edges[n + 1] the end.
  const edges = new Float64Array(m.n + 2);
  edges[0] = first - before;
  edges.set(x, 1);
  edges[m.n + 1] = last + margin;
  // The last event at or before a coordinate; -1 before the first.
  const eventAt = (at) => {
    let [low, high] = [0, m.n];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle] <= at) low = middle + 1; else high = middle;
    }
    return low - 1;
  };
  const axis = { kind: timed ? "time" : "event", edges, eventAt, low: edges[0], high: edges[m.n + 1] };
  axis.boxes = boxes(m, axis);
  return axis;
};

// A view with its ends kept inside, and no narrower than a few steps of the axis.
export const clampView = (low, high, least, most, narrowest) => {
  let width = Math.min(Math.max(high - low, narrowest), most - least);
  if (!(width > 0)) width = most - least;
  const start = Math.min(Math.max((low + high - width) / 2, least), most - width);
  return [start, start + width];
};

export const zoomed = ([low, high], factor, at) => [at - (at - low) / factor, at + (high - at) / factor];
