// SPDX-License-Identifier: Apache-2.0
// What stands out: short lines whose detail is folded. Of a file that neutracer wrote the page
// for, its findings; of another, what the core's figures say.

import { byId, made } from "./dom.js";
import { bytes, count, share } from "./units.js";

const SHOWN = 2;

// What the figures of a device say by themselves.
export const ownFindings = (app) => {
  const { trace, about } = app;
  const found = [];
  for (const { event, asked, free } of trace.ooms.slice(0, 3)) {
    found.push({
      severity: "severe", message: `out of memory: requested ${bytes(asked)} at event ${count(event)}`, event,
      notes: [`The device had ${bytes(free)} free.`, "Look at who holds most then, and in Settings at what other settings do."],
    });
  }
  const peak = trace.peak.reserved;
  const unused = peak.bytes - trace.peak.allocated.bytes;
  if (peak.bytes && unused / peak.bytes > 0.2 && unused > 2 ** 28) {
    found.push({
      severity: "moderate", message: `${bytes(unused)} (${share(unused / peak.bytes)}) more was reserved at most than was ever allocated`,
      event: peak.event, notes: ["Settings shows what expandable_segments:True would have reserved."],
    });
  }
  if (about.partial) found.push({ severity: "moderate", message: `only a part was read: ${about.partial}`, notes: [] });
  if (trace.events && !trace.complete) {
    found.push({ severity: "info", message: "the history begins late: what was allocated before is known from what is left of it", notes: [] });
  }
  return found;
};

const article = (app, box, { severity, message, notes, event }) => {
  const part = made(box, "article", "", severity);
  const details = made(part, "details");
  const line = made(details, "summary");
  made(line, "span", severity, "word");
  made(line, "strong", message);
  if (event !== null && event !== undefined) {
    const go = made(line, "button", `event ${count(event)}`);
    go.addEventListener("click", (click) => {
      click.preventDefault();
      app.set({ event: Math.min(event, app.trace.events - 1), held: true, pin: -1 });
    });
  }
  const list = made(details, "div", "", "notes");
  for (const note of notes) made(list, "p", note);
};

export const drawFindings = (app, findings) => {
  const box = byId("findings");
  box.replaceChildren();
  if (!findings.length) {
    article(app, box, {
      severity: "info", message: "Nothing stands out: no out-of-memory event, no fragmentation worth mentioning.", notes: [],
    });
    return;
  }
  for (const finding of findings.slice(0, SHOWN)) article(app, box, finding);
  if (findings.length <= SHOWN) return;
  const more = made(box, "details");
  made(more, "summary", `${findings.length - SHOWN} more`, "muted");
  for (const finding of findings.slice(SHOWN)) article(app, more, finding);
};
