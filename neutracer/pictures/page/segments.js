// SPDX-License-Identifier: Apache-2.0
// The layout at the cursor: a bar a segment, its blocks blue and its holes sand.

import { blueAt, byId, fitCanvas, made, ofHex, perFrame, rgb } from "./dom.js";
import { hexAddress, layoutAt, placeName, poolOf } from "./model.js";
import { bytes, many } from "./units.js";
import { BLUES, DIM, FIRST_BLUE } from "./raster.js";

const ROW = 26;
const FONT = "12px system-ui, sans-serif";

// Pixels of a segment's size, with the gaps at its sides.
const SIZE_ROOM = 84;

export const segments = (app) => {
  const [view, sheet, canvas] = [byId("segment-scroll"), byId("segment-sheet"), byId("segment-canvas")];
  const tip = byId("segment-tip");
  let layout = [];
  let most = 1;
  let known = null;
  let widest = null;
  let longest = 0;

  // What stands before a bar: where it is, and of which pool; on a phone only the pool.
  const label = (segment) => {
    const pool = poolOf(app.m, segment.row);
    return view.clientWidth < 560 ? pool : `${hexAddress(app.m, segment.address)}  ${pool}`;
  };

  // Room for a label is for the longest, but at most a part of the width.
  const LABEL_PART = 0.4;
  const labelWidth = () => Math.min(longest + SIZE_ROOM, Math.round(view.clientWidth * LABEL_PART));

  const partial = "only the blocks that this page keeps one by one are drawn";
  const free = (left) => `${bytes(left)} of it free, the largest hole `
    + `${bytes(layout.reduce((best, segment) => Math.max(best, segment.hole), 0))}`;

  const prepare = () => {
    const key = `${app.state.device} ${app.state.event}`;
    if (key === known) return;
    known = key;
    layout = layoutAt(app.m, app.state.event);
    const order = byId("segment-order").value;
    if (order === "free") layout.sort((a, b) => b.size - b.used - (a.size - a.used));
    if (order === "hole") layout.sort((a, b) => b.hole - a.hole);
    widest = layout.reduce((best, segment) =>
      (best && label(best).length >= label(segment).length ? best : segment), null);
    most = layout.reduce((best, segment) => Math.max(best, segment.size), 1);
    const [size, used] = layout.reduce((s, l) => [s[0] + l.size, s[1] + l.used], [0, 0]);
    byId("segment-words").textContent = layout.length
      ? `${many(layout.length, "segment")}, ${bytes(size)}; ${app.m.isPartial ? partial : free(size - used)}`
      : "Nothing is reserved at this moment.";
    sheet.style.height = `${layout.length * ROW + 4}px`;
  };

  const draw = () => {
    if (app.state.tab !== "segments") return;
    prepare();
    const { m, colours } = app;
    const [width, height] = [view.clientWidth, view.clientHeight];
    const { pen } = fitCanvas(canvas, width, height);
    pen.clearRect(0, 0, width, height);
    pen.font = FONT;
    longest = widest ? pen.measureText(label(widest)).width : 0;
    const first = Math.floor(view.scrollTop / ROW);
    const left = labelWidth();
    for (let k = first; k < layout.length && k * ROW < view.scrollTop + height; k++) {
      const y = k * ROW - view.scrollTop + 3;
      bar(m, colours, pen, layout[k], left, y, width - left - 8);
    }
  };

  const spread = (segment, width) => Math.max((segment.size / most) * width, 24);

  const bar = (m, colours, pen, segment, left, y, width) => {
    const full = spread(segment, width);
    const scale = full / segment.size;
    pen.fillStyle = colours.grey;
    pen.textAlign = "left";
    pen.fillText(label(segment), 2, y + 14, left - SIZE_ROOM);
    pen.fillStyle = colours.ink;
    pen.textAlign = "right";
    pen.fillText(bytes(segment.size), left - 10, y + 14);
    pen.fillStyle = colours.sand;
    pen.fillRect(left, y, full, ROW - 6);
    for (const row of segment.blocks) {
      const shade = app.kinds.of[row];
      pen.fillStyle = shade === DIM ? rgb(ofHex(colours.line))
        : rgb(blueAt(colours, (shade - FIRST_BLUE) / (BLUES - 1)));
      const x = left + (m.address[row] - segment.address) * scale;
      const w = m.size[row] * scale;
      // A hairline between neighbours, where there is room for one.
      pen.fillRect(x, y, Math.max(w > 4 ? w - 1 : w, 0.7), ROW - 6);
      if (row === app.state.pin) {
        pen.strokeStyle = colours.ink;
        pen.lineWidth = 2;
        pen.strokeRect(x, y, Math.max(w, 2), ROW - 6);
      }
    }
    pen.lineWidth = 1;
    pen.strokeStyle = colours.line;
    pen.strokeRect(left + 0.5, y + 0.5, full, ROW - 7);
  };

  const find = (event) => {
    const frame = view.getBoundingClientRect();
    const segment = layout[Math.floor((event.clientY - frame.top + view.scrollTop) / ROW)];
    const left = labelWidth();
    const x = event.clientX - frame.left - left;
    if (!segment || x < 0) return null;
    const width = spread(segment, view.clientWidth - left - 8);
    const at = segment.address + (x / width) * segment.size;
    if (x > width) return null;
    const { m } = app;
    const row = segment.blocks.find((r) => m.address[r] <= at && at < m.address[r] + m.size[r]);
    return { segment, row: row ?? -1 };
  };

  view.addEventListener("pointermove", (event) => {
    const found = find(event);
    tip.hidden = !found;
    if (!found) return;
    const { m } = app;
    tip.replaceChildren();
    if (found.row < 0) made(tip, "div", `free; the segment's largest hole is ${bytes(found.segment.hole)}`);
    else {
      made(tip, "b", bytes(m.size[found.row]));
      made(tip, "div", placeName(m, m.stackPlace[m.stack[found.row]]));
      made(tip, "div", app.lifeWords(found.row), "muted");
    }
    const frame = view.parentElement.getBoundingClientRect();
    tip.style.left = `${Math.min(event.clientX - frame.left + 12, frame.width - tip.offsetWidth - 4)}px`;
    tip.style.top = `${event.clientY - frame.top + 16}px`;
  });
  view.addEventListener("pointerleave", () => { tip.hidden = true; });
  view.addEventListener("click", (event) => {
    const found = find(event);
    app.set({ pin: found ? found.row : -1 });
  });
  const soon = perFrame(draw);
  view.addEventListener("scroll", soon);
  byId("segment-order").addEventListener("change", () => { known = null; soon(); });
  new ResizeObserver(soon).observe(view);
  return { draw: soon };
};
