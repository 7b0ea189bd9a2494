// SPDX-License-Identifier: Apache-2.0
// A table of any length: only the rows in sight are elements, and only they are asked for.

import { latest } from "./client.js";
import { made, perFrame, placed, searched } from "./dom.js";

const ROW = 26;
// Browsers end an element at some 33 million pixels; longer tables scroll in larger steps.
const TALLEST = 8e6;

// `columns`: name, kind "num" or "text", wide, whether it is a place. `rowsOf(first, count)` promises
// the rows, and `sorted(column, down)` is told of another order than that by the
// first column, largest first where `down`. `words()`: what stands out in the texts.
export const table = (box, { columns, label, choose, isChosen, rowsOf, sorted, down, words }) => {
  box.replaceChildren();
  box.setAttribute("role", "table");
  box.setAttribute("aria-label", label);
  const head = made(box, "div", "", "row head");
  head.setAttribute("role", "row");
  const scroll = made(box, "div", "", "scroll");
  scroll.tabIndex = 0;
  const sheet = made(scroll, "div", "", "sheet");
  const body = made(sheet, "div", "", "body");
  let total = 0;
  let order = { column: columns[0], down };
  let at = -1;
  let first = 0;
  let shown = [];

  const heads = columns.map((column) => {
    const cell = made(head, "button", column.name, `cell ${column.kind} ${column.wide || ""}`);
    cell.setAttribute("role", "columnheader");
    cell.addEventListener("click", () => {
      order = { column, down: order.column === column ? !order.down : column.kind === "num" };
      name();
      sorted(column.name, order.down);
    });
    return cell;
  });
  const name = () => heads.forEach((cell, k) => {
    const mine = columns[k] === order.column;
    cell.setAttribute("aria-sort", mine ? (order.down ? "descending" : "ascending") : "none");
  });

  const fill = (rows) => {
    const found = words();
    const elements = rows.map((entry, k) => {
      const line = made(null, "div", "", "row");
      line.setAttribute("role", "row");
      line.setAttribute("aria-rowindex", String(first + k + 1));
      columns.forEach((column, n) => {
        const text = entry.cells[column.at ?? n];
        const cell = made(line, "span", "", `cell ${column.kind} ${column.wide || ""}`);
        cell.setAttribute("role", "cell");
        if (column.isPlace) placed(cell, text, entry.where, found);
        else searched(cell, text, column.kind === "text" ? found : []);
        if (column.kind === "text") cell.title = text;
      });
      if (isChosen(entry) || first + k === at) line.classList.add("chosen");
      line.addEventListener("click", () => { at = first + k; choose(entry); });
      return line;
    });
    body.replaceChildren(...elements);
    box.setAttribute("aria-rowcount", String(total));
  };
  const asked = latest(({ from, count }) => rowsOf(from, count), (rows, { from, shift }) => {
    first = from;
    shown = rows;
    body.style.transform = `translateY(${shift}px)`;
    fill(rows);
  });
  const draw = () => {
    const height = scroll.clientHeight;
    const full = total * ROW;
    const tall = Math.min(full, TALLEST);
    sheet.style.height = `${tall}px`;
    const room = Math.max(tall - height, 1);
    const share = Math.min(scroll.scrollTop / room, 1);
    const top = full <= TALLEST ? scroll.scrollTop : share * (full - height);
    const from = Math.max(0, Math.floor(top / ROW));
    const count = Math.min(Math.ceil(height / ROW) + 1, total - from);
    asked({ from, count: Math.max(count, 0), shift: scroll.scrollTop - (top - from * ROW) }).catch(() => {});
  };

  const go = (to) => {
    at = Math.min(Math.max(to, 0), total - 1);
    const full = total * ROW;
    const height = scroll.clientHeight;
    const scale = full <= TALLEST ? 1 : (TALLEST - height) / (full - height);
    const [low, high] = [((at + 1) * ROW - height) * scale, at * ROW * scale];
    if (scroll.scrollTop < low) scroll.scrollTop = low;
    if (scroll.scrollTop > high) scroll.scrollTop = high;
    draw();
  };
  scroll.addEventListener("keydown", async (event) => {
    const page = Math.floor(scroll.clientHeight / ROW) - 1;
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page }[event.key];
    if (by) { event.preventDefault(); go((at < 0 ? first : at) + by); }
    if (event.key === "Home") { event.preventDefault(); go(0); }
    if (event.key === "End") { event.preventDefault(); go(total - 1); }
    if (event.key !== "Enter" || at < 0) return;
    const [entry] = await rowsOf(at, 1).catch(() => []);
    if (entry) choose(entry);
  });
  const soon = perFrame(draw);
  scroll.addEventListener("scroll", soon);
  new ResizeObserver(soon).observe(scroll);
  name();
  return {
    draw: () => { fill(shown); soon(); },
    show: (found) => { total = found; at = -1; scroll.scrollTop = 0; soon(); },
    // Scrolls to a row, into the middle where it is not in sight.
    reveal: (row) => {
      const [top, height] = [row * ROW, scroll.clientHeight];
      const full = total * ROW;
      const scale = full <= TALLEST ? 1 : (TALLEST - height) / (full - height);
      if (scroll.scrollTop > top * scale || scroll.scrollTop + height < (top + ROW) * scale) {
        // The sheet may not be as tall as the rows yet.
        sheet.style.height = `${Math.min(full, TALLEST)}px`;
        scroll.scrollTop = (top - height / 2) * scale;
      }
      soon();
    },
    order: () => order,
  };
};
