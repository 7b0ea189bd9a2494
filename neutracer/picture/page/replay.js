// SPDX-License-Identifier: Apache-2.0
// The program of the trace on the core's model of the allocator, under other settings.

import { bytes, count, many, share } from "./units.js";

// The figures of csrc/page/nt_page_what_if.c, by name.
const PROGRAM = ["steps", "limitLow", "limitHigh", "isDevice", "addresses", "addressesSame", "events", "eventsSame",
  "isSame", "isEndSame", "firstEvent", "recordedAction", "recordedAddress", "recordedSize", "modelledAction",
  "modelledAddress", "modelledSize", "pools"];
const OUTCOME = ["peakReserved", "reserved", "peakAllocated", "allocated", "segments", "deviceAllocs", "deviceFrees",
  "ooms", "retries", "stoppedEvent", "beyondEvent", "startRebuilt"];

const named = (names, numbers) => Object.fromEntries(names.map((name, k) => [name, numbers[k]]));

// Of the numbers from `low` to `high` the one that most powers of two divide.
const roundest = (low, high) => {
  let step = 1;
  while (Math.ceil(low / (2 * step)) * 2 * step <= high && 2 * step <= high) step *= 2;
  return Math.ceil(low / step) * step;
};

export const makeWhatIf = (ctx) => {
  const { core, texts } = ctx;
  let known = null;

  const deed = (action, address, size) => (action >= 12 ? "nothing"
    : `${texts.actions[action]} of ${bytes(size)}${address ? ` at 0x${address.toString(16)}` : ""}`);

  // How faithfully the model replays the recording, in the words of `what_if`.
  const sentence = (p) => {
    const [same, total] = [p.addressesSame + p.eventsSame, p.addresses + p.events];
    const addresses = `${count(p.addresses)} address${p.addresses === 1 ? "" : "es"}`;
    const events = many(p.events, "segment event");
    if (p.isSame && p.isEndSame) {
      return `The model reproduces this recording exactly: ${addresses}, ${events} and the state at the end.`;
    }
    const value = Math.min(total ? same / total : 0, 1 - 1 / (total + 1));
    const text = `The model reproduces ${count(p.addressesSame)} of ${addresses}, ${count(p.eventsSame)} of ${events}, `
      + `${p.isEndSame ? "the state at the end" : "not the state at the end"} (${share(value)}).`;
    if (p.firstEvent < 0) return text;
    return `${text} It first differs at event ${count(p.firstEvent)}: recorded `
      + `${deed(p.recordedAction, p.recordedAddress, p.recordedSize)}, modelled `
      + `${deed(p.modelledAction, p.modelledAddress, p.modelledSize)}.`;
  };

  const program = () => {
    if (known) return known;
    core.exports.use(0);
    core.call("program");
    const p = named(PROGRAM, core.figures(PROGRAM.length));
    const isCapped = p.limitHigh >= 0 && !p.isDevice;
    // As what_if does: of a limit that only failures show, the roundest that fits them.
    const low = Math.max(p.limitLow, 1);
    const limit = isCapped && low < p.limitHigh ? roundest(low, p.limitHigh) : 0;
    known = { ...p, isCapped, limit, sentence: p.steps ? sentence(p) : "" };
    return known;
  };

  const given = ({ settings, capacity }, use) => {
    const p = program();
    const text = new TextEncoder().encode(settings);
    return core.stored(text, (at) => use(at, text.length, capacity || p.limit, p.isCapped ? 1 : 0));
  };

  const run = (wanted) => {
    const started = performance.now();
    given(wanted, (...all) => core.call("what_if", ...all));
    return { ...named(OUTCOME, core.figures(OUTCOME.length)), settings: wanted.settings, took: performance.now() - started };
  };

  // The most that would have been reserved before an event.
  const most = ({ end, ...wanted }) => {
    given(wanted, (...all) => core.call("what_if_most", ...all, end));
    return core.figures(1)[0];
  };

  // The strip and the map of what would have been, on an axis of its own events.
  const draw = ({ width, height, byTime, ...wanted }) => {
    const started = performance.now();
    given(wanted, (...all) => core.call("what_if_trace", ...all));
    core.exports.use(1);
    try {
      core.call("axes", byTime ? 1 : 0, 0);
      const [x1, y1] = core.figures(2);
      const at = core.place("codes");
      const rows = core.column("alloc.size")?.length ?? 0;
      core.room(at, Uint8Array, Math.max(rows, 1)).fill(0);
      core.call("bands", 2);
      core.call("strip", 0, x1, width, 2);
      const [events, allocated, reserved] = [0, 1, 2].map((which) => core.answer(which));
      const answer = {
        x1, y1, width, height, events: events.view.slice(),
        allocated: Float64Array.from({ length: width }, (_, i) => allocated.at(i)),
        reserved: Float64Array.from({ length: width }, (_, i) => reserved.at(i)),
      };
      core.call("map", 0, x1, 0, y1, width, height);
      answer.pixels = core.answer(0).view.slice();
      answer.full = core.answer(2).view.slice();
      answer.took = performance.now() - started;
      return answer;
    } finally {
      core.exports.use(0);
    }
  };
  return { program, run, most, draw };
};
