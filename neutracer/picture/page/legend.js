// SPDX-License-Identifier: Apache-2.0
// What the colours mean: the bands of timeline and map, and what is free.

import { byId, made, ofHex, rgb } from "./dom.js";
import { bandColours } from "./strip.js";

const entry = (box, fill, text, run) => {
  const item = made(box, run ? "button" : "span", "", "key");
  made(item, "i").style.background = fill;
  made(item, "span", text);
  if (run) {
    item.title = `${text}: click to search for it`;
    item.addEventListener("click", run);
  }
};

export const drawLegend = (app) => {
  const { colours, bands } = app;
  const box = byId("legend");
  const fills = bandColours(colours, bands).map(rgb);
  box.replaceChildren();
  bands.forEach(({ name, query }, k) => entry(box, fills[k], name, query && (() => app.search(query))));
  if (app.state.query) entry(box, fills[fills.length - 1], "not what the search finds");
  entry(box, rgb(ofHex(colours.sand)), "reserved, free");
  for (const { name } of app.axis.lanes.pools.slice(0, 1)) {
    entry(box, `repeating-linear-gradient(90deg,${colours.ink} 0 5px,transparent 5px 8px)`,
      app.axis.lanes.pools.length > 1 ? "private pools" : name);
  }
};
