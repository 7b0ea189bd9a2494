// SPDX-License-Identifier: Apache-2.0
// What every answer of the worker goes by: texts, frames, places and categories of the
// file, and the columns of one device's trace.

import { clean } from "./clean.js";
import { baseName, makeOrigins } from "./origins.js";

export const NONE = 0xffffffff;

const ALLOCATION = ["address", "size", "requested_size", "stream", "alloc_event", "free_event",
  "completed_event", "stack"].map((name) => `alloc.${name}`);
const SEGMENT = ["address", "size", "stream", "pool_first", "pool_second", "kind", "is_expandable",
  "alloc_event", "free_event", "stack"].map((name) => `segment.${name}`);
const EVENT = ["action", "addr", "size", "stream", "stack", "time_us", "device_free", "row",
  "compile_context", "user_metadata", "forward"].map((name) => `event.${name}`);

// A frame as Python's traceback module writes it.
const TRACEBACK = /File "([^"\n]+)", line (\d+)(?:, in ([^\n]+))?/g;

const tracebackOf = (written) => [...written.matchAll(TRACEBACK)].map(
  ([, file, line, name]) => ({ file, line: Number(line.slice(0, 18)), name: name ?? "" }));

export const whereOf = (file, line) => (line > 0 ? `${baseName(file)}:${line}` : baseName(file));

// Texts of a file, its frames, and the places that stand for its stacks.
export const makeTexts = (core, rules, renamed = {}, libraries = []) => {
  const origins = makeOrigins(rules, libraries);
  const names = new Map(Object.entries(renamed));
  const raws = [];
  const texts = [];
  const raw = (id) => {
    if (raws[id] === undefined) { const found = core.string(id); raws[id] = names.get(found) ?? found; }
    return raws[id];
  };
  const text = (id) => (texts[id] ??= clean(raw(id)));
  const frameCount = (core.column("frame")?.length ?? 0) / 6;
  const nodes = core.column("fx")?.view.slice() ?? new Uint32Array(0);
  const lines = core.column("frame")?.view.slice() ?? new Uint32Array(0);
  const lineOf = (i) => lines[6 * i + 2] + (lines[6 * i + 3] | 0) * 4294967296;
  // What torch.fx knows of generated code: the node's name, and the model's frames, outermost first.
  const generated = (i) => {
    const number = lines[6 * i + 4];
    if (!number) return null;
    const [, name, , trace] = nodes.subarray(4 * (number - 1), 4 * number);
    return { node: name === NONE ? "" : raw(name), model: trace === NONE ? [] : tracebackOf(raw(trace)) };
  };
  const frames = [];
  const frame = (i) => (frames[i] ??= {
    name: raw(lines[6 * i]), file: raw(lines[6 * i + 1]), line: lineOf(i), fx: generated(i),
    shown: [text(lines[6 * i]), text(lines[6 * i + 1]), lineOf(i), origins.originOf(raw(lines[6 * i + 1])).owner],
  });
  const innermost = core.column("stack.innermost").view.slice();
  const parent = core.column("stack.parent").view.slice();

  const places = [];
  const numbers = new Map();
  const number = (words) => {
    const key = words.join("\0");
    if (!numbers.has(key)) { numbers.set(key, places.length); places.push(words); }
    return numbers.get(key);
  };
  const unknown = number([rules.unknown_place, "", 0, ""]);
  const placeOfStack = new Int32Array(innermost.length).fill(unknown);
  // A stack's id is above that of the stack that it was called from.
  const seen = [origins.nothing];
  for (let id = 1; id < innermost.length; id++) {
    seen[id] = origins.inner(seen[parent[id]], frame(innermost[id]));
    const [name, file, line, caller] = origins.placeOf(seen[id]);
    placeOfStack[id] = number([clean(name), clean(file), line, clean(caller)]);
  }
  const placeOf = (stack) => (stack === NONE ? unknown : placeOfStack[stack]);
  // The line of the forward operation whose backward allocates, from its stack as texts.
  const forwards = new Map();
  const forwardPlace = (stack) => {
    if (forwards.has(stack)) return forwards.get(stack);
    let written = "";
    for (let id = stack; id; id = parent[id]) written += frame(innermost[id]).name;
    let at = origins.nothing;
    for (const one of tracebackOf(written)) at = origins.furtherIn(at, one);
    const [name, file, line, caller] = origins.placeOf(at);
    const place = file ? number([clean(`backward of ${name}`.trimEnd()), clean(file), line, clean(caller)]) : unknown;
    forwards.set(stack, place);
    return place;
  };
  // The place of a stack that called backward().
  const callerPlace = (stack) => {
    const [, file, line, caller] = places[placeOf(stack)];
    return number(["backward pass", file, line, caller]);
  };
  // The end of a place's name that says where it is.
  const endOf = (place) => {
    const [, file, line, caller] = places[place];
    const where = file ? whereOf(file, line) : "";
    return caller ? `${where}, from ${caller}` : where;
  };
  const nameOf = (place) => {
    const [[name], end] = [places[place], endOf(place)];
    return end.startsWith(",") ? `${name}${end}` : end ? `${name} ${end}` : name;
  };
  const framesOf = (stack) => {
    const found = [];
    for (let id = stack === NONE ? 0 : stack; id; id = parent[id]) {
      const { shown, fx } = frame(innermost[id]);
      found.push(shown);
      // The model's lines that the generated one stands for, below it.
      for (const { name, file, line } of fx ? fx.model.toReversed() : []) {
        found.push([clean(`${fx.node ? `${fx.node}: ` : ""}${name}`), clean(file), line, origins.originOf(file).owner]);
      }
    }
    return found;
  };
  // By stack, whether a text is in its frames or in the name of its place.
  const stackTest = (wanted) => {
    const inFrame = Array.from({ length: frameCount }, (_, i) => {
      const [name, file, line] = frame(i).shown;
      return `${name} ${file}:${line}`.toLowerCase().includes(wanted);
    });
    const inPlace = places.map((_, place) => nameOf(place).toLowerCase().includes(wanted));
    const known = new Uint8Array(innermost.length);
    for (let id = 1; id < known.length; id++) {
      known[id] = known[parent[id]] || inFrame[innermost[id]] ? 1 : 0;
    }
    return (stack) => inPlace[placeOf(stack)] || (stack !== NONE && known[stack] === 1);
  };
  const said = () => Uint16Array.from({ length: frameCount }, (_, i) => origins.says(frame(i).file, frame(i).name));
  const actions = [];
  for (let code = 0; ; code++) {
    const name = core.action(code);
    if (name === null) break;
    actions.push(clean(name));
  }
  return {
    raw, text, frame, innermost, parent, places, placeOf, nameOf, endOf, framesOf, stackTest, said, actions, unknown,
    forwardPlace, callerPlace,
  };
};

