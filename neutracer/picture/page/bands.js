// SPDX-License-Identifier: Apache-2.0
// The bands of the timeline and the colours of the map: who asked, what for, or how large.

import { compile, parse } from "./filter.js";
import { NONE, isAllocated } from "./trace.js";
import { bytes } from "./units.js";

// Places that have a band of their own.
const PLACES = 7;

// Bands by size: below each of these, and what is above.
const SIZES = [16, 18, 20, 22, 24, 26, 28].map((power) => 2 ** power);

export const makeBands = (ctx) => {
  const { core, rules, texts } = ctx;
  const ofRule = Uint8Array.from(rules.rules, ([, [category]]) => rules.categories.indexOf(category));
  const categoryOf = (c, row) => (c.rules ? ofRule[c.rules[row]] : 0);
  let bands = [];

  // Bytes times events by key, of `count` keys.
  const weights = (c, keyOf, count) => {
    const found = new Float64Array(count);
    const [made, freed] = [c.a.alloc_event?.view, c.a.free_event?.view];
    for (let row = 0; row < c.rows; row++) {
      if (freed[row] === -2) continue;
      const last = freed[row] === -1 ? c.events : freed[row];
      found[keyOf(row)] += c.a.size.at(row) * Math.max(last - Math.max(made[row], 0), 1);
    }
    return found;
  };

  const byPlaces = (c) => {
    const keyOf = (row) => ctx.placeOfRow(c, row);
    // Places that rows alone name are made on the way.
    for (let row = 0; ctx.isNamed && row < c.rows; row++) keyOf(row);
    const weight = weights(c, keyOf, texts.places.length);
    const order = [...weight.keys()].filter((key) => weight[key] > 0).sort((a, b) => weight[b] - weight[a]);
    const shown = order.slice(0, PLACES);
    bands = shown.map((key, hue) => ({
      name: texts.nameOf(key), where: texts.endOf(key), hue, query: `"${texts.nameOf(key).replaceAll('"', "")}"`,
    }));
    if (order.length > shown.length) bands.push({ name: "others", hue: -1, query: "" });
    const of = new Uint8Array(texts.places.length).fill(shown.length);
    shown.forEach((key, band) => { of[key] = band; });
    return (row) => of[keyOf(row)];
  };
  const byCategories = (c) => {
    const weight = weights(c, (row) => categoryOf(c, row), rules.categories.length);
    const order = [...weight.keys()].filter((key) => weight[key] > 0 && key).sort((a, b) => weight[b] - weight[a]);
    // A category has its own hue, whatever else there is.
    bands = order.map((key) => ({
      name: rules.categories[key].replaceAll("_", " "), hue: key - 1, query: `category:${rules.categories[key]}`,
    }));
    if (weight[0] > 0) bands.push({ name: "unknown", hue: -1, query: "category:unknown" });
    const of = new Uint8Array(rules.categories.length).fill(order.length);
    order.forEach((key, band) => { of[key] = band; });
    return (row) => of[categoryOf(c, row)];
  };
  const bySizes = (c) => {
    bands = [...SIZES.map((size) => `below ${bytes(size)}`), `${bytes(SIZES[SIZES.length - 1])} and more`]
      .map((name, k) => ({
        name, blue: k / SIZES.length, hue: k,
        query: [k && `size>=${SIZES[k - 1]}`, k < SIZES.length && `size<${SIZES[k]}`].filter(Boolean).join(" "),
      }));
    return (row) => {
      const size = c.a.size.at(row);
      let band = 0;
      while (band < SIZES.length && size >= SIZES[band]) band += 1;
      return band;
    };
  };

  const set = (by, query) => {
    const at = core.place("codes");
    const c = ctx.columns();
    const of = { categories: byCategories, sizes: bySizes }[by] ?? byPlaces;
    const bandOf = of(c);
    const parsed = parse(query || "");
    const test = parsed.terms.length ? compile(parsed, ctx.lists.subject(c)) : null;
    const codes = core.room(at, Uint8Array, Math.max(c.rows, 1));
    // What a search does not find is a band of its own, the last.
    for (let row = 0; row < c.rows; row++) codes[row] = test && !test(row) ? bands.length : bandOf(row);
    core.call("bands", bands.length + 1);
    return { bands, isSearched: test !== null };
  };
  // Of the blocks of a band that are allocated after an event: their bytes and number, and the
  // stack that holds the most of them.
  const at = ({ event, band }) => {
    const from = core.place("codes");
    const c = ctx.columns();
    const codes = core.room(from, Uint8Array, Math.max(c.rows, 1));
    const held = new Map();
    let [size, count] = [0, 0];
    for (let row = 0; row < c.rows; row++) {
      if (codes[row] !== band || !isAllocated(c.a, row, event)) continue;
      const [stack, here] = [c.a.stack.view[row], c.a.size.at(row)];
      held.set(stack, (held.get(stack) ?? 0) + here);
      size += here;
      count += 1;
    }
    const [stack] = [...held].reduce((most, one) => (one[1] > most[1] ? one : most), [NONE, 0]);
    return { bytes: size, count, stacks: held.size, frames: texts.framesOf(stack) };
  };
  return {
    set, at, categoryOf, ofRule,
    count: () => bands.length + 1,
    // Whether anything is known of what blocks are for.
    isKnown: () => {
      const c = ctx.columns();
      for (let row = 0; row < c.rows; row++) if (categoryOf(c, row)) return true;
      return false;
    },
  };
};
