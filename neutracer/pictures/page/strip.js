// SPDX-License-Identifier: Apache-2.0
// The timeline's strip: allocated bytes in groups, under the line of what is reserved.

import { mixed, ofHex, packed } from "./dom.js";
import { groupSums, highest } from "./model.js";

// Red, green and blue of each group, and of the rest behind them, which is grey.
export const groupColours = (colours, groups) =>
  Array.from({ length: groups + 1 }, (_, g) => (g === groups
    ? mixed(colours.line, colours.grey) : ofHex(colours.groups[g % colours.groups.length])));

// What each pixel column shows: the highest moment within it.
export const stripColumns = (app, width) => {
  const { m, axis, view } = app;
  const events = new Int32Array(width);
  const allocated = new Float64Array(width);
  const reserved = new Float64Array(width);
  let from = axis.eventAt(view.x0);
  // All that happens at the very beginning belongs to the first column.
  while (from > 0 && axis.edges[from] === view.x0) from -= 1;
  const step = (view.x1 - view.x0) / width;
  for (let x = 0; x < width; x++) {
    const to = axis.eventAt(view.x0 + (x + 1) * step);
    const first = Math.max(from, 0);
    if (to < 0) {
      events[x] = -1;
      allocated[x] = m.startAllocated;
      reserved[x] = m.startReserved;
      continue;
    }
    events[x] = highest(m, "allocated", first, to + 1);
    allocated[x] = m.allocated[events[x]];
    reserved[x] = m.reserved[highest(m, "reserved", first, to + 1)];
    from = to;
  }
  let most = 1;
  for (let x = 0; x < width; x++) most = Math.max(most, allocated[x], reserved[x]);
  return { events, allocated, reserved, most };
};

// Paints the columns into `words`, a colour a pixel; the top of the strip is `top` bytes.
export const paintStrip = (app, columns, top, words, width, height) => {
  const { m, colours } = app;
  const fills = groupColours(colours, m.groups.length).map(packed);
  const [page, sand, line] = ["page", "sand", "sand-ink"].map((name) => packed(ofHex(colours[name])));
  const ky = height / top;
  words.fill(page);
  const fill = (x, from, to, colour) => {
    for (let at = Math.max(height - to, 0) * width + x, stop = (height - from) * width; at < stop; at += width) {
      words[at] = colour;
    }
  };
  let before = -1;
  groupSums(m, columns.events, (x, sums) => {
    let [held, y] = [0, 0];
    for (let k = 0; k < sums.length; k++) {
      held += sums[k];
      // What is not kept one by one stands on top of the last group.
      if (k === sums.length - 1) held = Math.max(held, columns.allocated[x]);
      const next = Math.min(Math.round(held * ky), height);
      if (next > y) { fill(x, y, next, fills[k]); y = next; }
    }
    const reserved = Math.min(Math.round(columns.reserved[x] * ky), height);
    fill(x, y, Math.max(reserved, y), sand);
    const edge = Math.max(reserved, 1);
    if (before < 0) before = edge;
    fill(x, Math.min(edge, before) - 1, Math.max(edge, before), line);
    before = edge;
  });
};
