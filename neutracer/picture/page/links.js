// SPDX-License-Identifier: Apache-2.0
// The page's address says what it shows: written when the view rests, and followed.

import { read, write } from "./state.js";

export const links = (app, parts, { inTurn, isTold, turned }) => {
  const remember = () => {
    // Inside of another page it has no address of its own.
    if (location.protocol === "about:" || !app.first) return;
    // A link that somebody else wrote is followed first.
    if (location.hash !== app.linked) return;
    const text = write(app.state, app.view, { ...app.start, ...app.first });
    if (location.hash.slice(1) !== text) history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
    app.linked = location.hash;
  };
  let later = 0;
  app.moved = () => { clearTimeout(later); later = setTimeout(remember, 150); };

  const follow = async () => {
    // Without a file it waits for one.
    if (!app.trace) return;
    // The link is written anew while it is followed.
    const { hash } = location;
    app.linked = hash;
    const found = read(hash, Infinity, Infinity);
    const { devices } = app.files[app.fileIndex];
    const device = devices.includes(found.device) ? found.device : app.firstDevice;
    if (device !== app.state.device) await turned(app.fileIndex, device);
    const inside = read(hash, app.trace.events, app.trace.rows);
    // What a link does not say is as it was at first.
    const change = { ...app.start, tab: "overview" };
    for (const key of ["tab", "event", "pin", "query", "axis", "stacking"]) if (inside[key] !== null) change[key] = inside[key];
    if (change.axis === "time" && !app.trace.isTimed) change.axis = "event";
    if (change.stacking === "categories" && !app.trace.isKnown) change.stacking = "stacks";
    if (inside.event !== null) change.held = true;
    await app.set({ ...change, raw: inside.raw }, true);
    if (!app.axis) return;
    const { width, height } = app.axis;
    const [from, to] = (inside.range ?? [0, 0]).map((x) => Math.min(Math.max(x, 0), width));
    await app.set({ range: from < to ? [from, to] : null }, true);
    parts.overview.look(...(inside.x || [0, width]), ...(inside.y || [0, height]));
    const focus = !hash && isTold() && app.told.focus;
    if (focus) {
      const [first, last] = await app.ask("place", { events: focus });
      parts.overview.look(first, last, 0, height);
    }
    app.show();
    app.render();
  };
  const restore = () => inTurn(async () => {
    document.documentElement.dataset.ready = "";
    await follow().catch(app.complain);
    document.documentElement.dataset.ready = "1";
    document.documentElement.dataset.links = String(Number(document.documentElement.dataset.links || 0) + 1);
  });
  return { follow, restore };
};
