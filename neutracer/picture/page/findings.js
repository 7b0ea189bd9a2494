// SPDX-License-Identifier: Apache-2.0
// What stands out: short lines whose detail is folded. Of a file that neutracer wrote the page
// for, its findings; of another, what the core's figures say.

import { byId, made } from "./dom.js";
import { bytes, count, share } from "./units.js";

const SHOWN = 2;

const NOTHING = { severity: "info", message: "nothing stands out: no out-of-memory event, no fragmentation worth mentioning", notes: [] };

// What a page without Python leaves out.
const NOT_LOOKED = {
  severity: "info",
  message: "growth from step to step, memory kept too long and causes of failure were not looked at: that needs Python",
  notes: ["Kept too long are gradients that live through the next forward pass, and memory past its last use.",
    "The command neutracer report looks for all of it in the file, and neutracer explain at a failure and what would have fitted."],
};

// Places of failed requests that are told of.
const FAILURES = 8;

// Fewer unused bytes are of no account (fragmentation/report.py).
const LITTLE = 0.05 * 2 ** 31;
const RANKS = ["info", "moderate", "serious", "severe"];

// Steps that are compared with the one in which a request failed, and how much larger that is.
const LEAST_STEPS = 2;
const LARGER = 1.2;

// Why what was free inside of what is reserved did not serve; `closed` is free where
// nothing else may use it.
const holeNote = ({ asked, most, inside, reserved, largestHole, closed }) => {
  const free = `${bytes(inside)} of the ${bytes(reserved)} reserved were free`;
  if (largestHole >= asked) {
    return `${free}, with a hole of ${bytes(largestHole)}, which is large enough: it belongs to another pool or stream than the request, `
      + "or came back too late. Segments shows which pool and stream.";
  }
  if (closed > inside / 2) {
    return `${free}, but ${bytes(closed)} of that where nothing else may use it: in private pools, or in segments that could not be given back.`;
  }
  // What the process had reserved before, it could have reserved again.
  const more = Math.max(most - reserved, 0);
  return `${free} in pieces, the largest ${bytes(largestHole)}.`
    + (inside + more < asked ? "" : `${inside < asked ? ` With ${bytes(more)} that the process had before, these` : " These"} would have been enough: that is fragmentation.`);
};

// Why a request failed, from the moment at which it did.
// `most`: bytes that were reserved at the most.
const failureNotes = ({ asked, free }, most, { by, allocated, reserved, largestHole, pending, places, before, closed }) => {
  const inside = reserved - allocated;
  const [first] = places;
  const notes = [`${by} asked for it. ${bytes(allocated)} were allocated then${
    first ? `, ${share(first.bytes / Math.max(allocated, 1))} of it by ${first.name}` : ""}.`];
  notes.push(free >= asked
    ? `The device had ${bytes(free)} free, so what refused was a limit of the process: set_per_process_memory_fraction(), or a setting.`
    : `The device had ${bytes(free)} free, too little for it.`);
  const needed = allocated + asked;
  if (before && needed > LARGER * before) {
    notes.push(`This step needs more than those before it: ${bytes(needed)} and maybe more, where they had ${bytes(before)} allocated at most.`);
  }
  if (inside > 0) notes.push(holeNote({ asked, most, inside, reserved, largestHole, closed }));
  if (pending) notes.push(`${bytes(pending)} of that was freed, and waited for another stream.`);
  notes.push("The event's button takes the cursor there: Stacks shows who holds what, and What if what other settings do.");
  return notes;
};

// The severity of unused bytes, by the band of their share.
const severityOf = (bands, ratio, size) => {
  const [, word] = bands.find(([limit, name]) => ratio < limit || (name === "serious" && ratio === limit)) ?? [0, "severe"];
  return word === "good" || size < LITTLE ? "info" : word;
};

const lesser = (a, b) => (RANKS.indexOf(a) < RANKS.indexOf(b) ? a : b);

// The peaks of reserved up to the first failure, as recorded and under expandable segments; null
// where that can't be replayed exactly.
const expandedPeaks = async (app) => {
  const { about: { settings }, trace } = app;
  const isPossible = settings.isNative && !settings.isCpu && !settings.isPinned && !trace.isHost && !app.about.partial;
  if (!isPossible || /expandable_segments:true/i.test(settings.text)) return null;
  const { isSame, isEndSame } = await app.ask("program");
  if (!isSame || !isEndSame) return null;
  const end = trace.ooms.length ? trace.ooms[0].event : trace.events;
  const most = (text) => app.ask("whatIfMost", { settings: text, capacity: 0, end });
  return { was: await most(settings.text), would: await most("expandable_segments:True") };
};

