// SPDX-License-Identifier: Apache-2.0
// The two pictures of one moment: live bytes by call stack, and the blocks of each segment.

import { holdersAt } from "./moments.js";
import { isActive, poolWords, whereOf } from "./trace.js";

// Smaller parts of the whole have no box.
const NARROWEST = 0.002;

const MOST_SEGMENTS = 20000;

// Calls below each other that have a box of their own.
const DEEPEST = 1000;

// Live bytes as a tree: a list of calls, the largest first, each behind the one that it was called
// from, whose number is `up`. A message of objects inside each other must not be deep.
// `own`: without the frames of libraries; `inverted`: innermost frames first.
export const flameOf = (ctx, { event, own, inverted }) => {
  const node = (name, where, file, owner) => ({ name, where, file, owner, bytes: 0, count: 0, inner: new Map() });
  const root = node("all live bytes", "", "", "");
  for (const [stack, size, count] of holdersAt(ctx, event)) {
    let frames = ctx.texts.framesOf(stack);
    const mine = own ? frames.filter(([, , , owner]) => owner === "own") : [];
    if (mine.length) frames = mine;
    if (!inverted) frames.reverse();
    if (!frames.length) frames.push([ctx.rules.unknown_place, "", 0, ""]);
    if (frames.length > DEEPEST) frames.splice(DEEPEST, Infinity, ["deeper calls", "", 0, ""]);
    let at = root;
    root.bytes += size;
    root.count += count;
    for (const [name, file, line, owner] of frames) {
      const key = `${name}\0${file}\0${line}`;
      if (!at.inner.has(key)) at.inner.set(key, node(name, file ? whereOf(file, line) : "", file, owner));
      at = at.inner.get(key);
      at.bytes += size;
      at.count += count;
    }
  }
  const calls = [];
  const put = ({ inner, ...facts }, up) => {
    const at = calls.push({ ...facts, up }) - 1;
    const shown = [...inner.values()].filter((one) => one.bytes >= NARROWEST * root.bytes);
    for (const one of shown.sort((a, b) => b.bytes - a.bytes)) put(one, at);
  };
  put(root, -1);
  return { calls };
};

const ORDERS = {
  address: () => 0,
  free: (a, b) => b.size - b.used - (a.size - a.used),
  hole: (a, b) => b.hole - a.hole,
};

// The segments after an event, and their blocks as columns: where each begins in its segment,
// its size, its row (-1: none), its band, and whether it waits for a stream.
export const layoutOf = (ctx, event, order) => {
  const { core } = ctx;
  core.call("layout", event);
  const names = ["address", "total_size", "allocated_size", "stream", "pool_first", "pool_second", "kind",
    "is_expandable", "block_first", "block_count"];
  const read = (prefix, list) => Object.fromEntries(list.map((name) => [name, core.column(`${prefix}.${name}`)]));
  read("layout", names);
  const s = read("layout", names);
  const b = read("block", ["address", "size", "state"]);
  const c = ctx.columns();
  const rowOf = new Map();
  for (let row = 0; row < c.rows; row++) if (isActive(c.a, row, event)) rowOf.set(c.a.address.at(row), row);
  const at = core.place("codes");
  const codes = core.room(at, Uint8Array, Math.max(c.rows, 1));
  const count = b.size?.length ?? 0;
  const blocks = {
    offset: new Float64Array(count), size: new Float64Array(count), row: new Int32Array(count).fill(-1),
    band: new Uint8Array(count), state: new Uint8Array(count),
  };
  const segments = [];
  for (let i = 0; i < (s.address?.length ?? 0) && i < MOST_SEGMENTS; i++) {
    const [start, first, blocksHere] = [s.address.at(i), s.block_first.view[i], s.block_count.view[i]];
    let [used, hole] = [0, 0];
    for (let k = first; k < first + blocksHere; k++) {
      const size = b.size.at(k);
      blocks.offset[k] = b.address.at(k) - start;
      blocks.size[k] = size;
      blocks.state[k] = b.state.view[k];
      if (!b.state.view[k]) { hole = Math.max(hole, size); continue; }
      used += size;
      const row = rowOf.get(b.address.at(k));
      if (row !== undefined) { blocks.row[k] = row; blocks.band[k] = codes[row]; }
    }
    segments.push({
      address: `0x${s.address.big(i).toString(16)}`, size: s.total_size.at(i), used, hole, first, count: blocksHere,
      stream: String(s.stream.big(i)), isExpandable: s.is_expandable.view[i] === 1,
      pool: poolWords(s.kind.view[i], s.pool_first.at(i), s.pool_second.at(i)),
    });
  }
  segments.sort(ORDERS[order] ?? ORDERS.address);
  return { event, segments, blocks };
};
