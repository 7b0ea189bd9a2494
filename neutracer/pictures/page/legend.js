// SPDX-License-Identifier: Apache-2.0
// What the colours mean: the groups of the timeline, free, and what the map adds.

import { byId, made, ofHex, rgb } from "./dom.js";
import { otherColour } from "./map.js";
import { groupName, groupQuery } from "./model.js";
import { groupColours } from "./strip.js";

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
  const { m, colours } = app;
  const box = byId("legend");
  const fills = groupColours(colours, m.groups.length).map(rgb);
  box.replaceChildren();
  m.groups.forEach((key, k) => entry(box, fills[k], groupName(m, key), () => app.search(groupQuery(m, key))));
  if (m.hasOthers) entry(box, fills[fills.length - 1], m.groupKind === "stacks" ? "others" : "unknown");
  entry(box, rgb(ofHex(colours.sand)), "reserved, free");
  if (m.coarse) entry(box, rgb(otherColour(colours)), "in use, not kept one by one");
};
