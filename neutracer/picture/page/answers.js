// SPDX-License-Identifier: Apache-2.0
// What the page asks of one file, and what the core answers, as plain data and arrays.

import { coreError } from "./core.js";
import { makeBands } from "./bands.js";
import { flawsOf } from "./flaws.js";
import { blockFacts, lanesOf, momentFacts, rangeHolders } from "./moments.js";
import { makeLists } from "./lists_worker.js";
import { flameOf, layoutOf } from "./shapes.js";
import { NONE, columnsOf, makeTexts } from "./trace.js";
import { makeWhatIf } from "./replay.js";
import { HOST } from "./units.js";

// Questions that need no device's trace, and those that need axes beside it.
const WITHOUT_TRACE = ["device", "memory", "save"];
const ON_AXES = ["draw", "at", "place", "highest", "moment", "block", "range", "lanes"];
// nt_role of the events that begin a backward pass.
const SEED = 4;
const METRICS = ["allocated", "active", "reserved", "requested"];

// The figures of `facts` in csrc/page/nt_page_ask.c, by name.
const factsOf = (core) => {
  core.exports.facts();
  const numbers = core.figures(32);
  const facts = { events: numbers[0], peak: {}, start: {} };
  METRICS.forEach((name, k) => {
    facts.peak[name] = { bytes: numbers[1 + 3 * k], event: numbers[2 + 3 * k] };
    facts.start[name] = numbers[3 + 3 * k];
  });
  const rest = ["complete", "slackBound", "preexisting", "unmatched", "ooms", "retries", "freesKnown"];
  rest.forEach((name, k) => { facts[name] = numbers[13 + k]; });
  return facts;
};

// The share of the time within which half of the events lie.
const halfWithin = (c, duration) => {
  const half = c.events >> 1;
  let least = duration;
  for (let event = half; event < c.events; event++) {
    least = Math.min(least, c.e.time_us.at(event) - c.e.time_us.at(event - half));
  }
  return least / duration;
};

