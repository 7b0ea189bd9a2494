// SPDX-License-Identifier: Apache-2.0
// The tabs Allocations and Events: what a search finds, in the order that is asked for.

import { byId } from "./dom.js";
import { wordsOf } from "./filter.js";
import { table } from "./table.js";
import { count, many } from "./units.js";

const KINDS = {
  allocations: [["size", "num"], ["asked", "num", "wide widest"], ["allocated by", "text"], ["made at", "num", "wide"],
    ["freed at", "num", "wide"], ["lived", "num", "long"], ["stream", "num", "wide widest"], ["category", "text", "wide category"],
    ["block", "num", "wide widest address"]],
  events: [["event", "num"], ["time", "num", "wide"], ["action", "text"], ["size", "num"], ["by", "text"],
    ["address", "num", "wide address"], ["stream", "num", "wide"], ["metadata", "text", "wide"]],
};

export const lists = (app) => {
  const shown = { allocations: null, events: null };
  const told = (tab, { found, total, wrong }) => {
    const all = many(total, tab.slice(0, -1));
    const what = !total ? `no ${tab} were recorded` : found === total ? all : `${count(found)} of ${all}`;
    byId(`${tab.slice(0, -1)}-words`).textContent = wrong.length ? `${what}; not understood: ${wrong.join(" ")}` : what;
  };
  const make = (tab, box, leftOut) => {
    const isPlace = (name) => name === "allocated by" || name === "by";
    const columns = KINDS[tab].map(([name, kind, wide], at) => ({ name, kind, wide, at, isPlace: isPlace(name) }))
      .filter(({ name }) => !leftOut.includes(name));
    const find = async (column, down) => {
      const found = await app.ask("find", { list: tab, query: app.state.query, column, down });
      told(tab, found);
      own.show(found.found);
      followed = null;
      await follow();
    };
    // The list of events goes where the cursor is; a scroll of its own stays where it is.
    let followed = null;
    const follow = async () => {
      const { event } = app.state;
      if (tab !== "events" || followed === event) return;
      followed = event;
      const { at } = await app.ask("where", { list: tab, event });
      if (at >= 0 && followed === event) own.reveal(at);
    };
    const own = table(byId(box), {
      label: tab, columns, sorted: find, down: tab === "allocations", words: () => wordsOf(app.state.query),
      rowsOf: (first, wanted) => app.ask("rows", { list: tab, first, count: wanted }),
      choose: ({ event, row }) => app.set({ pin: row, event, held: true }),
      isChosen: ({ id, row }) => (tab === "events" ? id === app.state.event : row >= 0 && row === app.state.pin),
    });
    const draw = () => {
      own.draw();
      follow().catch(app.complain);
    };
    return { draw, find: () => find(own.order().column.name, own.order().down) };
  };
  let tables = null;
  const reset = () => {
    const { trace } = app;
    tables = {
      allocations: make("allocations", "allocation-table", trace.isKnown ? [] : ["category"]),
      events: make("events", "event-table",
        [...(trace.isTimed ? [] : ["time"]), ...(app.files[app.fileIndex].axis.lanes.lanes.some(({ kind }) => kind === "metadata") ? [] : ["metadata"])]),
    };
    shown.allocations = shown.events = null;
  };
  const draw = (tab) => {
    if (!tables) return;
    const key = `${app.serial} ${app.state.query}`;
    if (shown[tab] !== key) {
      shown[tab] = key;
      tables[tab].find().catch(app.complain);
    } else tables[tab].draw();
  };
  return { draw, reset };
};
