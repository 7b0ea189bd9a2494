// SPDX-License-Identifier: Apache-2.0
// What stands out: short lines whose detail is folded. Of a file that neutracer wrote the page
// for, its findings; of another, what the core's figures say.

import { byId, made } from "./dom.js";
import { bytes, count, share } from "./units.js";

const SHOWN = 2;

const NOTHING = { severity: "info", message: "nothing stands out: no out-of-memory event, no fragmentation worth mentioning", notes: [] };

// Requests that failed which are told of.
const FAILURES = 3;

// From so many bytes and from this share of what is reserved on, it is worth a line.
const LEAST = 2 ** 28;
const LEAST_SHARE = 0.2;

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
  notes.push("With the file, the command neutracer explain says what made the difference, and what would have fitted.");
  return notes;
};

// What was reserved at most beyond what was ever allocated, where that is much.
const unusedAtMost = ({ peak }) => {
  const unused = peak.reserved.bytes - peak.allocated.bytes;
  return unused > LEAST && unused / peak.reserved.bytes > LEAST_SHARE ? unused : 0;
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
    failures: await Promise.all(app.ooms.slice(0, FAILURES).map(failed)),
    most: unusedAtMost(trace) ? await at(trace.peak.reserved.event) : null,
    flaws: await app.ask("flaws"),
  };
};

const unusedFinding = ({ peak }, unused, most) => {
  const { event } = peak.reserved;
  const { pending = 0 } = most ?? {};
  if (pending > unused / 2) {
    return {
      severity: "serious", message: `${bytes(pending)} was freed and waited for another stream when most was reserved`, event,
      notes: ["What another stream uses (record_stream) can't be used again before that stream is done with it: synchronize the "
        + "two before the tensors are freed, or keep the host from running so far ahead. Settings of the allocator change nothing."],
    };
  }
  return {
    severity: "moderate", message: `${bytes(unused)} (${share(unused / peak.reserved.bytes)}) more was reserved at most than was ever allocated`,
    event, notes: ["What if shows what expandable_segments:True would have reserved."],
  };
};

// What the figures of a device say by themselves; `moments` are those that they are about, once
// they are known.
export const ownFindings = (app, moments = { failures: [], most: null, flaws: { notes: [] } }) => {
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
  trace.ooms.slice(0, FAILURES).forEach((oom, k) => {
    found.push({
      severity: "severe", message: `out of memory: requested ${bytes(oom.asked)} at event ${count(oom.event)}`
        + `${oom.free >= oom.asked ? ", though the device had room" : ""}`, event: oom.event,
      notes: moments.failures[k] ? failureNotes(oom, trace.peak.reserved.bytes, moments.failures[k]) : [`The device had ${bytes(oom.free)} free.`],
    });
  });
  const unused = unusedAtMost(trace);
  if (unused) found.push(unusedFinding(trace, unused, moments.most));
  if (!found.length) {
    found.push({ ...NOTHING, notes: ["Memory that grows from step to step, and why blocks are kept, is found with the file by the command neutracer report."] });
  }
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
  findings.slice(0, SHOWN).forEach((finding, k) => article(app, box, finding, !k));
  if (findings.length <= SHOWN) return;
  const more = made(box, "details");
  made(more, "summary", `${findings.length - SHOWN} more`, "muted");
  for (const finding of findings.slice(SHOWN)) article(app, more, finding);
};
