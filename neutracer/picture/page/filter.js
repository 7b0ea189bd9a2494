// SPDX-License-Identifier: Apache-2.0
// The search: `size>16MiB stream:0 pool:large b7f3a00_2 -torch "text"` as a test of allocations.

import { parseBytes, parseDuration } from "./units.js";

const TERM = /(-?)(?:"([^"]*)"?|(\S+))/g;
const COMPARED = /^(size|asked|life|event)(>=|<=|>|<|=|:)(.*)$/i;
const NAMED = /^(stream|pool|category|action|kept|before):(.+)$/i;
const ALIVE = /^alive:([0-9][0-9,]*)$/i;
// What begins at an address, or one of these by the name that PyTorch's viewer gives a block; the
// rules are those of trace/lives.py.
const BLOCK = /^(?:0x([0-9a-f]{1,16})|b'?([0-9a-f]{1,16})_(\d+))$/i;

const COMPARE = {
  ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b,
  "<=": (a, b) => a <= b, "=": (a, b) => a === b, ":": (a, b) => a === b,
};

const number = (key, text) => {
  if (key === "life") return parseDuration(text);
  return key === "event" ? Number(text.replaceAll(",", "") || NaN) : parseBytes(text);
};

// Spaces within a comparison, as in `size > 16 MiB`.
const SPACED = /(?<![^\s-])(size|asked|life|event)\s*(>=|<=|>|<|=)\s*(\d[\d.,]*)(?:\s+(?=(?:[kmgt]i?b|us|µs|ms|s|min|h)(?:\s|$)))?/gi;

// The terms of a query, and in `wrong` those that can't be read.
export const parse = (query) => {
  const terms = [];
  const wrong = [];
  for (const [, minus, quoted, word] of query.replace(SPACED, "$1$2$3").matchAll(TERM)) {
    const not = minus === "-";
    const compared = quoted === undefined && COMPARED.exec(word);
    const named = quoted === undefined && NAMED.exec(word);
    const alive = quoted === undefined && ALIVE.exec(word);
    const block = quoted === undefined && BLOCK.exec(word);
    if (block) {
      const [address, nth] = [BigInt(`0x${block[1] ?? block[2]}`), block[3]];
      terms.push({ kind: "block", address, nth: nth === undefined ? null : Number(nth), not });
    } else if (alive) terms.push({ kind: "alive", event: Number(alive[1].replaceAll(",", "")), not });
    else if (compared) {
      const [key, sign, text] = [compared[1].toLowerCase(), compared[2], compared[3]];
      const value = number(key, text);
      if (value === null || Number.isNaN(value)) wrong.push(word);
      else terms.push({ kind: "compare", key, not, holds: (a) => COMPARE[sign](a, value) });
    } else if (named) {
      terms.push({ kind: "name", key: named[1].toLowerCase(), text: named[2].toLowerCase(), not });
    } else {
      const text = (quoted ?? word).toLowerCase();
      if (text) terms.push({ kind: "text", text, not });
    }
  }
  return { terms, wrong };
};

// What a query wants to be in a text, in lower case.
export const wordsOf = (query) => parse(query).terms.filter(({ kind, not }) => kind === "text" && !not)
  .map(({ text }) => text);

// A test of `subject`: an object of functions by key, `textTest(text)`, `alive(event)` and
// `blockTest(address, nth)`, which give tests.
export const compile = ({ terms }, subject) => {
  const tests = terms.map(({ kind, key, text, not, holds, event, address, nth }) => {
    if (kind === "block") {
      const is = subject.blockTest(address, nth);
      return (row) => is(row) !== not;
    }
    if (kind === "alive") {
      const lives = subject.alive(event);
      return (row) => lives(row) !== not;
    }
    if (kind === "text") {
      const has = subject.textTest(text);
      return (row) => has(row) !== not;
    }
    const value = subject[key];
    if (!value) return () => false;
    if (kind === "compare") return (row) => holds(value(row)) !== not;
    return (row) => (String(value(row)).toLowerCase().startsWith(text)) !== not;
  });
  return (row) => tests.every((test) => test(row));
};