// How much was unused at the peak of reserved, and is at the end: what the command says. No cure
// reserves less than the most that was active, and expandable segments only as much as replayed.
const unusedIn = async (app) => {
  const { trace, rules: { bands } } = app;
  const { reserved, active } = trace.peak;
  if (!trace.events || reserved.event < 0) return null;
  const { event } = await app.ask("whole", { event: reserved.event });
  const [then, now] = [await app.ask("moment", { event }), await app.ask("moment", { event: trace.events - 1 })];
  let spared = reserved.bytes - active.bytes;
  let peak = severityOf(bands, spared / Math.max(reserved.bytes, 1), spared);
  let replayed = null;
  if (peak !== "info" && trace.retries <= trace.ooms.length) {
    replayed = await expandedPeaks(app);
    if (replayed) spared = Math.min(spared, Math.max(replayed.was - replayed.would, 0));
    peak = severityOf(bands, spared / reserved.bytes, spared);
  }
  const stuck = Math.max(now.reserved - now.allocated - now.reclaimable, 0);
  const end = lesser(severityOf(bands, stuck ? stuck / (now.reserved - now.reclaimable) : 0, stuck), peak);
  return { then, now, peak, end, replayed };
};

// Bytes that were allocated at most before the step in which a request failed; 0 where that is
// not known: of very many steps only the first are told.
const mostBefore = async (app, { x }) => {
  const { axis } = app;
  const steps = axis?.lanes.lanes.find(({ kind }) => kind === "steps")?.ranges.filter(({ x1 }) => x1 <= x) ?? [];
  const begin = steps.at(-1)?.x1;
  if (steps.length < LEAST_STEPS || x - begin > 2 * Math.max(...steps.map(({ x0, x1 }) => x1 - x0))) return 0;
  const { event: end } = await app.ask("at", { x: begin });
  const { event } = await app.ask("highest", { metric: "allocated", first: 0, end });
  const { allocated } = await app.ask("moment", { event });
  // On another axis by now, other events were asked about.
  return app.axis === axis ? allocated : 0;
};

// Failed requests by their place: how many, and the largest, of equal ones the last.
const failuresOf = ({ ooms }) => {
  const found = new Map();
  for (const oom of ooms) {
    const one = found.get(oom.place) ?? { worst: oom, count: 0 };
    found.set(oom.place, { worst: oom.asked >= one.worst.asked ? oom : one.worst, count: one.count + 1 });
  }
  return [...found.values()].slice(-FAILURES);
};

// What the findings are about: what can't be as the file says, the moments at which requests
// failed, and that of the most that was reserved.
export const looked = async (app) => {
  const { trace } = app;
  const at = (event) => app.ask("moment", { event });
  // A request that finds no room gives all back that is empty: what is left then is another pool's.
  const closedAt = async (event) => (await app.ask("layout", { event, order: "address" })).segments
    .filter(({ pool, used, isExpandable }) => pool.startsWith("private") || (!used && !isExpandable)).reduce((sum, { size, used }) => sum + size - used, 0);
  const failed = async (oom) => ({ ...await at(oom.event), before: await mostBefore(app, oom), closed: await closedAt(oom.event) });
  return {
    failures: await Promise.all(failuresOf(trace).map(({ worst }) => failed(app.ooms.find(({ event }) => event === worst.event)))),
    unused: await unusedIn(app),
    flaws: await app.ask("flaws"),
  };
};

// What is unused, in the words of the command.
const unusedFindings = (app, { then, now, peak, end, replayed }) => {
  const { rules: { bands }, trace: { peak: { reserved } }, about: { settings } } = app;
  const found = [];
  const inForce = settings.text && ` instead of ${settings.text}`;
  const unused = (moment) => share((moment.reserved - moment.allocated) / moment.reserved);
  if (then.pending > (then.reserved - then.allocated) / 2 && then.pending >= LITTLE) {
    found.push({
      severity: "serious", message: `${bytes(then.pending)} was freed and waited for another stream when most was reserved`, event: then.event,
      notes: ["What another stream uses (record_stream) can't be used again before that stream is done with it: synchronize the "
        + "two before the tensors are freed, or keep the host from running so far ahead. Settings of the allocator change nothing."],
    });
  } else if (peak !== "info" && (RANKS.indexOf(peak) > RANKS.indexOf(end) || reserved.bytes > now.reserved)) {
    found.push({
      severity: peak, message: `at its peak ${unused(then)} of the ${bytes(then.reserved)} reserved was unused`, event: reserved.event,
      notes: [replayed ? `With expandable_segments:True${inForce} it would have been ${bytes(replayed.would)}, not ${bytes(replayed.was)} (replayed): see What if.`
        : "What if shows what other settings would have reserved."],
    });
  }
  const ratio = now.reserved ? (now.reserved - now.allocated) / now.reserved : 0;
  if (ratio >= bands[0][0]) {
    found.push({
      severity: end, message: `${unused(now)} of the ${bytes(now.reserved)} reserved is unused now`,
      notes: now.reclaimable ? [`empty_cache() returns ${bytes(now.reclaimable)}`] : [],
    });
  }
  return found.sort((a, b) => RANKS.indexOf(b.severity) - RANKS.indexOf(a.severity));
};

