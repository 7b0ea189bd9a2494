// SPDX-License-Identifier: Apache-2.0
// The tables of allocations and events: what a search finds, in what order, and the rows in
// sight as texts.

import { compile, parse } from "./filter.js";
import { sortedBy } from "./sort.js";
import { isAllocated, poolWords } from "./trace.js";
import { bytes, count, duration } from "./units.js";

// Lines of a piece of a table that is given away.
const PIECE = 50000;

export const makeLists = (ctx) => {
  const { rules, texts } = ctx;
  const found = { allocations: new Uint32Array(0), events: new Uint32Array(0) };

  const life = (c, row) => {
    const [made, freed] = [c.a.alloc_event.view[row], c.a.free_event.view[row]];
    if (!c.e.time_us || made < 0 || freed < 0) return Infinity;
    return c.e.time_us.at(freed) - c.e.time_us.at(made);
  };
  // By row, the name that PyTorch's viewer gives a block: its address, and how many were there before.
  let versions = null;
  const blockName = (c, row) => {
    if (!versions) {
      const counts = new Map();
      versions = Uint32Array.from({ length: c.rows }, (_, at) => {
        const earlier = counts.get(c.a.address.at(at)) ?? 0;
        counts.set(c.a.address.at(at), earlier + 1);
        return earlier;
      });
    }
    return `b${c.a.address.big(row).toString(16)}_${versions[row]}`;
  };
  // By row, the pool: of the segment that it lay in when it was made.
  const pools = (c) => {
    const [begins, ends] = [c.s.alloc_event?.view, c.s.free_event?.view];
    const order = Uint32Array.from({ length: c.segments }, (_, i) => i)
      .sort((x, y) => c.s.address.at(x) - c.s.address.at(y) || begins[x] - begins[y]);
    // Those at one address come one after the other: `firsts` are the places in `order` where
    // another address begins, and `reach` is how far any up to there goes.
    const [firsts, starts, reach] = [[], [], []];
    order.forEach((i, k) => {
      const start = c.s.address.at(i);
      if (!k || start !== starts[starts.length - 1]) {
        firsts.push(k);
        starts.push(start);
        reach.push(reach[reach.length - 1] ?? 0);
      }
      reach[reach.length - 1] = Math.max(reach[reach.length - 1], start + c.s.size.at(i));
    });
    firsts.push(order.length);
    // The last of first .. end - 1 for which `is` holds, which holds for all before it.
    const lastOf = (first, end, is) => {
      let [low, high] = [first, end];
      while (low < high) { const middle = (low + high) >> 1; if (is(middle)) low = middle + 1; else high = middle; }
      return low - 1;
    };
    return (row) => {
      const [at, event] = [c.a.address.at(row), Math.max(c.a.alloc_event.view[row], -1)];
      for (let k = lastOf(0, starts.length, (one) => starts[one] <= at); k >= 0 && reach[k] > at; k--) {
        const found = lastOf(firsts[k], firsts[k + 1], (one) => begins[order[one]] <= event);
        if (found < firsts[k]) continue;
        const i = order[found];
        if ((ends[i] === -1 || ends[i] > event) && at < starts[k] + c.s.size.at(i)) {
          return poolWords(c.s.kind.view[i], c.s.pool_first.at(i), c.s.pool_second.at(i));
        }
      }
      return "unknown";
    };
  };
  // What a search asks of an allocation.
  const subject = (c) => {
    let poolOf = null;
    return {
      size: (row) => c.a.size.at(row),
      asked: (row) => c.a.requested_size.at(row),
      life: (row) => life(c, row),
      event: (row) => c.a.alloc_event.view[row],
      stream: (row) => c.a.stream.at(row),
      pool: (row) => (poolOf ??= pools(c))(row),
      kept: (row) => (c.a.free_event.view[row] === -1 ? "yes" : "no"),
      before: (row) => (c.a.alloc_event.view[row] < 0 ? "yes" : "no"),
      category: (row) => rules.categories[ctx.bands.categoryOf(c, row)],
      alive: (event) => (row) => isAllocated(c.a, row, event),
      // Rows are in the order of time.
      blockTest: (address, nth) => {
        const [rows, near] = [[], Number(address)];
        for (let row = 0; row < c.rows; row++) {
          if (c.a.address.at(row) === near && c.a.address.big(row) === address) rows.push(row);
        }
        const wanted = new Set(nth === null ? rows : rows.slice(nth, nth + 1));
        return (row) => wanted.has(row);
      },
      textTest: (text) => {
        const has = texts.stackTest(text);
        const isIn = (place) => texts.nameOf(place).toLowerCase().includes(text);
        const inUnknown = isIn(texts.unknown);
        return (row) => {
          const stack = c.a.stack.view[row];
          if (texts.placeOf(stack) !== texts.unknown) return has(stack);
          return isIn(ctx.placeOfRow(c, row)) || (!inUnknown && has(stack));
        };
      },
    };
  };
  const ooms = () => texts.actions.indexOf("oom");
  const eventSubject = (c) => {
    const own = subject(c);
    const rowOf = (event) => c.e.row.view[event];
    const ofRow = (get) => (event) => (rowOf(event) === 0xffffffff ? NaN : get(rowOf(event)));
    const made = {};
    for (const key of ["asked", "life", "pool", "category", "kept", "before"]) made[key] = ofRow(own[key]);
    made.alive = (moment) => ofRow(own.alive(moment));
    made.blockTest = (address, nth) => {
      const is = own.blockTest(address, nth);
      return (event) => is(rowOf(event)) || (nth === null && c.e.addr.big(event) === address);
    };
    made.stream = (event) => c.e.stream.at(event);
    made.size = (event) => sizeOf(c, event);
    made.event = (event) => event;
    made.action = (event) => texts.actions[c.e.action.view[event]];
    made.textTest = (text) => {
      const has = texts.stackTest(text);
      const inAction = texts.actions.map((name) => name.includes(text));
      const noted = (column, event) => column && column.view[event] !== 0xffffffff
        && texts.text(column.view[event]).toLowerCase().includes(text);
      return (event) => has(c.e.stack.view[event]) || inAction[c.e.action.view[event]]
        || noted(c.e.user_metadata, event);
    };
    return made;
  };
  // Of an allocation's event the block's size, else what the event says.
  const sizeOf = (c, event) => {
    const row = c.e.row.view[event];
    return row === 0xffffffff ? c.e.size.at(event) : c.a.size.at(row);
  };

  const ranks = (names) => {
    const order = Float64Array.from({ length: names.length });
    [...names.keys()].sort((a, b) => (names[a] < names[b] ? -1 : names[a] > names[b] ? 1 : 0))
      .forEach((key, rank) => { order[key] = rank; });
    return order;
  };
  const placeRanks = () => ranks(texts.places.map((_, place) => texts.nameOf(place)));
  const seen = (event) => (event < 0 ? "before" : count(event));

  const COLUMNS = {
    allocations: [
      ["size", (c, r) => bytes(c.a.size.at(r)), (c) => (r) => c.a.size.at(r)],
      ["asked", (c, r) => bytes(c.a.requested_size.at(r)), (c) => (r) => c.a.requested_size.at(r)],
      ["allocated by", (c, r) => texts.nameOf(ctx.placeOfRow(c, r)),
        (c) => { const rank = placeRanks(); return (r) => rank[ctx.placeOfRow(c, r)]; }],
      ["made at", (c, r) => seen(c.a.alloc_event.view[r]), (c) => (r) => c.a.alloc_event.view[r]],
      ["freed at", (c, r) => (c.a.free_event.view[r] === -1 ? "kept" : seen(c.a.free_event.view[r])),
        (c) => (r) => (c.a.free_event.view[r] === -1 ? c.events : c.a.free_event.view[r])],
      ["lived", (c, r) => (Number.isFinite(life(c, r)) ? duration(life(c, r)) : c.a.free_event.view[r] === -1 ? "to the end" : "–"),
        (c) => (r) => life(c, r)],
      ["stream", (c, r) => String(c.a.stream.big(r)), (c) => (r) => c.a.stream.at(r)],
      ["category", (c, r) => rules.categories[ctx.bands.categoryOf(c, r)].replaceAll("_", " "), (c) => (r) => ctx.bands.categoryOf(c, r)],
      ["block", blockName, (c) => (r) => c.a.address.at(r)],
    ],
    events: [
      ["event", (c, e) => count(e), () => (e) => e],
      ["time", (c, e) => (c.e.time_us ? duration(c.e.time_us.at(e) - ctx.firstTime) : "–"), (c) => (e) => (c.e.time_us ? c.e.time_us.at(e) : 0)],
      ["action", (c, e) => texts.actions[c.e.action.view[e]], (c) => (e) => c.e.action.view[e]],
      ["size", (c, e) => (sizeOf(c, e) ? bytes(sizeOf(c, e)) : "–"), (c) => (e) => sizeOf(c, e)],
      ["by", (c, e) => texts.nameOf(texts.placeOf(c.e.stack.view[e])),
        (c) => { const rank = placeRanks(); return (e) => rank[texts.placeOf(c.e.stack.view[e])]; }],
      ["address", (c, e) => (c.e.action.view[e] === ooms() ? "–" : c.e.row.view[e] !== 0xffffffff
        ? blockName(c, c.e.row.view[e]) : `0x${c.e.addr.big(e).toString(16)}`), (c) => (e) => c.e.addr.at(e)],
      ["stream", (c, e) => String(c.e.stream.big(e)), (c) => (e) => c.e.stream.at(e)],
      ["metadata", (c, e) => (c.e.user_metadata && c.e.user_metadata.view[e] !== 0xffffffff ? texts.text(c.e.user_metadata.view[e]) : ""),
        (c) => (e) => (c.e.user_metadata ? c.e.user_metadata.view[e] : 0)],
    ],
  };

  const find = (list, query, column, down) => {
    const c = ctx.columns();
    const parsed = parse(query || "");
    const total = list === "allocations" ? c.rows : c.events;
    const test = parsed.terms.length ? compile(parsed, list === "allocations" ? subject(c) : eventSubject(c)) : null;
    const rows = new Uint32Array(total);
    let kept = 0;
    for (let i = 0; i < total; i++) if (!test || test(i)) rows[kept++] = i;
    let matched = rows.slice(0, kept);
    const sorted = COLUMNS[list].find(([name]) => name === column);
    if (sorted) {
      const keyOf = sorted[2](c);
      matched = sortedBy(matched, Float64Array.from(matched, keyOf), down);
    }
    found[list] = matched;
    return { total, found: kept, wrong: parsed.wrong, columns: COLUMNS[list].map(([name]) => name) };
  };

  const rows = (list, first, wanted) => {
    const c = ctx.columns();
    const isAllocation = list === "allocations";
    const endOf = (id) => texts.endOf(isAllocation ? ctx.placeOfRow(c, id) : texts.placeOf(c.e.stack.view[id]));
    return [...found[list].subarray(first, first + wanted)].map((id) => ({
      id, where: endOf(id), row: list === "allocations" ? id : c.e.row.view[id] === 0xffffffff ? -1 : c.e.row.view[id],
      event: list === "allocations" ? Math.max(c.a.alloc_event.view[id], -1) : id,
      cells: COLUMNS[list].map(([, text]) => text(c, id)),
    }));
  };

  // Where in a list of events one of them is, or the last that is before it; -1: none is.
  const where = (list, event) => {
    let [at, best] = [-1, -1];
    found[list].forEach((id, k) => { if (id <= event && id > best) [at, best] = [k, id]; });
    return { at };
  };

  // The allocations that lived in positions x0 .. x1, as comma separated values.
  const csv = ({ x0, x1 }) => {
    const c = ctx.columns();
    const quoted = (text) => `"${String(text).replace(/^([=+\-@\t\r])/, "'$1").replaceAll('"', '""')}"`;
    let lines = ["size_bytes,requested_bytes,address,stream,alloc_event,free_event,category,allocated_by"];
    // The browser keeps the pieces, and may put them on the disk.
    const pieces = [];
    const close = () => { pieces.push(new Blob([`${lines.join("\n")}\n`])); lines = []; };
    for (let row = 0; row < c.rows; row++) {
      const [made, freed] = [c.a.alloc_event.view[row], c.a.free_event.view[row]];
      const end = freed === -1 ? c.events + 1 : freed + 1;
      if (freed === -2 || c.states.at(made + 1) >= x1 || c.states.at(end) < x0) continue;
      lines.push([c.a.size.at(row), c.a.requested_size.at(row), `0x${c.a.address.big(row).toString(16)}`,
        c.a.stream.big(row), made, freed, rules.categories[ctx.bands.categoryOf(c, row)],
        quoted(texts.nameOf(ctx.placeOfRow(c, row)))].join(","));
      if (lines.length === PIECE) close();
    }
    if (lines.length) close();
    return { blob: new Blob(pieces, { type: "text/csv" }) };
  };
  return { find, rows, where, csv, subject, blockName };
};
