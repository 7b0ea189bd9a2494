// SPDX-License-Identifier: Apache-2.0
// Where every byte of the limit was when a request failed: a bar, and behind it the table.

import { byId, made } from "./dom.js";
import { bytes } from "./units.js";

const KINDS = ["stands", "piled", "new"];

export const drawBill = (bill) => {
  const box = byId("bill");
  box.hidden = !bill;
  box.replaceChildren();
  if (!bill) return;
  const { when, columns, rows, notes, limit, parts, key } = bill;
  const summary = made(box, "summary");
  const line = made(summary, "span", "", "line");
  made(line, "b", `${bytes(limit)}, and who had it ${when}`);
  const named = key.length ? key.map((name, k) => [KINDS[k], name]) : [["stands", "in use"]];
  for (const [kind, name] of [...named, ["free", "free"], ["missing", "missing"]]) {
    if (!parts.some(([, of]) => of === kind)) continue;
    const item = made(line, "span", "", "key");
    made(item, "i", "", kind);
    made(item, "span", name);
  }
  const bar = made(summary, "span", "", "bar");
  for (const [size, kind, words] of parts) {
    const part = made(bar, "span", "", kind);
    part.style.flexGrow = String(size);
    const at = KINDS.indexOf(kind);
    part.title = `${bytes(size)}  ${words}${at >= 0 && key.length ? `, ${key[at]}` : ""}`;
  }
  const frame = made(box, "div", "", "wide-table");
  const table = made(frame, "table");
  const head = made(made(table, "thead"), "tr");
  columns.forEach((name, k) => made(head, "th", name, k === 1 ? "" : "num"));
  const body = made(table, "tbody");
  for (const cells of rows) {
    const row = made(body, "tr");
    cells.forEach((cell, k) => made(row, "td", cell, k === 1 ? "" : "num"));
  }
  for (const note of notes) made(box, "p", note, "muted");
};
