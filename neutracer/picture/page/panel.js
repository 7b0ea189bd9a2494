// SPDX-License-Identifier: Apache-2.0
// The panel at the side: the moment, the block, and who holds most.

import { byId, facts, made, placed, searched } from "./dom.js";
import { wordsOf } from "./filter.js";
import { bytes, count, duration, many, share } from "./units.js";

const SHOWN = 8;
const FRAMES = 60;

const at = (app, event) => (event >= 0 ? count(event) : app.trace.events ? "before the trace" : "none was recorded");

const momentRows = (app, moment) => {
  const { allocated, reserved } = moment;
  const rows = [["event", at(app, moment.event)]];
  if (moment.action && moment.action !== "alloc") rows.push(["action", moment.action]);
  if (moment.time !== null && moment.event >= 0) rows.push(["time", duration(moment.time)]);
  rows.push(["allocated", bytes(allocated)], ["reserved", bytes(reserved)]);
  if (reserved) rows.push(["unused", share((reserved - allocated) / reserved)]);
  rows.push(["largest hole", bytes(moment.largestHole)]);
  if (moment.pending) rows.push(["waiting for a stream", bytes(moment.pending)]);
  if (moment.metadata) rows.push(["metadata", moment.metadata]);
  if (moment.compile) rows.push(["compiled", moment.compile]);
  return rows;
};

// Frames, innermost first: those of libraries are grey and may be left out, repeated ones folded.
let isOwnOnly = false;
const stack = (app, box, block) => {
  if (block.noFrames) made(box, "p", block.noFrames, "muted");
  if (block.backward) {
    const line = made(box, "p", "backward() was called by ", "muted");
    const go = made(line, "button", block.backward.name, "link");
    go.addEventListener("click", () => app.set({ event: block.backward.event, held: true }));
  }
  const own = block.frames.filter(([, , , owner]) => owner === "own");
  const hidden = own.length ? block.frames.length - own.length : 0;
  const frames = isOwnOnly && hidden ? own : block.frames;
  if (!frames.length) return;
  if (hidden) {
    const turn = made(box, "button", isOwnOnly ? `show ${many(hidden, "frame")} of libraries` : "hide frames of libraries", "link");
    turn.addEventListener("click", () => { isOwnOnly = !isOwnOnly; app.render(); });
  }
  const words = wordsOf(app.state.query);
  const list = made(box, "ol", "", "stack");
  let [shown, k] = [0, 0];
  while (k < frames.length && shown < FRAMES) {
    const [name, file, line, owner] = frames[k];
    let again = 1;
    while (k + again < frames.length && frames[k + again].join() === frames[k].join()) again += 1;
    const item = made(list, "li", "", owner === "own" ? "" : "far");
    searched(made(item, "span"), again > 1 ? `${name} ×${again}` : name, words);
    const base = file.slice(Math.max(file.lastIndexOf("/"), file.lastIndexOf("\\")) + 1);
    const where = made(item, "span", "", "muted");
    searched(where, line > 0 ? `${base}:${line}` : base, words);
    where.title = file === base ? "" : `${file}:${line}`;
    k += again;
    shown += 1;
  }
  if (k < frames.length) made(list, "li", `and ${count(frames.length - k)} more`, "muted");
};

const blockPart = (app, box, block, pinned) => {
  const head = made(box, "h2", pinned ? "Block, pinned" : "Block under the pointer");
  if (pinned && block.y >= 0) {
    made(head, "button", "zoom to it", "link").addEventListener("click", () => app.zoomTo(block));
  }
  const rows = [["size", bytes(block.size)], ["asked", bytes(block.asked)], ["lives", app.lifeWords(block)]];
  rows.push(["events", `${at(app, block.made)} – ${block.freed === -1 ? "end" : at(app, block.freed)}`]);
  rows.push(["stream / pool", `${block.stream} / ${block.pool}`]);
  if (app.trace.isKnown) rows.push(["category", block.category.replaceAll("_", " ")]);
  rows.push(["name", block.name]);
  if (block.metadata) rows.push(["metadata", block.metadata]);
  if (block.compile) rows.push(["compiled", block.compile]);
  facts(box, rows);
  if (app.trace.isKnown && block.why) made(box, "p", block.why, "muted");
  stack(app, box, block);
};

const ranking = (app, box, title, entries, total, more, note) => {
  made(box, "h2", title);
  if (note) made(box, "p", note, "muted");
  const list = made(box, "div", "", "ranking");
  const words = wordsOf(app.state.query);
  for (const entry of entries.slice(0, SHOWN)) {
    const button = made(list, "button", "", "rank");
    placed(button, entry.name, entry.where, words);
    made(button, "span", bytes(entry.bytes), "num");
    const bar = made(button, "span", "", "bar");
    bar.style.width = `${(100 * entry.bytes) / Math.max(total, 1)}%`;
    button.title = `${share(entry.bytes / Math.max(total, 1))}, ${many(entry.count, "block")}; click to search for it`;
    button.addEventListener("click", () => app.search(entry.query));
  }
  if (more > 0) made(box, "p", `and ${many(more, "more line")}`, "muted");
  if (!entries.length) made(box, "p", "Nothing is allocated.", "muted");
};

// The lines that hold most, and before them the categories where these are the colours.
const held = (app, box, found, title, total, note) => {
  const byCategory = app.state.stacking === "categories" && app.trace.isKnown;
  if (byCategory) ranking(app, box, `${title}, by category`, found.categories, total, 0, note);
  ranking(app, box, byCategory ? `${title}, by line` : title, found.places, total, found.placeCount - SHOWN, byCategory ? "" : note);
};

const requestPart = (app, box, request) => {
  made(box, "h2", "The request that failed");
  facts(box, [["asked for", bytes(request.asked)], ["free on the device", bytes(request.free)]]);
  if (request.frames.length) placed(made(box, "p"), request.place, request.where);
  stack(app, box, request);
};

export const drawPanel = (app) => {
  const box = byId("panel");
  const { state, moment } = app;
  if (!moment) return;
  // Who stands on a line with the keyboard stays on the line of that place.
  const focus = [...box.querySelectorAll("button")].indexOf(document.activeElement);
  box.replaceChildren();
  if (state.range && app.ranged) {
    const [first, last] = state.range;
    const span = app.axis.byTime ? duration(last - first) : many(Math.round(last - first), "event");
    const total = app.ranged.places.reduce((sum, entry) => sum + entry.bytes, 0);
    held(app, box, app.ranged, "Selected range", total, `${span}; bytes on the mean over it`);
  }
  if (moment.request) requestPart(app, box, moment.request);
  made(box, "h2", state.held ? "At the frozen cursor" : "At the cursor");
  facts(box, momentRows(app, moment));
  const block = app.pinned ?? app.hovered;
  if (block) blockPart(app, box, block, app.pinned !== null);
  held(app, box, moment, "Who holds most here", moment.allocated);
  const hasBlocks = state.tab === "overview" || state.tab === "segments";
  if (!block && hasBlocks) made(box, "p", "Point at a block to see what it is; click to pin it.", "muted");
  if (focus >= 0) box.querySelectorAll("button")[focus]?.focus({ preventScroll: true });
};