// What the figures of a device say by themselves; `moments` are those that they are about, once
// they are known.
export const ownFindings = (app, moments = { failures: [], unused: null, flaws: { notes: [] } }) => {
  const { trace, about } = app;
  const found = [];
  if (about.partial) {
    found.push({ severity: "severe", message: `only a part of ${app.title} could be read, and all figures are of that part`,
      notes: [`${about.partial[0].toUpperCase()}${about.partial.slice(1)}.`] });
  }
  if (moments.flaws.notes.length) found.push({ severity: "severe", ...moments.flaws });
  if (!trace.events) {
    found.push({ severity: "info", message: "no history was recorded: this is the moment of the snapshot, and not how it came to that",
      notes: ["Call torch.cuda.memory._record_memory_history() where the program begins; snapshots then say what was allocated when, and by which line."] });
    return found;
  }
  failuresOf(trace).forEach(({ worst, count: times }, k) => {
    const notes = moments.failures[k] ? failureNotes(worst, trace.peak.reserved.bytes, moments.failures[k]) : [`The device had ${bytes(worst.free)} free.`];
    found.push({
      severity: "severe", message: `out of memory: requested ${bytes(worst.asked)}${times > 1 ? `, ${count(times)} times from one place` : ""}`,
      event: worst.event, lead: notes.slice(0, 2), notes: notes.slice(2),
    });
  });
  if (moments.unused) found.push(...unusedFindings(app, moments.unused));
  found.push(NOT_LOOKED);
  if (!trace.complete && !about.partial) {
    found.push({ severity: "info", message: "the history begins late: what was allocated before is known from what is left of it",
      notes: ["Who allocated that is seen where recording begins with the program, with room for all of its events (max_entries)."] });
  }
  return found;
};

// `isFirst`: what comes before any other is told with its cause and what to do.
const article = (app, box, { severity, message, notes, event, lead = [], query = "" }, isFirst = false) => {
  const part = made(box, "article", "", severity);
  const folded = isFirst ? notes : [...lead, ...notes];
  // What has no detail does not look as if it had.
  const details = folded.length ? made(part, "details") : part;
  const line = made(details, folded.length ? "summary" : "div", "", "line");
  made(line, "span", severity, "word");
  made(line, "strong", message);
  if (event !== null && event !== undefined) {
    const go = made(line, "button", `event ${count(event)}`);
    go.addEventListener("click", (click) => {
      click.preventDefault();
      click.stopPropagation();
      app.set({ event: Math.min(event, app.trace.events - 1), held: true, pin: -1, ...(query && { query }) });
    });
  }
  // What it is about stands out in every picture and list, until the search is cleared.
  if (query) {
    line.title = "a click marks its blocks everywhere";
    line.addEventListener("click", () => app.set({ query: app.state.query === query ? "" : query }));
  }
  if (isFirst) for (const words of lead) made(part, "p", words, "lead");
  if (!folded.length) return;
  const list = made(details, "div", "", "notes");
  for (const note of folded) made(list, "p", note);
};

export const drawFindings = (app, findings) => {
  const box = byId("findings");
  box.replaceChildren();
  if (!findings.length) {
    article(app, box, NOTHING);
    return;
  }
  const looked = findings.filter((one) => one !== NOT_LOOKED);
  looked.slice(0, SHOWN).forEach((finding, k) => article(app, box, finding, !k));
  if (looked.length < findings.length) article(app, box, NOT_LOOKED);
  if (looked.length <= SHOWN) return;
  const more = made(box, "details");
  made(more, "summary", `${looked.length - SHOWN} more`, "muted");
  for (const finding of looked.slice(SHOWN)) article(app, more, finding);
};
