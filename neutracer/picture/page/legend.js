// SPDX-License-Identifier: Apache-2.0
// What the colours mean: the bands of timeline and map, and what is free. A click on a band puts it
// aside or takes it back; with Shift, or twice, all others.

import { byId, made, ofHex, placed, rgb } from "./dom.js";
import { bandColours } from "./strip.js";

const entry = (box, fill, text, where = "") => {
  const item = made(box, "span", "", "key");
  made(item, "i").style.background = fill;
  placed(item, text, where);
  return item;
};

const band = (app, box, fill, { name, where, isHidden }) => {
  const item = made(box, "button", "", isHidden ? "key aside" : "key");
  made(item, "i").style.background = fill;
  placed(item, name, where);
  item.title = `${name}: click to hide or show it, twice (or with Shift) to see it alone`;
  item.setAttribute("aria-pressed", String(!isHidden));
  item.addEventListener("click", (event) => (event.shiftKey ? app.isolate(name) : app.hide(name)));
  item.addEventListener("dblclick", () => app.isolate(name));
};

export const drawLegend = (app) => {
  const { colours, bands } = app;
  const box = byId("legend");
  const fills = bandColours(colours, bands).map(rgb);
  const focus = [...box.children].indexOf(document.activeElement);
  box.replaceChildren();
  bands.forEach((one, k) => band(app, box, fills[k], one));
  if (app.state.query) entry(box, fills[fills.length - 1], "not what the search finds");
  entry(box, rgb(ofHex(colours.sand)), "reserved, free");
  if (app.axis.lanes.idle.length) {
    entry(box, rgb(ofHex(colours.grey)), "hatched: past its last use, or never used").firstChild.className = "hatched";
  }
  for (const { name } of app.axis.lanes.pools.slice(0, 1)) {
    entry(box, `repeating-linear-gradient(90deg,${colours.ink} 0 5px,transparent 5px 8px)`,
      app.axis.lanes.pools.length > 1 ? "private pools" : name);
  }
  if (focus >= 0) box.children[focus]?.focus({ preventScroll: true });
};
