// SPDX-License-Identifier: Apache-2.0
// One moment, one block, one range: figures, who holds what, and the lanes over time.

import { NONE, isAllocated, poolWords } from "./trace.js";

const SHOWN = 12;
const MOST_LANE = 4000;
const NUMBERS = 16;
const BACKWARD = 5;
const SEED = 4;

const ranked = (sums, nameOf) => [...sums].map(([key, [size, count]]) => ({ ...nameOf(key), bytes: size, count }))
  .sort((a, b) => b.bytes - a.bytes);

const add = (sums, key, size, count = 1) => {
  const entry = sums.get(key);
  if (entry) { entry[0] += size; entry[1] += count; } else sums.set(key, [size, count]);
};

const placeWords = (texts) => (place) => ({
  name: texts.nameOf(place), where: texts.endOf(place), query: `"${texts.nameOf(place).replaceAll('"', "")}"`,
});

const categoryWords = (rules) => (key) => ({
  name: rules.categories[key].replaceAll("_", " "), query: `category:${rules.categories[key]}`,
});

// Who holds the allocated bytes after an event: by stack as [stack, bytes, count].
export const holdersAt = (ctx, event) => {
  ctx.core.call("holders", event);
  const column = ctx.core.answer(0);
  const found = [];
  for (let i = 0; column && i < column.length; i += 6) {
    const v = column.view;
    found.push([v[i], v[i + 2] + v[i + 3] * 4294967296, v[i + 1]]);
  }
  return found;
};

// Of what has no stack, what the backward passes or the forward operations name.
const nameStackless = (ctx, event, places) => {
  const { unknown } = ctx.texts;
  if (!ctx.isNamed || !places.has(unknown)) return;
  const c = ctx.columns();
  for (let row = 0; row < c.rows && c.a.alloc_event.view[row] <= event; row++) {
    if (!isAllocated(c.a, row, event) || ctx.texts.placeOf(c.a.stack.view[row]) !== unknown) continue;
    const place = ctx.placeOfRow(c, row);
    if (place === unknown) continue;
    add(places, place, c.a.size.at(row));
    add(places, unknown, -c.a.size.at(row), -1);
  }
  if (!places.get(unknown)[1]) places.delete(unknown);
};

export const holdersBy = (ctx, event) => {
  const places = new Map();
  for (const [stack, size, count] of holdersAt(ctx, event)) add(places, ctx.texts.placeOf(stack), size, count);
  nameStackless(ctx, event, places);
  ctx.core.exports.rule_sums(event);
  const sums = ctx.core.answer(0).view;
  const categories = new Map();
  for (let rule = 0; 2 * rule < sums.length; rule++) {
    if (sums[2 * rule + 1]) add(categories, ctx.bands.ofRule[rule], sums[2 * rule], sums[2 * rule + 1]);
  }
  return {
    places: ranked(places, placeWords(ctx.texts)), categories: ranked(categories, categoryWords(ctx.rules)),
  };
};

// What PyTorch writes where nothing was said.
const isSaid = (text) => text !== "" && text !== "N/A";

// A text beside an event; "" is none.
const noteAt = (ctx, c, name, event) => {
  const column = c.e[name];
  if (event < 0 || !column || column.view[event] === NONE) return "";
  const text = ctx.texts.text(column.view[event]);
  return isSaid(text) ? text : "";
};

// The pools of a layout: numbers of nt_page_ask.c's ask_put_group by name.
export const poolsAt = (ctx, event) => {
  ctx.core.call("layout", event);
  const v = ctx.core.answer(0)?.view ?? [];
  const pools = [];
  for (let i = 0; i < v.length; i += NUMBERS) {
    pools.push({
      pool: poolWords(v[i + 3], v[i], v[i + 1]), stream: v[i + 2], segments: v[i + 5], holes: v[i + 7],
      reserved: v[i + 8], allocated: v[i + 9], requested: v[i + 11], pending: v[i + 12], reclaimable: v[i + 13],
      largestHole: v[i + 14], largestRequest: v[i + 15],
    });
  }
  return pools;
};

