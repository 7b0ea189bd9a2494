// SPDX-License-Identifier: Apache-2.0
// The layout at the cursor: a bar a segment, its blocks in the colours of the timeline and its
// holes sand.

import { latest } from "./client.js";
import { byId, fitCanvas, made, perFrame, placed, rgb } from "./dom.js";
import { bandColours } from "./strip.js";
import { bytes, many } from "./units.js";

const ROW = 26;
const FONT = "12px system-ui, sans-serif";

// Pixels of a segment's size, with the gaps at its sides.
const SIZE_ROOM = 84;

// Room for a label is for the longest, but at most a part of the width.
const LABEL_PART = 0.4;

const PENDING = 2;

export const segments = (app) => {
  const [view, sheet, canvas] = [byId("segment-scroll"), byId("segment-sheet"), byId("segment-canvas")];
  const tip = byId("segment-tip");
  let layout = { segments: [], blocks: null };
  let most = 1;
  let known = null;
  let widest = null;
  let longest = 0;

  // What stands before a bar: where it is, and of which pool; on a phone only the pool.
  const label = ({ pool, address, isExpandable }) => {
    const what = isExpandable ? `${pool}, expandable` : pool;
    return view.clientWidth < 560 ? pool : `${address}  ${what}`;
  };
  const labelWidth = () => Math.min(longest + SIZE_ROOM, Math.round(view.clientWidth * LABEL_PART));

  const prepare = async () => {
    const order = byId("segment-order").value;
    const key = `${app.serial} ${app.state.event} ${order}`;
    if (key === known) return;
    known = key;
    const found = await app.ask("layout", { event: app.state.event, order });
    if (key !== known) return;
    layout = found;
    const list = layout.segments;
    widest = list.reduce((best, segment) => (best && label(best).length >= label(segment).length ? best : segment), null);
    most = list.reduce((best, segment) => Math.max(best, segment.size), 1);
    const [size, used] = list.reduce((sums, one) => [sums[0] + one.size, sums[1] + one.used], [0, 0]);
    const hole = list.reduce((best, one) => Math.max(best, one.hole), 0);
    byId("segment-words").textContent = list.length
      ? `${many(list.length, "segment")}, ${bytes(size)}; ${bytes(size - used)} of it free, the largest hole ${bytes(hole)}`
      : "Nothing is reserved at this moment.";
    sheet.style.height = `${list.length * ROW + 4}px`;
    soon();
  };

  const spread = (segment, width) => Math.max((segment.size / most) * width, 24);

  const bar = (pen, segment, fills, left, y, width) => {
    const { colours } = app;
    const { offset, size, row, band, state } = layout.blocks;
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
    for (let k = segment.first; k < segment.first + segment.count; k++) {
      if (!state[k]) continue;
      pen.fillStyle = fills[band[k]];
      const [x, w] = [left + offset[k] * scale, size[k] * scale];
      // A hairline between neighbours, where there is room for one.
      pen.fillRect(x, y, Math.max(w > 4 ? w - 1 : w, 0.7), ROW - 6);
      if (row[k] >= 0 && row[k] === app.state.pin) {
        pen.strokeStyle = colours.ink;
        pen.lineWidth = 2;
        pen.strokeRect(x, y, Math.max(w, 2), ROW - 6);
      }
    }
    pen.lineWidth = 1;
    pen.strokeStyle = colours.line;
    pen.strokeRect(left + 0.5, y + 0.5, full, ROW - 7);
  };

  const draw = () => {
    if (app.state.tab !== "segments" || !app.trace) return;
    prepare().catch(app.complain);
    const [width, height] = [view.clientWidth, view.clientHeight];
    const { pen } = fitCanvas(canvas, width, height);
    pen.clearRect(0, 0, width, height);
    pen.font = FONT;
    longest = widest ? pen.measureText(label(widest)).width : 0;
    const fills = bandColours(app.colours, app.bands).map(rgb);
    const first = Math.floor(view.scrollTop / ROW);
    const left = labelWidth();
    for (let k = first; k < layout.segments.length && k * ROW < view.scrollTop + height; k++) {
      bar(pen, layout.segments[k], fills, left, k * ROW - view.scrollTop + 3, width - left - 8);
    }
  };

  // The segment under the pointer, and its block or -1.
  const find = (event) => {
    const frame = view.getBoundingClientRect();
    const segment = layout.segments[Math.floor((event.clientY - frame.top + view.scrollTop) / ROW)];
    const left = labelWidth();
    const x = event.clientX - frame.left - left;
    if (!segment || x < 0) return null;
    const width = spread(segment, view.clientWidth - left - 8);
    if (x > width) return null;
    const at = (x / width) * segment.size;
    const { offset, size, state } = layout.blocks;
    for (let k = segment.first; k < segment.first + segment.count; k++) {
      if (state[k] && offset[k] <= at && at < offset[k] + size[k]) return { segment, block: k };
    }
    return { segment, block: -1 };
  };

  // Where the pointer is, and whose block is there once that is known.
  let pointed = null;
  const tell = () => {
    const { segment, block, x, y, owner } = pointed;
    tip.hidden = false;
    tip.replaceChildren();
    if (block < 0) made(tip, "div", `free; the segment's largest hole is ${bytes(segment.hole)}`);
    else {
      const { size, state } = layout.blocks;
      made(tip, "b", bytes(size[block]));
      if (state[block] === PENDING) made(tip, "span", " waits for a stream");
      if (owner && app.trace.isKnown) made(tip, "span", ` ${owner.category.replaceAll("_", " ")}`);
      if (owner) placed(made(tip, "div"), owner.place, owner.where);
      if (owner) made(tip, "div", `${app.lifeWords(owner)}; click to pin it`, "muted");
    }
    const frame = view.parentElement.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x - frame.left + 12, frame.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${y - frame.top + 16}px`;
  };
  const ask = latest(({ row }) => app.ask("block", { row }), (owner, { row }) => {
    if (pointed?.row !== row) return;
    pointed.owner = owner;
    tell();
  });
  view.addEventListener("pointermove", (event) => {
    const found = find(event);
    tip.hidden = !found;
    if (!found) { pointed = null; return; }
    const row = found.block < 0 ? -1 : layout.blocks.row[found.block];
    const owner = row >= 0 && pointed?.row === row ? pointed.owner : null;
    pointed = { ...found, row, owner, x: event.clientX, y: event.clientY };
    tell();
    if (row >= 0 && !owner) ask({ row }).catch(app.complain);
  });
  view.addEventListener("pointerleave", () => { tip.hidden = true; pointed = null; });
  view.addEventListener("click", (event) => {
    const found = find(event);
    app.set({ pin: found && found.block >= 0 ? layout.blocks.row[found.block] : -1 });
  });
  const soon = perFrame(draw);
  view.addEventListener("scroll", soon);
  byId("segment-order").addEventListener("change", soon);
  new ResizeObserver(soon).observe(view);
  return { draw: soon };
};
