// SPDX-License-Identifier: Apache-2.0
// A table of any length: only the rows in sight are elements.

import { made, perFrame } from "./dom.js";

const ROW = 26;
// Browsers end an element at some 33 million pixels; longer tables scroll in larger steps.
const TALLEST = 8e6;

// `columns`: name, text(row), number(row) to sort by, kind "num" or "text", wide.
export const table = (box, { columns, label, choose, isChosen }) => {
  box.setAttribute("role", "table");
  box.setAttribute("aria-label", label);
  const head = made(box, "div", "", "row head");
  head.setAttribute("role", "row");
  const scroll = made(box, "div", "", "scroll");
  scroll.tabIndex = 0;
  const sheet = made(scroll, "div", "", "sheet");
  const body = made(sheet, "div", "", "body");
  let rows = new Uint32Array(0);
  let order = { column: null, down: true };
  let at = -1;
  let first = 0;

  const heads = columns.map((column) => {
    const cell = made(head, "button", column.name, `cell ${column.kind} ${column.wide || ""}`);
    cell.setAttribute("role", "columnheader");
    cell.addEventListener("click", () => {
      order = { column, down: order.column === column ? !order.down : column.kind === "num" };
      sort();
    });
    return cell;
  });

  const sort = () => {
    const { column, down } = order;
    heads.forEach((cell, k) => {
      const mine = columns[k] === column;
      cell.setAttribute("aria-sort", mine ? (down ? "descending" : "ascending") : "none");
    });
    if (column) {
      const keys = new Float64Array(rows.length);
      if (column.rank) column.rank(rows, keys); else rows.forEach((row, k) => { keys[k] = column.number(row); });
      const places = Uint32Array.from(rows.keys());
      places.sort(down ? (a, b) => keys[b] - keys[a] || a - b : (a, b) => keys[a] - keys[b] || a - b);
      rows = places.map((place) => rows[place]);
    }
    at = -1;
    scroll.scrollTop = 0;
    draw();
  };

  const draw = () => {
    const height = scroll.clientHeight;
    const full = rows.length * ROW;
    const tall = Math.min(full, TALLEST);
    sheet.style.height = `${tall}px`;
    const shown = Math.ceil(height / ROW) + 1;
    const room = Math.max(tall - height, 1);
    const share = Math.min(scroll.scrollTop / room, 1);
    const top = full <= TALLEST ? scroll.scrollTop : share * (full - height);
    first = Math.max(0, Math.floor(top / ROW));
    body.style.transform = `translateY(${scroll.scrollTop - (top - first * ROW)}px)`;
    const elements = [];
    for (let k = first; k < Math.min(first + shown, rows.length); k++) {
      const line = made(null, "div", "", "row");
      line.setAttribute("role", "row");
      line.setAttribute("aria-rowindex", String(k + 1));
      for (const column of columns) {
        const cell = made(line, "span", column.text(rows[k]), `cell ${column.kind} ${column.wide || ""}`);
        cell.setAttribute("role", "cell");
        if (column.kind === "text") cell.title = cell.textContent;
      }
      if (isChosen(rows[k]) || k === at) line.classList.add("chosen");
      line.addEventListener("click", () => { at = k; choose(rows[k]); });
      elements.push(line);
    }
    body.replaceChildren(...elements);
    box.setAttribute("aria-rowcount", String(rows.length));
  };

  const go = (to) => {
    at = Math.min(Math.max(to, 0), rows.length - 1);
    const full = rows.length * ROW;
    const height = scroll.clientHeight;
    const scale = full <= TALLEST ? 1 : (TALLEST - height) / (full - height);
    const [low, high] = [((at + 1) * ROW - height) * scale, at * ROW * scale];
    if (scroll.scrollTop < low) scroll.scrollTop = low;
    if (scroll.scrollTop > high) scroll.scrollTop = high;
    draw();
  };
  scroll.addEventListener("keydown", (event) => {
    const page = Math.floor(scroll.clientHeight / ROW) - 1;
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page }[event.key];
    if (by) { event.preventDefault(); go((at < 0 ? first : at) + by); }
    if (event.key === "Home") { event.preventDefault(); go(0); }
    if (event.key === "End") { event.preventDefault(); go(rows.length - 1); }
    if (event.key === "Enter" && at >= 0) choose(rows[at]);
  });
  const soon = perFrame(draw);
  scroll.addEventListener("scroll", soon);
  new ResizeObserver(soon).observe(scroll);
  return {
    draw: soon,
    show: (found) => { rows = found; sort(); },
    order: (name, down) => { order = { column: columns.find((c) => c.name === name) || null, down }; },
  };
};