// The request that failed at an event.
const requestAt = (ctx, c, event) => {
  const { texts } = ctx;
  const frames = texts.framesOf(c.e.stack.view[event]);
  return {
    asked: c.e.size.at(event), free: c.e.device_free ? c.e.device_free.at(event) : 0,
    place: texts.nameOf(texts.placeOf(c.e.stack.view[event])), where: texts.endOf(texts.placeOf(c.e.stack.view[event])), frames,
    noFrames: frames.length ? "" : "The request has no Python frames: a backward pass or a library made it.",
  };
};

export const momentFacts = (ctx, event, all) => {
  const { core, texts } = ctx;
  core.exports.bytes_after(event);
  const [allocated, reserved] = core.figures(2);
  const held = holdersBy(ctx, event);
  const pools = poolsAt(ctx, event);
  const c = ctx.columns();
  const note = (name) => noteAt(ctx, c, name, event);
  const action = event >= 0 ? texts.actions[c.e.action.view[event]] : "";
  return {
    event, allocated, reserved, x: ctx.positionOf(event), time: event >= 0 && c.e.time_us ? c.e.time_us.at(event) - ctx.firstTime : null,
    action, request: action === "oom" ? requestAt(ctx, c, event) : null,
    by: event >= 0 ? texts.nameOf(texts.placeOf(c.e.stack.view[event])) : "",
    metadata: note("user_metadata"), compile: note("compile_context"),
    largestHole: pools.reduce((most, pool) => Math.max(most, pool.largestHole), 0),
    reclaimable: pools.reduce((sum, pool) => sum + pool.reclaimable, 0),
    pending: pools.reduce((sum, pool) => sum + pool.pending, 0),
    places: all ? held.places : held.places.slice(0, SHOWN), placeCount: held.places.length,
    categories: held.categories, pools,
  };
};

// The segment that an address lay in after an event.
const segmentAt = (c, event, address) => {
  for (let i = 0; i < c.segments; i++) {
    const [made, freed] = [c.s.alloc_event.view[i], c.s.free_event.view[i]];
    if (made > event || (freed !== -1 && freed <= event)) continue;
    const start = c.s.address.at(i);
    if (start <= address && address < start + c.s.size.at(i)) return i;
  }
  return -1;
};

// Why a block has no frames.
const reason = (ctx, c, row) => {
  const [stack, made] = [c.a.stack.view[row], c.a.alloc_event.view[row]];
  if (made < 0) return "It was there before the trace, and was recorded without a stack.";
  if (stack === NONE) return "The recording has no stacks.";
  if (c.roles && c.roles[made] === BACKWARD) return "Autograd made it in the backward pass: its threads have no Python frames.";
  return "PyTorch found no Python frames here.";
};

// The last place that called backward() before a block of the backward pass was made.
const backwardCaller = (ctx, c, made) => {
  if (!c.roles || made < 0 || c.roles[made] !== BACKWARD) return null;
  for (let event = made; event >= 0; event--) {
    if (c.roles[event] !== SEED) continue;
    return { event, name: ctx.texts.nameOf(ctx.texts.placeOf(c.e.stack.view[event])) };
  }
  return null;
};

export const blockFacts = (ctx, row) => {
  const { texts, rules } = ctx;
  const c = ctx.columns();
  if (row < 0 || row >= c.rows) return null;
  const { a, e } = c;
  const [made, freed, done] = [a.alloc_event.view[row], a.free_event.view[row], a.completed_event.view[row]];
  const time = (event) => (event >= 0 && e.time_us ? e.time_us.at(event) - ctx.firstTime : null);
  const segment = segmentAt(c, Math.max(made, -1), a.address.at(row));
  const note = (name) => noteAt(ctx, c, name, made);
  const stack = a.stack.view[row];
  const rule = c.rules ? rules.rules[c.rules[row]] : null;
  const frames = texts.framesOf(stack);
  return {
    row, made, freed, done, size: a.size.at(row), asked: a.requested_size.at(row), stream: String(a.stream.big(row)),
    name: ctx.lists.blockName(c, row), madeTime: time(made), freedTime: time(freed),
    x0: ctx.positionOf(Math.max(made, -1)), x1: ctx.positionOf(freed >= 0 ? freed : c.events),
    y: yOf(ctx, a.address.at(row)), place: texts.nameOf(ctx.placeOfRow(c, row)), where: texts.endOf(ctx.placeOfRow(c, row)),
    pool: segment < 0 ? "unknown"
      : poolWords(c.s.kind.view[segment], c.s.pool_first.at(segment), c.s.pool_second.at(segment)),
    category: rules.categories[ctx.bands.categoryOf(c, row)], why: rule ? rule[1][1] : "",
    metadata: note("user_metadata"), compile: note("compile_context"),
    frames, noFrames: frames.length ? "" : reason(ctx, c, row), backward: backwardCaller(ctx, c, made),
  };
};

