// SPDX-License-Identifier: Apache-2.0
// The first tab: chart, tooltip, and what mouse, fingers and keys do to it.

import { clampView, zoomed } from "./axis.js";
import { drawChart, geometry } from "./chart.js";
import { byId, made, perFrame } from "./dom.js";
import { twoFingers } from "./gestures.js";
import { marks } from "./marks.js";
import { blockAt, placeName, segmentAt } from "./model.js";
import { coarseAt } from "./raster.js";
import { bytes } from "./units.js";

// Milliseconds without a movement after which the picture is drawn sharp.
const REST = 160;

// Microseconds, or events, that a view shows at least.
const FINEST = 2;

export const overview = (app) => {
  const box = byId("chart");
  const base = byId("base");
  const mark = marks(app, box);
  const tip = byId("tip");
  let g = geometry(600, 400);
  let resting = 0;

  const size = () => {
    const width = box.clientWidth;
    const room = window.innerHeight - box.getBoundingClientRect().top - window.scrollY - 16;
    const height = Math.round(Math.min(Math.max(room, width < 560 ? 400 : 470), 900));
    box.style.height = `${height}px`;
    g = geometry(width, height);
  };

  const draw = () => {
    if (app.state.tab !== "overview" || !box.clientWidth) return;
    const start = performance.now();
    drawChart(app, base, g);
    mark(g);
    app.redraws.push(performance.now() - start);
    if (app.redraws.length > 500) app.redraws.shift();
  };
  const soon = perFrame(draw);
  const overSoon = perFrame(() => mark(g));

  const spots = (event) => {
    const frame = box.getBoundingClientRect();
    const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
    const { view } = app;
    return {
      px, py,
      x: view.x0 + ((px - g.left) / g.plotWidth) * (view.x1 - view.x0),
      y: view.y0 + ((g.mapTop + g.mapHeight - py) / g.mapHeight) * (view.y1 - view.y0),
      inside: px >= g.left && px <= g.left + g.plotWidth,
      inMap: py >= g.mapTop && py <= g.mapTop + g.mapHeight,
      inStrip: py >= g.stripTop && py < g.mapTop,
    };
  };

  const look = (x0, x1, y0 = app.view.y0, y1 = app.view.y1) => {
    const { axis, m } = app;
    // Times are whole microseconds, and events are counted: closer there is nothing to see.
    const finest = Math.max((axis.high - axis.low) / Math.max(m.n * 4, 1e5), FINEST);
    [app.view.x0, app.view.x1] = clampView(x0, x1, axis.low, axis.high, finest);
    [app.view.y0, app.view.y1] = clampView(y0, y1, 0, m.height, Math.min(4096, m.height));
    app.moved();
    app.moving = true;
    clearTimeout(resting);
    resting = setTimeout(() => { app.moving = false; soon(); }, REST);
    soon();
  };

  const zoomTime = (factor, at = (app.view.x0 + app.view.x1) / 2) => {
    look(...zoomed([app.view.x0, app.view.x1], factor, at));
  };
  const zoomAddress = (factor, at = (app.view.y0 + app.view.y1) / 2) => {
    look(app.view.x0, app.view.x1, ...zoomed([app.view.y0, app.view.y1], factor, at));
  };
  const pan = (dx, dy) => {
    const [wx, wy] = [app.view.x1 - app.view.x0, app.view.y1 - app.view.y0];
    look(app.view.x0 + dx * wx, app.view.x1 + dx * wx, app.view.y0 + dy * wy, app.view.y1 + dy * wy);
  };
  const whole = () => look(app.axis.low, app.axis.high, 0, app.m.height);

  box.addEventListener("wheel", (event) => {
    const at = spots(event);
    if (!at.inside) return;
    event.preventDefault();
    const by = event.deltaY * (event.deltaMode === 1 ? 16 : 1);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && !event.shiftKey) {
      pan(event.deltaX / g.plotWidth, 0);
    } else if (event.shiftKey) {
      zoomAddress(Math.exp(-(by || event.deltaX) / 400), at.y);
    } else zoomTime(Math.exp(-by / 400), at.x);
  }, { passive: false });

  const tell = (at, row) => {
    const { m } = app;
    tip.replaceChildren();
    if (row < 0) {
      const event = app.axis.eventAt(at.x);
      const segment = at.inMap ? segmentAt(m, event, at.y) : -1;
      if (segment < 0) { tip.hidden = true; return; }
      const used = coarseAt(m, app.axis, at.x, at.y);
      made(tip, "b", used ? "in use by blocks not kept one by one, or free" : "free");
      made(tip, "span", ` in a segment of ${bytes(m.segments.size[segment])}`);
    } else {
      made(tip, "b", bytes(m.size[row]));
      if (m.category) made(tip, "span", ` ${m.meta.categories[m.category[row]]}`);
      made(tip, "div", placeName(m, m.stackPlace[m.stack[row]]));
      made(tip, "div", app.lifeWords(row), "muted");
    }
    tip.hidden = false;
    const [w, h] = [tip.offsetWidth, tip.offsetHeight];
    tip.style.left = `${Math.max(4, Math.min(at.px + 14, box.clientWidth - w - 4))}px`;
    tip.style.top = `${at.py + h + 24 > box.clientHeight ? at.py - h - 10 : at.py + 16}px`;
  };

  const bottom = () => g.mapTop + g.mapHeight;
  const fingers = twoFingers(spots, () => ({
    left: g.left, width: g.plotWidth, bottom: bottom(), height: g.mapHeight, view: app.view,
  }), look);
  // Two fingers are for the chart; one that goes up or down scrolls the page.
  for (const kind of ["touchstart", "touchmove"]) {
    box.addEventListener(kind, (event) => {
      if (event.touches.length > 1 && event.cancelable) event.preventDefault();
    }, { passive: false });
  }

  let held = null;
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const at = spots(event);
    if (!at.inside) return;
    fingers.down(event);
    if (fingers.active()) { held = null; tip.hidden = true; return; }
    const brush = at.inStrip || event.shiftKey;
    held = { ...at, brush, moved: false, view: { ...app.view } };
  });
  box.addEventListener("pointermove", (event) => {
    fingers.move(event);
    if (fingers.active()) return;
    const at = spots(event);
    if (held) {
      const [dx, dy] = [at.px - held.px, at.py - held.py];
      if (!held.moved && Math.hypot(dx, dy) < 4) return;
      if (!held.moved) box.setPointerCapture(event.pointerId);
      held.moved = true;
      tip.hidden = true;
      if (held.brush) {
        const clamp = (x) => Math.min(Math.max(x, app.axis.low), app.axis.high);
        app.set({ range: [Math.min(held.x, at.x), Math.max(held.x, at.x)].map(clamp) });
        overSoon();
      } else {
        const { view } = held;
        const sx = (dx / g.plotWidth) * (view.x1 - view.x0);
        const sy = (dy / g.mapHeight) * (view.y1 - view.y0);
        look(view.x0 - sx, view.x1 - sx, view.y0 + sy, view.y1 + sy);
      }
      return;
    }
    if (!at.inside || !(at.inMap || at.inStrip)) { leave(); return; }
    const index = app.axis.eventAt(at.x);
    const row = at.inMap ? blockAt(app.m, index, at.y) : -1;
    app.hovered = row;
    if (app.state.pin < 0 && !app.state.held) app.set({ event: index }, true);
    tell(at, row);
    overSoon();
  });
  const leave = () => {
    tip.hidden = true;
    if (app.hovered >= 0) { app.hovered = -1; overSoon(); app.set({}, true); }
  };
  box.addEventListener("pointerleave", leave);
  const lift = (event) => { fingers.up(event); };
  window.addEventListener("pointerup", lift);
  window.addEventListener("pointercancel", (event) => { lift(event); held = null; });
  box.addEventListener("pointerup", (event) => {
    const clicked = held && !held.moved;
    held = null;
    if (!clicked) return;
    const at = spots(event);
    const index = app.axis.eventAt(at.x);
    const row = at.inMap ? blockAt(app.m, index, at.y) : -1;
    app.set({ event: index, pin: row, held: row < 0 && !app.state.held, range: null });
    overSoon();
  });
  box.addEventListener("dblclick", whole);

  const keys = {
    "+": () => zoomTime(1.5, app.cursorX()), "=": () => zoomTime(1.5, app.cursorX()),
    "-": () => zoomTime(1 / 1.5, app.cursorX()), "0": whole,
    ArrowLeft: (event) => (event.shiftKey ? pan(-0.1, 0) : app.step(-1)),
    ArrowRight: (event) => (event.shiftKey ? pan(0.1, 0) : app.step(1)),
    ArrowUp: (event) => (event.shiftKey ? zoomAddress(1.5) : pan(0, 0.1)),
    ArrowDown: (event) => (event.shiftKey ? zoomAddress(1 / 1.5) : pan(0, -0.1)),
  };
  box.addEventListener("keydown", (event) => {
    const work = keys[event.key];
    if (!work || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    work(event);
    overSoon();
  });
  const turns = {
    in: () => zoomTime(1.6), out: () => zoomTime(1 / 1.6), whole,
    range: () => app.state.range && look(...app.state.range),
  };
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => turns[button.dataset.zoom]());
  }
  new ResizeObserver(() => { size(); soon(); }).observe(byId("overview"));
  size();
  return {
    draw: () => { size(); soon(); }, now: () => { size(); draw(); }, over: overSoon, look,
  };
};