// Looked up anew for each answer: what is in memory moves when more is asked for.
export const columnsOf = (core) => {
  const table = (names) => Object.fromEntries(
    names.map((name) => [name.slice(name.indexOf(".") + 1), core.column(name)]));
  // Names are handed over in memory: the first round makes room for them.
  table([...ALLOCATION, ...SEGMENT, ...EVENT]);
  const [a, s, e] = [table(ALLOCATION), table(SEGMENT), table(EVENT)];
  return {
    a, s, e, rows: a.size?.length ?? 0, segments: s.size?.length ?? 0, events: e.action?.length ?? 0,
    rules: core.column("rules")?.view ?? null, roles: core.column("roles")?.view ?? null,
    states: core.column("axis.states"), passes: core.column("passes")?.view ?? null,
  };
};

export const isAllocated = (a, row, event) => a.alloc_event.view[row] <= event
  && (a.free_event.view[row] === -1 || a.free_event.view[row] > event);

export const isActive = (a, row, event) => a.alloc_event.view[row] <= event && a.free_event.view[row] !== -2
  && (a.free_event.view[row] === -1 || a.completed_event.view[row] === -1 || a.completed_event.view[row] > event);

export const poolWords = (kind, first, second) => {
  const size = kind ? "large" : "small";
  return first || second ? `private (${first}, ${second}) ${size}` : size;
};
