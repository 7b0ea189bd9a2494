// SPDX-License-Identifier: Apache-2.0
// What is over the chart: cursor, selected range, and the blocks that are pinned or
// pointed at. They are elements of their own, so that moving them draws nothing else.

import { made } from "./dom.js";

export const marks = (app, box) => {
  const sheet = made(box, "div", "", "marks");
  const range = made(sheet, "div", "", "range");
  const hovered = made(sheet, "div", "", "mark thin");
  const pinned = made(sheet, "div", "", "mark");
  const cursor = made(sheet, "div", "", "cursor");

  const put = (element, left, top, width, height) => {
    const { style } = element;
    style.transform = `translate(${left}px,${top}px)`;
    if (width !== null) style.width = `${width}px`;
    if (height !== null) style.height = `${height}px`;
    element.hidden = false;
  };

  return (g) => {
    const { view, state } = app;
    if (!app.axis) { sheet.hidden = true; return; }
    const bottom = g.mapTop + g.mapHeight;
    put(sheet, g.left, g.stripTop, g.plotWidth, bottom - g.stripTop);
    const toX = (at) => ((at - view.x0) / (view.x1 - view.x0)) * g.plotWidth;
    const ky = g.mapHeight / (view.y1 - view.y0);
    const toY = (y) => bottom - g.stripTop - (y - view.y0) * ky;
    const far = (at) => Math.min(Math.max(at, -1e4), 1e5);
    range.hidden = !state.range;
    if (state.range) {
      const [a, b] = state.range.map(toX).map(far);
      put(range, a, 0, Math.max(b - a, 1), bottom - g.stripTop);
    }
    for (const [element, block] of [[pinned, app.pinned], [hovered, app.hovered]]) {
      element.hidden = !block || block.y < 0;
      if (element.hidden) continue;
      const [l, r] = [far(toX(block.x0)), far(toX(block.x1))];
      const [t, b] = [far(toY(block.y + block.size)), far(toY(block.y))];
      element.hidden = b < toY(view.y1) || t > toY(view.y0);
      if (!element.hidden) put(element, l - 2, t - 2, Math.max(r - l, 1) + 4, Math.max(b - t, 1) + 4);
    }
    cursor.classList.toggle("frozen", state.held);
    if (app.moment) put(cursor, Math.round(far(toX(app.moment.x))), 0, null, bottom - g.stripTop);
  };
};
