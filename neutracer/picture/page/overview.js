// SPDX-License-Identifier: Apache-2.0
// The first tab: chart, tooltip, and what mouse, fingers and keys do to it.

import { clampView, wholeView, zoomed } from "./axis.js";
import { drawChart, geometry } from "./chart.js";
import { latest } from "./client.js";
import { byId, made, perFrame, placed } from "./dom.js";
import { twoFingers } from "./gestures.js";
import { marks } from "./marks.js";
import { mostOf, paintMap, paintStrip, stackOrder } from "./strip.js";
import { bytes, many } from "./units.js";

// Frames of a stack in a tooltip.
const FRAMES = 6;

// Positions that a view shows at least.
const FINEST = 2;

const NONE = 0xffffffff;

export const overview = (app) => {
  const box = byId("chart");
  const base = byId("base");
  const mark = marks(app, box);
  const tip = byId("tip");
  app.stripCanvas = document.createElement("canvas");
  app.mapCanvas = document.createElement("canvas");
  let g = geometry(600, 400, 0, false);

  const size = () => {
    const width = box.clientWidth;
    const room = window.innerHeight - box.getBoundingClientRect().top - window.scrollY - 16;
    const height = Math.round(Math.min(Math.max(room, width < 560 ? 400 : 350), 900));
    box.style.height = `${height}px`;
    g = geometry(width, height, app.axis ? app.axis.lanes.lanes.length : 0, app.ooms?.length > 0);
    box.dataset.map = [g.left, g.mapTop, g.plotWidth, g.mapHeight].join();
  };

  const draw = () => {
    if (app.state.tab !== "overview" || !box.clientWidth || !app.trace || !app.axis) return;
    const start = performance.now();
    drawChart(app, base, g);
    mark(g);
    app.redraws.push(performance.now() - start);
    if (app.redraws.length > 500) app.redraws.shift();
  };
  const soon = perFrame(draw);
  const overSoon = perFrame(() => mark(g));

  const paint = () => {
    const { shot, colours, bands } = app;
    if (!shot) return;
    const scale = Math.min(window.devicePixelRatio || 1, 2);
    shot.top = mostOf(shot) * 1.04;
    paintStrip(app.stripCanvas, shot, Math.round(g.stripHeight * scale), shot.top, colours, bands);
    if (shot.pixels) paintMap(app.mapCanvas, shot, colours, bands);
  };
  // Pictures of the range on the screen; while one is made, only the last range waits. The
  // buffers of the picture before the last are filled again: they would pile up otherwise.
  let spare = [];
  const picture = latest(
    ({ ask: from, ...wanted }) => {
      const handed = spare;
      spare = [];
      return from("draw", { ...wanted, spare: handed }, handed).catch((error) => {
        // What belongs to another file by now is no matter.
        if (wanted.serial === app.serial) throw error;
        return null;
      });
    },
    (shot, wanted) => {
      if (!shot || wanted.serial !== app.serial) return;
      spare = Object.values(app.shot ?? {}).filter(ArrayBuffer.isView).map(({ buffer }) => buffer);
      app.shot = shot;
      app.exact.push(performance.now() - wanted.asked);
      if (app.exact.length > 500) app.exact.shift();
      paint();
      soon();
      if (app.onShot) app.onShot();
    });
  const ask = () => {
    if (!app.axis || !box.clientWidth) return;
    const { view, axis } = app;
    const scale = Math.min(window.devicePixelRatio || 1, 2);
    const [x0, x1] = wholeView(view.x0, view.x1, axis.width);
    const [y0, y1] = wholeView(view.y0, view.y1, axis.height);
    const width = Math.min(Math.round(g.plotWidth * scale), 8192);
    const height = app.trace.segments ? Math.min(Math.round(g.mapHeight * scale), 8192) : 0;
    const same = app.shot && app.shotSerial === app.serial && [x0, x1, y0, y1, width, height].join() === app.shotKey;
    if (same) return;
    app.shotKey = [x0, x1, y0, y1, width, height].join();
    app.shotSerial = app.serial;
    picture({ x0, x1, y0, y1, width, height, serial: app.serial, asked: performance.now(), ask: app.files[app.fileIndex].ask }).catch(app.complain);
  };

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
      inLanes: py >= g.laneTop && py < g.mapTop,
      inStrip: py >= g.stripTop && py < g.laneTop,
    };
  };
  // The block at a pixel of the picture, and whether anything is reserved there.
  const hit = (at) => {
    const { shot } = app;
    if (!shot || !shot.rows || !at.inMap) return { row: -1, code: 0 };
    const column = Math.floor(((at.x - shot.x0) / (shot.x1 - shot.x0)) * shot.width);
    const line = Math.floor(((at.y - shot.y0) / (shot.y1 - shot.y0)) * shot.height);
    if (column < 0 || column >= shot.width || line < 0 || line >= shot.height) return { row: -1, code: 0 };
    const row = shot.rows[line * shot.width + column];
    return { row: row === NONE ? -1 : row, code: shot.pixels[(shot.height - 1 - line) * shot.width + column] };
  };

  const look = (x0, x1, y0 = app.view.y0, y1 = app.view.y1) => {
    const { axis } = app;
    if (!axis) return;
    const finest = Math.min(FINEST, axis.width);
    [app.view.x0, app.view.x1] = clampView(x0, x1, 0, axis.width, finest);
    [app.view.y0, app.view.y1] = clampView(y0, y1, 0, axis.height, Math.min(4096, axis.height));
    app.moved();
    ask();
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
  const whole = () => app.axis && look(0, app.axis.width, 0, app.axis.height);

  box.addEventListener("wheel", (event) => {
    const at = spots(event);
    if (!at.inside || !app.axis) return;
    event.preventDefault();
    const by = event.deltaY * (event.deltaMode === 1 ? 16 : 1);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && !event.shiftKey) {
      pan(event.deltaX / g.plotWidth, 0);
    } else if (event.shiftKey) {
      zoomAddress(Math.exp(-(by || event.deltaX) / 400), at.y);
    } else zoomTime(Math.exp(-by / 400), at.x);
  }, { passive: false });

  const tell = (at, fill) => {
    tip.replaceChildren();
    fill();
    tip.hidden = false;
    const [w, h] = [tip.offsetWidth, tip.offsetHeight];
    tip.style.left = `${Math.max(4, Math.min(at.px + 14, box.clientWidth - w - 4))}px`;
    tip.style.top = `${at.py + h + 24 > box.clientHeight ? at.py - h - 10 : at.py + 16}px`;
  };
  const tellBlock = (at, block) => tell(at, () => {
    made(tip, "b", bytes(block.size));
    if (app.trace.isKnown) made(tip, "span", ` ${block.category.replaceAll("_", " ")}`);
    placed(made(tip, "div"), block.place, block.where);
    made(tip, "div", app.lifeWords(block), "muted");
    if (block.metadata) made(tip, "div", block.metadata);
  });
  // The band of the timeline at a point, and the event of its column; null above the bands.
  const bandAt = (at) => {
    const { shot, bands } = app;
    if (!shot?.sums || !at.inStrip || !at.inside) return null;
    const column = Math.floor(((at.x - shot.x0) / (shot.x1 - shot.x0)) * shot.width);
    if (column < 0 || column >= shot.width) return null;
    const level = ((g.stripTop + g.stripHeight - at.py) / g.stripHeight) * shot.top;
    let held = 0;
    for (const band of level < 0 ? [] : stackOrder(bands)) {
      held += shot.sums[column * (bands.length + 1) + band];
      if (level < held) return bands[band] ? { band, event: shot.events[column] } : null;
    }
    return null;
  };
  const tellBand = (at, { band, found }) => tell(at, () => {
    const { name, where } = app.bands[band];
    placed(made(tip, "b"), name, where);
    made(tip, "div", `${bytes(found.bytes)} in ${many(found.count, "block")}`);
    for (const [fn, file, line] of found.frames.slice(0, FRAMES)) {
      const base = file.slice(Math.max(file.lastIndexOf("/"), file.lastIndexOf("\\")) + 1);
      placed(made(tip, "div", "", "muted"), `${fn} ${base}:${line}`, `${base}:${line}`);
    }
    const more = found.frames.length - FRAMES;
    if (more > 0) made(tip, "div", `and ${many(more, "frame")} more`, "muted");
    if (found.stacks > 1) made(tip, "div", `the largest of ${many(found.stacks, "stack")}`, "muted");
  });
  let banded = null;
  const band = latest(({ band: number, event }) => app.ask("band", { band: number, event }), (found, wanted) => {
    if (!banded || banded.key !== wanted.key) return;
    banded.found = found;
    tellBand(banded.at, banded);
  });
  const followBand = (at, wanted) => {
    const key = `${app.serial} ${wanted.band} ${wanted.event}`;
    if (banded?.key === key) {
      banded.at = at;
      if (banded.found) tellBand(at, banded);
      return;
    }
    banded = { ...wanted, key, at, found: null };
    band(banded).catch(app.complain);
  };
  const tellLane = (at) => {
    const lane = app.axis.lanes.lanes[Math.floor((at.py - g.laneTop) / g.laneHeight)];
    const range = lane?.ranges.find(({ x0, x1 }) => x0 <= at.x && at.x <= x1);
    if (!range) { tip.hidden = true; return; }
    tell(at, () => { made(tip, "b", range.name); made(tip, "div", lane.kind, "muted"); });
  };

  // The block under the pointer: asked for when it is another one.
  let pointed = null;
  const block = latest((at) => app.ask("block", { row: at.row }), (found, at) => {
    if (!pointed || pointed.row !== at.row || !found) return;
    app.hovered = found;
    tellBlock(pointed, found);
    overSoon();
    app.render();
  });

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
    if (event.button !== 0 || !app.axis) return;
    const at = spots(event);
    if (!at.inside) return;
    fingers.down(event);
    if (fingers.active()) { held = null; tip.hidden = true; return; }
    const brush = at.inStrip || at.inLanes || event.shiftKey;
    held = { ...at, brush, moved: false, view: { ...app.view } };
  });
  box.addEventListener("pointermove", (event) => {
    if (!app.axis) return;
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
        const clamp = (x) => Math.min(Math.max(x, 0), app.axis.width);
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
    if (!at.inside || at.py < g.stripTop || at.py > bottom()) { leave(); return; }
    if (!app.state.held) app.follow(at.x);
    const { row, code } = hit(at);
    pointed = { ...at, row };
    if (row >= 0) {
      banded = null;
      if (app.hovered?.row === row) tellBlock(at, app.hovered);
      else block({ row }).catch(app.complain);
      return;
    }
    if (app.hovered) { app.hovered = null; overSoon(); app.render(); }
    const wanted = bandAt(at);
    if (!wanted) banded = null;
    if (wanted) followBand(at, wanted);
    else if (at.inLanes) tellLane(at);
    else if (code === 1) tell(at, () => made(tip, "b", "reserved, free"));
    else tip.hidden = true;
  });
  const leave = () => {
    tip.hidden = true;
    pointed = banded = null;
    if (app.hovered) { app.hovered = null; overSoon(); app.render(); }
  };
  box.addEventListener("pointerleave", leave);
  const lift = (event) => { fingers.up(event); };
  window.addEventListener("pointerup", lift);
  window.addEventListener("pointercancel", (event) => { lift(event); held = null; });
  box.addEventListener("pointerup", async (event) => {
    const clicked = held && !held.moved;
    held = null;
    if (!clicked) return;
    const at = spots(event);
    const { row } = hit(at);
    const found = await app.ask("at", { x: Math.floor(at.x) }).catch(app.complain);
    if (!found) return;
    // On empty ground a click frees a frozen cursor; on the timeline it freezes one.
    const freezes = row >= 0 || ((at.inStrip || at.inLanes) && !app.state.held);
    app.set({ event: found.event, pin: row, held: freezes, range: null });
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
    Enter: () => app.set({ held: !app.state.held, pin: -1 }),
  };
  const key = (event) => {
    const work = keys[event.key];
    if (!work || !app.axis || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    work(event);
    overSoon();
  };
  box.addEventListener("keydown", key);
  const turns = {
    in: () => zoomTime(1.6), out: () => zoomTime(1 / 1.6), whole,
    range: () => app.state.range && look(...app.state.range),
  };
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => turns[button.dataset.zoom]());
  }
  const fit = () => { size(); ask(); paint(); soon(); };
  new ResizeObserver(fit).observe(byId("overview"));
  size();
  return { draw: fit, now: () => { size(); ask(); paint(); draw(); }, over: overSoon, look, key, isBusy: picture.isBusy };
};
