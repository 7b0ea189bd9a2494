// SPDX-License-Identifier: Apache-2.0
// The panel at the side: the moment, the block, and who holds most.

import { byId, facts, made } from "./dom.js";
import {
  baseName, eventNumber, framesOf, hexAddress, holders, holdersOver, layoutAt, placeName, poolOf,
  segmentAt, whereOf,
} from "./model.js";
import { bytes, count, duration, many, share } from "./units.js";

const SHOWN = 8;
const FRAMES = 60;

const at = (app, event) => (event >= 0 ? count(eventNumber(app.m, event))
  : app.m.n ? "before the trace" : "none was recorded");

const moment = (app, box, event) => {
  const { m } = app;
  const allocated = event < 0 ? m.startAllocated : m.allocated[event];
  const reserved = event < 0 ? m.startReserved : m.reserved[event];
  made(box, "h2", "At the cursor");
  const rows = [["event", at(app, event)]];
  if (m.time && event >= 0) rows.push(["time", duration(m.time[event])]);
  rows.push(["allocated", bytes(allocated)], ["reserved", bytes(reserved)]);
  if (reserved) rows.push(["unused", share((reserved - allocated) / reserved)]);
  // Blocks that are not kept may stand in what looks like one.
  if (!m.isPartial) {
    rows.push(["largest hole", bytes(layoutAt(m, event).reduce((most, one) => Math.max(most, one.hole), 0))]);
  }
  facts(box, rows);
};

const block = (app, box, row, pinned) => {
  const { m } = app;
  const asked = m.size[row] - m.slack[row];
  const segment = segmentAt(m, Math.min(Math.max(m.made[row], 0), m.n - 1), m.y[row]);
  made(box, "h2", pinned ? "Block, pinned" : "Block under the pointer");
  const rows = [["size", bytes(m.size[row])], ["asked", bytes(asked)], ["lives", app.lifeWords(row)]];
  rows.push(["events", `${at(app, m.made[row])} – ${m.freed[row] === -1 ? "end" : at(app, m.freed[row])}`]);
  rows.push(["stream / pool", `${m.stream[row]} / ${poolOf(m, segment)}`]);
  if (m.category) rows.push(["category", m.meta.categories[m.category[row]]]);
  rows.push(["address", hexAddress(m, m.address[row])]);
  facts(box, rows);
  stack(app, box, m.stack[row]);
};

export const stack = (app, box, id) => {
  const frames = framesOf(app.m, id);
  if (!frames.length) { made(box, "p", "No stack was recorded.", "muted"); return; }
  const list = made(box, "ol", "", "stack");
  for (const frame of frames.slice(0, FRAMES)) {
    const item = made(list, "li");
    made(item, "span", frame[0]);
    const where = made(item, "span", whereOf(frame), "muted");
    where.title = frame[1] === baseName(frame[1]) ? "" : `${frame[1]}:${frame[2]}`;
  }
  if (frames.length > FRAMES) made(list, "li", `and ${count(frames.length - FRAMES)} more`, "muted");
};

const ranking = (app, box, title, entries, note) => {
  made(box, "h2", title);
  if (note) made(box, "p", note, "muted");
  const total = entries.reduce((sum, entry) => sum + entry.bytes, 0) || 1;
  const list = made(box, "div", "", "ranking");
  for (const entry of entries.slice(0, SHOWN)) {
    const button = made(list, "button", "", "rank");
    button.disabled = entry.place < 0;
    made(button, "span", entry.place < 0 ? "not kept one by one" : placeName(app.m, entry.place), "name");
    made(button, "span", bytes(entry.bytes), "num");
    const bar = made(button, "span", "", "bar");
    bar.style.width = `${(100 * entry.bytes) / total}%`;
    if (entry.place < 0) continue;
    button.title = `${share(entry.bytes / total)}, ${many(entry.count, "block")}; click to search for it`;
    button.addEventListener("click", () => app.search(queryOf(app.m, entry.place)));
  }
  if (entries.length > SHOWN) {
    made(box, "p", `and ${many(entries.length - SHOWN, "more line")}`, "muted");
  }
  if (!entries.length) made(box, "p", "Nothing is allocated.", "muted");
};

// With what the page does not hold one by one, as the last entry.
const withRest = (m, entries, event) => {
  if (!m.isPartial || event < 0) return entries;
  const rest = entries.reduce((left, entry) => left - entry.bytes, m.allocated[event]);
  const most = entries.slice(0, SHOWN - 1);
  return rest > 0 ? [...most, { place: -1, bytes: rest, count: 0 }, ...entries.slice(SHOWN - 1)] : entries;
};

// A search that finds a place again.
const queryOf = (m, place) => `"${placeName(m, place).replaceAll('"', "")}"`;

export const drawPanel = (app) => {
  const box = byId("panel");
  const { m, state } = app;
  // Who stands on a line with the keyboard stays on the line of that place.
  const held = [...box.querySelectorAll("button")].indexOf(document.activeElement);
  box.replaceChildren();
  if (state.range) {
    const [first, last] = state.range;
    const span = app.axis.kind === "time" ? duration(last - first) : many(Math.round(last - first), "event");
    ranking(app, box, "Selected range", holdersOver(m, app.axis, first, last, app.view.y0, app.view.y1),
      `${span}; bytes on the mean over it`);
  }
  moment(app, box, state.event);
  const row = state.pin >= 0 ? state.pin : app.hovered;
  if (row >= 0) block(app, box, row, state.pin >= 0);
  ranking(app, box, "Who holds most here", withRest(m, holders(m, state.event), state.event));
  if (state.pin < 0 && row < 0) {
    made(box, "p", "Point at a block to see what it is; click to pin it.", "muted");
  }
  if (held >= 0) box.querySelectorAll("button")[held]?.focus({ preventScroll: true });
};