export const makeAnswers = (core, rules, about) => {
  const texts = makeTexts(core, rules, about.renamed, about.libraries);
  const ctx = { core, rules, texts, device: -1, facts: null, columns: () => columnsOf(core) };
  const frames = texts.said();
  let axis = null;
  // Whether a trace was replayed: the core has none to ask where there was no memory for it.
  let ready = false;

  const settings = () => {
    const at = core.place("settings");
    const [length, ...flags] = core.figures(5);
    const [isNative, isCpu, isStated, isPinned] = flags.map((flag) => flag === 1);
    return { text: core.text(at, length), isNative, isCpu, isStated, isPinned };
  };

  const devices = () => {
    const found = new Set();
    for (let device = 0; device < core.exports.traces(); device++) found.add(device);
    const column = core.column("layout.device");
    const used = new Set(column ? column.view : []);
    return [...found].filter((device) => used.has(device) || core.exports.trace_length(device) > 0)
      .concat([...used].filter((device) => !found.has(device))).sort((a, b) => a - b)
      .concat(core.exports.turn(0) ? [HOST] : []);
  };

  // Replays one device's trace; further questions are about it.
  const device = (number) => {
    core.exports.use(0);
    [ready, ctx.axis] = [false, null];
    const isHost = number === HOST;
    core.exports.turn(isHost ? 1 : 0);
    core.call("replay", isHost ? 0 : number);
    ctx.device = number;
    ctx.facts = factsOf(core);
    Object.assign(ctx, { stepsHow: null, passes: [], isNamed: false });
    const c = ctx.columns();
    const first = c.e.time_us ? c.e.time_us.at(0) : 0;
    const last = c.events && c.e.time_us ? c.e.time_us.at(c.events - 1) : 0;
    ctx.firstTime = first;
    const oom = texts.actions.indexOf("oom");
    const ooms = [];
    for (let event = 0; event < c.events; event++) {
      if (c.e.action.view[event] === oom) {
        ooms.push({
          event, asked: c.e.size.at(event), free: c.e.device_free ? c.e.device_free.at(event) : 0,
          place: texts.placeOf(c.e.stack.view[event]),
        });
      }
    }
    ctx.lists = makeLists(ctx);
    ctx.bands = makeBands(ctx);
    ctx.whatIf = makeWhatIf(ctx);
    const isTimed = last > first;
    ready = true;
    return {
      halfWithin: isTimed ? halfWithin(c, last - first) : 1,
      ...ctx.facts, device: number, isHost, ooms, isTimed, duration: last - first, rows: c.rows, segments: c.segments,
      firstTime: first, categories: rules.categories,
    };
  };

  // Whether it is known of most bytes of the peak what they are for.
  const isMostlyKnown = () => {
    core.exports.rule_sums(ctx.facts.peak.allocated.event);
    const sums = core.answer(0).view;
    let [all, known] = [0, 0];
    for (let rule = 0; 2 * rule < sums.length; rule++) {
      all += sums[2 * rule];
      if (ctx.bands.ofRule[rule]) known += sums[2 * rule];
    }
    return known > all / 2;
  };

  // What the first picture does not wait for: what blocks were for.
  const settle = () => {
    core.stored(frames, (at) => core.call("categories", at, frames.length));
    // What the process's own tensors said of its blocks counts above the rules.
    const decided = core.column("rules")?.view;
    for (const [row, rule] of about.told?.[ctx.device] ?? []) decided[row] = rule;
    const c = ctx.columns();
    ctx.passes = passesOf(c);
    ctx.isNamed = ctx.passes.length > 0 || Boolean(c.e.forward);
    return { isKnown: ctx.bands.isKnown(), isMostlyKnown: isMostlyKnown(), isNamed: ctx.isNamed };
  };

  // The place of what was allocated without a stack: the forward operation's, or the line that
  // began the backward pass it was in.
  const stackless = (c, event) => {
    if (event < 0) return texts.unknown;
    const forward = c.e.forward ? c.e.forward.view[event] : NONE;
    const place = forward === NONE ? texts.unknown : texts.forwardPlace(forward);
    if (place !== texts.unknown) return place;
    const pass = ctx.passes.findLast(({ begin }) => begin <= event);
    return pass && event < pass.end ? pass.place : texts.unknown;
  };
  ctx.placeOfRow = (c, row) => {
    const place = texts.placeOf(c.a.stack.view[row]);
    return place === texts.unknown && ctx.isNamed ? stackless(c, c.a.alloc_event.view[row]) : place;
  };
  // The backward passes of which it is known who began them.
  const passesOf = (c) => {
    const found = [];
    for (let k = 0; c.passes && k < c.passes.length; k += 2) {
      const [begin, end] = [c.passes[k], c.passes[k + 1]];
      let seed = begin;
      while (seed < end && c.roles[seed] !== SEED) seed++;
      if (seed < end && c.e.stack.view[seed] !== NONE) found.push({ begin, end, place: texts.callerPlace(c.e.stack.view[seed]) });
    }
    return found;
  };

  const axes = ({ byTime, raw }) => {
    [axis, ctx.axis] = [null, null];
    core.call("axes", byTime ? 1 : 0, raw ? 1 : 0);
    const [width, height] = core.figures(2);
    const ranges = core.column("axis.ranges");
    axis = { byTime, raw, width, height };
    ctx.axis = axis;
    const starts = [];
    for (let i = 0; ranges && i < ranges.length / 3 && starts.length < 4000; i++) starts.push(ranges.at(3 * i + 2));
    const x = core.column("axis.states");
    return { ...axis, borders: starts, ooms: [], x0: x.at(0) };
  };

  // Room for `bytes` in one of the buffers of an earlier picture, if one has that size.
  const roomIn = (spare, bytes) => {
    const found = spare.findIndex((buffer) => buffer.byteLength === bytes);
    return found < 0 ? new ArrayBuffer(bytes) : spare.splice(found, 1)[0];
  };
  // Copies of what lies in the core's memory: of 64 bits a number as doubles.
  const copied = (view, spare) => {
    const copy = new view.constructor(roomIn(spare, view.byteLength));
    copy.set(view);
    return copy;
  };
  const doublesOf = (column, spare) => {
    const length = column?.length ?? 0;
    const found = new Float64Array(roomIn(spare, 8 * length));
    for (let i = 0; i < length; i++) found[i] = column.at(i);
    return found;
  };

  // The strip and the map at a view, in pixels. `spare`: buffers of an earlier picture.
  const draw = ({ x0, x1, y0, y1, width, height, spare = [] }) => {
    const answer = { x0, x1, y0, y1, width, height };
    const count = ctx.bands.count();
    core.call("strip", x0, x1, width, count);
    answer.events = copied(core.answer(0).view, spare);
    for (const [which, name] of [[1, "allocated"], [2, "reserved"], [3, "sums"]]) {
      answer[name] = doublesOf(core.answer(which), spare);
    }
    if (height) {
      core.call("map", x0, x1, y0, y1, width, height);
      answer.pixels = copied(core.answer(0).view, spare);
      answer.rows = copied(core.answer(1).view, spare);
      answer.full = copied(core.answer(2).view, spare);
    }
    return answer;
  };

  // The event that ends the call that began with a new segment.
  const opening = ["segment_alloc", "segment_map"].map((name) => texts.actions.indexOf(name));
  const wholeCall = (c, event) => {
    let end = event;
    while (end + 1 < c.events && opening.includes(c.e.action.view[end])) end += 1;
    return end;
  };

  // The last event at or before a position; -1 before the first.
  const eventAt = (x) => {
    const states = core.column("axis.states");
    let [low, high] = [0, states.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (states.at(middle) <= x) low = middle + 1; else high = middle;
    }
    return low - 2;
  };
  const positionOf = (event) => core.column("axis.states").at(event + 1);
  ctx.eventAt = eventAt;
  ctx.positionOf = positionOf;

  const asked = {
    device, settle, axes, draw,
    flaws: () => flawsOf(ctx),
    lanes: () => lanesOf(ctx, about.idle?.[ctx.device]),
    bands: ({ by, query }) => ctx.bands.set(by, query),
    band: (wanted) => ctx.bands.at(wanted),
    at: ({ x }) => ({ event: Math.max(eventAt(x), -1) }),
    place: ({ events }) => events.map((event) => positionOf(event)),
    whole: ({ event }) => ({ event: wholeCall(ctx.columns(), event) }),
    highest: ({ metric, first, end }) => ({
      event: core.exports.highest(metric === "reserved" ? 1 : 0, first + 1, end + 1) - 1,
    }),
    moment: ({ event, all }) => momentFacts(ctx, event, all),
    block: ({ row }) => blockFacts(ctx, row),
    range: (view) => rangeHolders(ctx, view),
    flame: (wanted) => flameOf(ctx, wanted),
    layout: ({ event, order }) => layoutOf(ctx, event, order),
    find: ({ list, query, column, down }) => ctx.lists.find(list, query, column, down),
    rows: ({ list, first, count }) => ctx.lists.rows(list, first, count),
    where: ({ list, event }) => ctx.lists.where(list, event),
    csv: (view) => ctx.lists.csv(view),
    program: () => ctx.whatIf.program(),
    whatIf: (wanted) => ctx.whatIf.run(wanted),
    whatIfMost: (wanted) => ctx.whatIf.most(wanted),
    whatIfDraw: (wanted) => ctx.whatIf.draw(wanted),
    save: () => {
      const pieces = [];
      ctx.keep(pieces);
      core.call("save");
      return { blob: new Blob(pieces, { type: "application/octet-stream" }) };
    },
    memory: () => { core.exports.memory_used(); const [used, most] = core.figures(2); return { used, most }; },
  };
  return {
    devices, settings, ctx,
    answer: (name, given) => {
      if (!asked[name]) throw coreError(7, `there is no question ${name}`);
      const isMissing = !ready && !WITHOUT_TRACE.includes(name) || !ctx.axis && ON_AXES.includes(name);
      if (isMissing) throw coreError(7, "there was not enough memory for this device's trace");
      const { event } = given ?? {};
      if (event !== undefined && !(event >= -1 && event < ctx.facts.events)) throw coreError(7, `the trace has no event ${event}`);
      return asked[name](given);
    },
  };
};
