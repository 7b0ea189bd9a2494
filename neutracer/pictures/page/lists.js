// SPDX-License-Identifier: Apache-2.0
// The tabs Allocations and Events: what their columns say, and what a search finds.

import { byId } from "./dom.js";
import { compile, parse } from "./filter.js";
import { eventNumber, framesOf, hexAddress, placeName, poolOf, segmentAt } from "./model.js";
import { table } from "./table.js";
import { bytes, count, duration, many } from "./units.js";

// By stack, whether its frames have a text; asked once a stack.
const stackTest = (m, text) => {
  const known = new Int8Array(m.stackNode.length).fill(-1);
  const frameHas = m.meta.frames.map(([name, file, line]) => `${name} ${file}:${line}`.toLowerCase().includes(text));
  const placeHas = m.meta.places.map((_, place) => placeName(m, place).toLowerCase().includes(text));
  return (stack) => {
    if (known[stack] < 0) {
      let found = placeHas[m.stackPlace[stack]];
      for (let node = m.stackNode[stack]; node && !found; node = m.nodeParent[node]) {
        found = frameHas[m.nodeFrame[node]];
      }
      known[stack] = found ? 1 : 0;
    }
    return known[stack] === 1;
  };
};

export const lifetime = (m, row) => {
  if (!m.time || m.made[row] < 0 || m.freed[row] < 0) return Infinity;
  return m.time[m.freed[row]] - m.time[m.made[row]];
};

const poolOfRow = (m, row) => poolOf(m, segmentAt(m, Math.max(m.made[row], -1), m.y[row]));

// What a search asks of an allocation.
export const allocationSubject = (m) => ({
  size: (row) => m.size[row],
  asked: (row) => m.size[row] - m.slack[row],
  life: (row) => lifetime(m, row),
  event: (row) => eventNumber(m, m.made[row]),
  stream: (row) => m.stream[row],
  pool: (row) => poolOfRow(m, row),
  kept: (row) => (m.freed[row] === -1 ? "yes" : "no"),
  category: m.category && ((row) => m.meta.categories[m.category[row]]),
  textTest: (text) => {
    const has = stackTest(m, text);
    return (row) => has(m.stack[row]);
  },
});

const eventSubject = (m, allocations, sizeOf) => {
  const ofRow = (get) => get && ((event) => (m.subject[event] >= 0 ? get(m.subject[event]) : NaN));
  const subject = {};
  for (const key of ["asked", "life", "pool", "category", "kept"]) subject[key] = ofRow(allocations[key]);
  subject.stream = (event) => streamOf(m, event);
  subject.size = sizeOf;
  subject.event = (event) => eventNumber(m, event);
  subject.action = (event) => m.meta.actions[m.action[event]];
  subject.textTest = (text) => {
    const has = stackTest(m, text);
    return (event) => has(m.stackOfEvent[event]) || m.meta.actions[m.action[event]].includes(text);
  };
  return subject;
};

const streamOf = (m, event) => {
  const of = m.subject[event];
  return of >= 0 ? m.stream[of] : of < -1 ? m.segments.stream[-2 - of] : "";
};

// Sorts by names: rank the few there are, not the many rows.
const byPlace = (m, stackOf) => (rows, keys) => {
  const names = m.meta.places.map((_, place) => placeName(m, place));
  const ranks = new Float64Array(names.length);
  [...names.keys()].sort((a, b) => (names[a] < names[b] ? -1 : 1)).forEach((place, rank) => { ranks[place] = rank; });
  rows.forEach((row, k) => { keys[k] = ranks[m.stackPlace[stackOf(row)]]; });
};

const matching = (total, test) => {
  const found = new Uint32Array(total);
  let kept = 0;
  for (let i = 0; i < total; i++) if (test(i)) found[kept++] = i;
  return found.slice(0, kept);
};