export const yOf = (ctx, address) => {
  const ranges = ctx.core.column("axis.ranges");
  for (let i = 0; ranges && i < ranges.length; i += 3) {
    const start = ranges.at(i);
    if (start <= address && address < start + ranges.at(i + 1)) return ranges.at(i + 2) + address - start;
  }
  return -1;
};

// Bytes by place on the mean over positions x0 .. x1.
export const rangeHolders = (ctx, { x0, x1 }) => {
  const c = ctx.columns();
  const { a, states } = c;
  const span = Math.max(x1 - x0, 1e-9);
  const [places, categories] = [new Map(), new Map()];
  for (let row = 0; row < c.rows; row++) {
    const freed = a.free_event.view[row];
    if (freed === -2) continue;
    const from = Math.max(states.at(a.alloc_event.view[row] + 1), x0);
    const to = Math.min(states.at(freed === -1 ? c.events + 1 : freed + 1), x1);
    if (to < from) continue;
    const held = (a.size.at(row) * (to - from)) / span;
    add(places, ctx.placeOfRow(c, row), held);
    add(categories, ctx.bands.categoryOf(c, row), held);
  }
  const found = ranked(places, placeWords(ctx.texts));
  return {
    places: found.slice(0, SHOWN), placeCount: found.length, categories: ranked(categories, categoryWords(ctx.rules)),
  };
};

// ---- lanes ----

// A phase's range begins with this, as neutracer's recorder writes it.
const PHASE = "neutracer.phase: ";

// Ranges that the program named, in positions.
const annotationLane = (ctx, c) => {
  const { core, texts } = ctx;
  const columns = Object.fromEntries(["stage", "name", "device", "time_us"].map(
    (name) => [name, core.column(`annotation.${name}`)]));
  const open = new Map();
  const found = [];
  const named = (name) => {
    const text = texts.text(name);
    return text.startsWith(PHASE) ? text.slice(PHASE.length) : text;
  };
  const at = (time) => (ctx.axis.byTime ? Math.min(Math.max(time - ctx.firstTime, 0), ctx.axis.width) : eventAtTime(c, time) + 1);
  for (let i = 0; columns.name && i < columns.name.length && found.length < MOST_LANE; i++) {
    const [name, time] = [columns.name.view[i], columns.time_us.at(i)];
    if (columns.device.view[i] >= 0 && columns.device.view[i] !== ctx.device) continue;
    if (columns.stage.view[i] === 0) open.set(name, time);
    else if (open.has(name)) {
      found.push({ name: named(name), x0: at(open.get(name)), x1: at(time) });
      open.delete(name);
    }
  }
  for (const [name, time] of open) found.push({ name: named(name), x0: at(time), x1: ctx.axis.width });
  return found;
};

const eventAtTime = (c, time) => {
  let [low, high] = [0, c.events];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (c.e.time_us && c.e.time_us.at(middle) <= time) low = middle + 1; else high = middle;
  }
  return low - 1;
};

