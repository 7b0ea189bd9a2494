// SPDX-License-Identifier: Apache-2.0
// Text from a file made harmless to show: what is not plainly visible is spelt out, as
// render/escape.py does. Elements get it as text, never as HTML.

const PLAIN = /^[\x20-\x7e]*$/;
const HIDDEN = /[\p{C}\p{Zl}\p{Zp}\p{Zs}]/u;
const MARK = /[\p{Mn}\p{Me}]/u;

// Real scripts stack at most a few marks on a letter.
const MOST_MARKS = 4;
const MOST_NAME = 300;

const escaped = (letter) => {
  const code = letter.codePointAt(0);
  const named = { 9: "\\t", 10: "\\n", 13: "\\r" }[code];
  if (named) return named;
  const hex = code.toString(16);
  if (code < 0x100) return `\\x${hex.padStart(2, "0")}`;
  return code < 0x10000 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
};

export const clean = (text) => {
  if (PLAIN.test(text)) return text.length > MOST_NAME ? `${text.slice(0, MOST_NAME - 1)}…` : text;
  let [out, marks] = ["", 0];
  for (const letter of text) {
    marks = MARK.test(letter) ? marks + 1 : 0;
    const isShown = letter === " " || (!HIDDEN.test(letter) && marks <= MOST_MARKS);
    out += isShown ? letter : escaped(letter);
    if (out.length > MOST_NAME) return `${out.slice(0, MOST_NAME - 1)}…`;
  }
  return out;
};