export const lists = (app) => {
  const { m } = app;
  for (const name of ["allocation-table", "event-table"]) byId(name).replaceChildren();
  const seen = (event) => (event < 0 ? "before" : count(eventNumber(m, event)));
  const ooms = new Map(m.oom.map((entry) => [entry.event, entry]));
  const sizeOf = (event) => {
    const of = m.subject[event];
    if (of >= 0) return m.size[of];
    return of < -1 ? m.segments.size[-2 - of] : ooms.has(event) ? ooms.get(event).asked : NaN;
  };
  const offsetOf = (event) => {
    const of = m.subject[event];
    return of >= 0 ? m.address[of] : of < -1 ? m.segments.address[-2 - of] : -1;
  };
  const allocations = table(byId("allocation-table"), {
    label: "allocations",
    columns: [
      { name: "size", kind: "num", text: (r) => bytes(m.size[r]), number: (r) => m.size[r] },
      { name: "asked", kind: "num", wide: "wide", text: (r) => bytes(m.size[r] - m.slack[r]), number: (r) => m.size[r] - m.slack[r] },
      { name: "allocated by", kind: "text", text: (r) => placeName(m, m.stackPlace[m.stack[r]]), rank: byPlace(m, (r) => m.stack[r]) },
      { name: "made at", kind: "num", wide: "wide", text: (r) => seen(m.made[r]), number: (r) => m.made[r] },
      { name: "freed at", kind: "num", wide: "wide", text: (r) => (m.freed[r] === -1 ? "kept" : seen(m.freed[r])), number: (r) => (m.freed[r] === -1 ? m.n : m.freed[r]) },
      { name: "lived", kind: "num", text: (r) => (Number.isFinite(lifetime(m, r)) ? duration(lifetime(m, r)) : m.freed[r] === -1 ? "to the end" : "–"), number: (r) => lifetime(m, r) },
      { name: "stream", kind: "num", wide: "wide", text: (r) => String(m.stream[r]), number: (r) => m.stream[r] },
      ...(m.category ? [{ name: "category", kind: "text", wide: "wide", text: (r) => m.meta.categories[m.category[r]], number: (r) => m.category[r] }] : []),
    ],
    choose: (row) => app.set({ pin: row, event: Math.max(m.made[row], -1) }),
    isChosen: (row) => row === app.state.pin,
  });
  allocations.order("size", true);
  const events = table(byId("event-table"), {
    label: "events",
    columns: [
      { name: "event", kind: "num", text: (e) => count(eventNumber(m, e)), number: (e) => e },
      ...(m.time ? [{ name: "time", kind: "num", wide: "wide", text: (e) => duration(m.time[e]), number: (e) => m.time[e] }] : []),
      { name: "action", kind: "text", text: (e) => m.meta.actions[m.action[e]], number: (e) => m.action[e] },
      { name: "size", kind: "num", text: (e) => (Number.isNaN(sizeOf(e)) ? "–" : bytes(sizeOf(e))), number: (e) => sizeOf(e) || 0 },
      { name: "by", kind: "text", text: (e) => placeName(m, m.stackPlace[m.stackOfEvent[e]]), rank: byPlace(m, (e) => m.stackOfEvent[e]) },
      { name: "address", kind: "num", wide: "wide address", text: (e) => (offsetOf(e) < 0 ? "–" : hexAddress(m, offsetOf(e))), number: offsetOf },
      { name: "stream", kind: "num", wide: "wide", text: (e) => String(streamOf(m, e)), number: (e) => Number(streamOf(m, e)) },
    ],
    choose: (event) => app.set({ event, held: true, pin: m.subject[event] >= 0 ? m.subject[event] : -1 }),
    isChosen: (event) => event === app.state.event,
  });
  const shown = { allocations: null, events: null };
  const told = (tab, found, total, wrong) => {
    const all = many(total, tab.slice(0, -1));
    const what = !total ? `no ${tab} were recorded` : found === total ? all : `${count(found)} of ${all}`;
    byId(`${tab.slice(0, -1)}-words`).textContent = wrong.length ? `${what}; not understood: ${wrong.join(" ")}` : what;
  };
  const draw = (tab) => {
    const query = app.state.query;
    if (shown[tab] !== query) {
      shown[tab] = query;
      const parsed = parse(query);
      const total = tab === "allocations" ? m.rows : m.n;
      const own = allocationSubject(m);
      const subject = tab === "allocations" ? own : eventSubject(m, own, sizeOf);
      const found = parsed.terms.length ? matching(total, compile(parsed, subject)) : Uint32Array.from({ length: total }, (_, i) => i);
      told(tab, found.length, total, parsed.wrong);
      (tab === "allocations" ? allocations : events).show(found);
    } else (tab === "allocations" ? allocations : events).draw();
  };
  return { draw };
};