// Stretches of events with one text.
const textLane = (ctx, c, column) => {
  const found = [];
  const said = new Map([[NONE, false]]);
  let [id, is, open] = [NONE, false, null];
  for (let event = 0; column && event < c.events; event++) {
    if (column.view[event] === id) continue;
    if (open) open.x1 = c.states.at(event + 1);
    if (found.length >= MOST_LANE) return found;
    id = column.view[event];
    if (!said.has(id)) said.set(id, isSaid(ctx.texts.text(id)));
    is = said.get(id);
    open = is ? { name: ctx.texts.text(id), x0: c.states.at(event + 1), x1: 0 } : null;
    if (open) found.push(open);
  }
  if (open) open.x1 = c.states.at(c.events + 1);
  return found;
};

// Finds the steps, once: how they are told.
const findSteps = (ctx) => {
  const { core, texts } = ctx;
  core.call("step_stacks");
  const marks = core.answer(0)?.view.slice() ?? new Uint8Array(0);
  const frames = texts.said();
  const roles = new Uint8Array(marks.length);
  for (let stack = 0; stack < marks.length; stack++) {
    if (!marks[stack]) continue;
    const said = [];
    for (let id = stack; id; id = texts.parent[id]) said.push(frames[texts.innermost[id]]);
    roles[stack] = core.stored(Uint16Array.from(said), (at) => core.exports.role(at, said.length));
  }
  core.stored(roles, (at) => core.call("find_steps", at));
  return core.figures(1)[0];
};

const stepLane = (ctx) => {
  const { core } = ctx;
  ctx.stepsHow ??= findSteps(ctx);
  const how = ctx.stepsHow;
  const edges = core.column("steps");
  const { states } = ctx.columns();
  const found = [];
  for (let k = 0; how && edges && k + 1 < Math.min(edges.length, MOST_LANE); k++) {
    found.push({ name: `step ${k}`, x0: states.at(edges.view[k] + 1), x1: states.at(edges.view[k + 1] + 1) });
  }
  return { how, found };
};

// Bytes reserved by each private pool, as steps in positions.
const poolLanes = (ctx, c) => {
  const pools = new Map();
  for (let i = 0; i < c.segments; i++) {
    const [first, second] = [c.s.pool_first.at(i), c.s.pool_second.at(i)];
    if (!first && !second) continue;
    const key = `private pool (${first}, ${second})`;
    if (!pools.has(key)) pools.set(key, []);
    const [made, freed, size] = [c.s.alloc_event.view[i], c.s.free_event.view[i], c.s.size.at(i)];
    pools.get(key).push([c.states.at(made + 1), size]);
    if (freed >= 0) pools.get(key).push([c.states.at(freed + 1), -size]);
  }
  return [...pools].slice(0, 8).map(([name, changes]) => {
    let sum = 0;
    const steps = changes.sort((a, b) => a[0] - b[0]).map(([x, by]) => [x, sum += by]);
    return { name, steps, most: steps.reduce((most, [, size]) => Math.max(most, size), 0) };
  }).sort((a, b) => b.most - a.most);
};

// Where the blocks are that are kept past their last use: rows, and the event after which each is.
const idleBoxes = (ctx, c, told) => told.map(([row, event]) => {
  const [freed, y0] = [c.a.free_event.view[row], yOf(ctx, c.a.address.at(row))];
  const x1 = c.states.at((freed >= 0 ? freed : c.events) + 1);
  return { x0: c.states.at(event + 1), x1, y0, y1: y0 + c.a.size.at(row) };
}).filter(({ y0 }) => y0 >= 0);

export const lanesOf = (ctx, idle = []) => {
  const c = ctx.columns();
  const lanes = [];
  const put = (kind, ranges) => { if (ranges.length) lanes.push({ kind, ranges }); };
  put("annotations", annotationLane(ctx, c));
  put("metadata", textLane(ctx, ctx.columns(), ctx.columns().e.user_metadata));
  put("compiled", textLane(ctx, ctx.columns(), ctx.columns().e.compile_context));
  const steps = stepLane(ctx);
  put("steps", steps.found);
  return {
    lanes, pools: poolLanes(ctx, ctx.columns()), idle: idleBoxes(ctx, ctx.columns(), idle),
    steps: { how: steps.how, count: steps.found.length },
  };
};
