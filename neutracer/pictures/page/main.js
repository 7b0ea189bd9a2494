// SPDX-License-Identifier: Apache-2.0
// The page: decodes its payload, keeps its state, and draws the tab that is shown.

import { makeAxis } from "./axis.js";
import { decode } from "./decode.js";
import { byId, palette, perFrame } from "./dom.js";
import { compile, parse } from "./filter.js";
import { flame } from "./flame.js";
import { drawLegend } from "./legend.js";
import { allocationSubject, lifetime, lists } from "./lists.js";
import { colourTable, prepareMap } from "./map.js";
import { build, eventNumber, group, place } from "./model.js";
import { overview } from "./overview.js";
import { drawPanel } from "./panel.js";
import { DIM, classes } from "./raster.js";
import { segments } from "./segments.js";
import { read, write } from "./state.js";
import { count, duration, many, share } from "./units.js";

const tabs = [...document.querySelectorAll("[role=tab]")];

// The payloads, one a device, in the order of the devices.
const holders = [...document.querySelectorAll("script[data-device]")];
const devices = holders.map((holder) => Number(holder.dataset.device));

const phone = () => window.innerWidth < 560;

// The event that a page opens on: the peak, or where nothing was ever allocated, the last.
const opening = (m) => (m.meta.peak_event < 0 && !m.startAllocated ? m.n - 1 : Math.max(m.meta.peak_event, -1));

// What is reckoned from the data of one device: axis, classes, groups, and the first state.
const prepare = (app) => {
  const { m } = app;
  const first = {
    x0: 0, x1: 0, y0: 0, y1: 0, axis: m.isTimed ? "time" : "event", stacking: "stacks", device: devices[0],
  };
  app.first = first;
  app.replace = () => {
    place(m, app.state.raw);
    app.axis = makeAxis(m, app.state.axis);
    Object.assign(first, { x0: app.axis.low, x1: app.axis.high, y0: 0, y1: m.height });
    Object.assign(app.view, { x0: first.x0, x1: first.x1, y0: 0, y1: m.height });
  };
  app.sizes = classes(m);
  app.hovered = -1;
  app.start = {
    event: opening(m), pin: -1, held: false, range: null, query: "",
    axis: first.axis, stacking: "stacks", raw: false,
  };
  Object.assign(app.state, app.start);
  group(m, "stacks");
  app.replace();
  app.refilter();
};

// Words and places that the parts ask for.
const words = (app) => {
  const { m } = app;
  app.cursorX = () => app.axis.edges[app.state.event + 1];
  app.lifeWords = (row) => {
    if (m.freed[row] === -1) return m.made[row] < 0 ? "from before the trace to the end" : "kept to the end";
    if (m.made[row] < 0) return "from before the trace";
    const passed = many(eventNumber(m, m.freed[row]) - eventNumber(m, m.made[row]), "event");
    const long = lifetime(m, row);
    return Number.isFinite(long) ? `${duration(long)} (${passed})` : passed;
  };
  app.momentWords = () => {
    const { event } = app.state;
    if (event < 0) return m.n ? "before the first event" : "when the snapshot was taken";
    const peak = event === m.meta.peak_event ? ", the peak" : "";
    return `after event ${count(eventNumber(m, event))}${m.time ? ` at ${duration(m.time[event])}` : ""}${peak}`;
  };
};

const start = async () => {
  const unpack = async (device, m) => {
    const { meta, columns } = await decode(holders[devices.indexOf(device)].textContent);
    return build(meta, columns, m);
  };
  const app = { redraws: [], view: { x0: 0, x1: 1, y0: 0, y1: 1 } };
  app.state = { tab: "overview", device: devices[0], legend: !phone() };
  app.m = await unpack(devices[0]);
  const { m } = app;
  const parts = {};

  app.recolour = () => {
    app.colours = palette();
    app.lut = colourTable(app.colours);
  };
  app.refilter = () => {
    const parsed = parse(app.state.query);
    app.kinds = app.sizes;
    if (!parsed.terms.length) return;
    const test = compile(parsed, allocationSubject(m));
    app.kinds = { ...app.sizes, of: app.sizes.of.map((value, row) => (test(row) ? value : DIM)) };
  };
  const remember = () => {
    // Inside of another page it has no address of its own.
    if (location.protocol === "about:") return;
    const text = write(app.state, app.view, app.first);
    if (location.hash.slice(1) !== text) history.replaceState(null, "", text ? `#${text}` : location.pathname);
  };
  let later = 0;
  app.moved = () => { clearTimeout(later); later = setTimeout(remember, 150); };

  const speed = () => {
    const sorted = [...app.redraws].sort((a, b) => a - b);
    byId("speed").textContent = sorted.length
      ? `${count(sorted.length)} redraws, half within ${sorted[sorted.length >> 1].toFixed(1)} ms, `
        + `95 of 100 within ${sorted[Math.floor(sorted.length * 0.95)].toFixed(1)} ms`
      : "nothing drawn yet";
  };
  // What scrolls by itself reaches down to the end of the window.
  const { style } = document.documentElement;
  const tell = (name, element, more) => {
    const value = `${Math.round(element.getBoundingClientRect().top + window.scrollY) + more}px`;
    if (style.getPropertyValue(name) !== value) style.setProperty(name, value);
  };
  const fit = () => {
    tell("--top", byId("main"), 0);
    const scroll = document.querySelector("section:not([hidden]) .scroll");
    if (scroll) tell("--above", scroll, 16);
  };
  const fitSoon = perFrame(fit);
  window.addEventListener("resize", fitSoon);
  const render = perFrame(() => {
    const { tab } = app.state;
    if (tab !== "settings") drawPanel(app);
    document.querySelector("[data-zoom=range]").disabled = !app.state.range;
    for (const text of document.querySelectorAll(".moment")) text.textContent = app.momentWords();
    if (tab === "segments" || tab === "stacks") parts[tab].draw();
    if (tab === "allocations" || tab === "events") parts.lists.draw(tab);
    if (tab === "overview") parts.overview.over();
    if (tab === "settings") speed();
    fitSoon();
  });
  app.render = render;

  // What shows the state apart from the tab's own part.
  app.show = () => {
    const { state } = app;
    for (const tab of tabs) {
      const mine = tab.dataset.tab === state.tab;
      tab.setAttribute("aria-selected", String(mine));
      tab.tabIndex = mine ? 0 : -1;
      byId(tab.dataset.tab).hidden = !mine;
    }
    press("axis", state.axis);
    press("by", state.stacking);
    byId("raw").checked = state.raw;
    byId("search").value = state.query;
    byId("legend").hidden = !state.legend;
    byId("legend-switch").setAttribute("aria-pressed", String(state.legend));
    byId("panel").hidden = state.tab === "settings";
    for (const part of document.querySelectorAll("[data-of]")) {
      part.hidden = Number(part.dataset.of) !== state.device;
    }
    if (state.legend) drawLegend(app);
    if (state.tab === "overview") parts.overview.draw();
  };

  const shown = ["tab", "axis", "raw", "query", "stacking", "legend", "device"];
  // `quiet`: what follows the pointer and does not belong into a link.
  app.set = (change, quiet = false) => {
    const before = { ...app.state };
    Object.assign(app.state, change);
    const { state } = app;
    if (state.query !== before.query) app.refilter();
    if (state.stacking !== before.stacking) group(m, state.stacking);
    if (state.axis !== before.axis || state.raw !== before.raw) {
      state.range = null;
      app.replace();
    }
    if (shown.some((key) => state[key] !== before[key])) app.show();
    if (!quiet) app.moved();
    render();
  };
  app.step = (by) => app.set({ event: Math.min(Math.max(app.state.event + by, -1), m.n - 1), held: true });
  app.search = (query) => app.set({ query, tab: "allocations" });

  // Another device of the file: everything that was reckoned from the first is made anew.
  app.turnTo = async (device) => {
    if (device === app.state.device || !devices.includes(device)) return;
    await unpack(device, m);
    app.state.device = device;
    prepare(app);
    parts.lists = lists(app);
    settle(app);
    app.show();
    app.moved();
    render();
  };

  const restore = async () => {
    const found = read(location.hash, Infinity, Infinity);
    await app.turnTo(found.device ?? devices[0]);
    const inside = read(location.hash, m.n, m.rows);
    // What a link does not say is as it was at first.
    const change = { ...app.start, tab: "overview" };
    for (const key of ["tab", "event", "pin", "query", "axis"]) if (inside[key] !== null) change[key] = inside[key];
    if (m.category && inside.stacking) change.stacking = inside.stacking;
    if (inside.event !== null) change.held = true;
    app.set({ ...change, raw: inside.raw }, true);
    app.set({ range: inside.range }, true);
    const { x0, x1, y0, y1 } = app.first;
    const { view } = app;
    const isWhole = view.x0 === x0 && view.x1 === x1 && view.y0 === y0 && view.y1 === y1;
    if (inside.x || inside.y) parts.overview.look(...(inside.x || [x0, x1]), ...(inside.y || [y0, y1]));
    else if (!isWhole) parts.overview.look(x0, x1, y0, y1);
    if (!location.hash && m.meta.focus) {
      const [from, to] = m.meta.focus.map((event) => app.axis.edges[event + 1]);
      parts.overview.look(from, to, y0, y1);
    }
  };

  words(app);
  app.recolour();
  prepare(app);
  Object.assign(parts, { overview: overview(app), segments: segments(app), stacks: flame(app), lists: lists(app) });
  wire(app);
  settle(app);
  app.drawNow = parts.overview.now;
  await restore();
  app.show();
  window.addEventListener("hashchange", restore);
  parts.overview.now();
  // What only makes it quicker comes after what is seen.
  setTimeout(() => {
    prepareMap(app);
    document.documentElement.dataset.ready = "1";
  }, 0);
};

const press = (name, value) => {
  for (const button of document.querySelectorAll(`[data-${name}]`)) {
    button.setAttribute("aria-pressed", String(button.dataset[name] === value));
  }
};

// What depends on the device that is shown.
const settle = (app) => {
  const { m } = app;
  document.querySelector("[data-axis=time]").disabled = !m.isTimed;
  const byCategory = document.querySelector("[data-by=categories]");
  byCategory.disabled = !m.category;
  byCategory.title = m.category ? "" : "nothing in the trace says what its blocks are for";
  const chosen = byId("device");
  if (chosen) chosen.value = String(app.state.device);
  const left = m.meta.allocations - m.rows;
  byId("kept").textContent = left > 0
    ? `${count(m.rows)} of ${count(m.meta.allocations)} allocations one by one: those with the most bytes times `
      + `events lived; totals are exact, the others (${share(left / m.meta.allocations)} of all) are in the band `
      + "\"others\" and, in cells, on the map"
    : `all ${many(m.rows, "allocation")} and ${many(m.n, "event")}`;
};

const wire = (app) => {
  const { m } = app;
  for (const tab of tabs) tab.addEventListener("click", () => app.set({ tab: tab.dataset.tab }));
  byId("tabs").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const at = tabs.findIndex((tab) => tab.dataset.tab === app.state.tab);
    const next = tabs[(at + by + tabs.length) % tabs.length];
    app.set({ tab: next.dataset.tab });
    next.focus();
  });
  const search = byId("search");
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => app.set({ query: search.value.trim() }), 120);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    clearTimeout(typing);
    const tab = app.state.tab === "events" ? "events" : "allocations";
    app.set({ query: search.value.trim(), tab });
  });
  for (const button of document.querySelectorAll("[data-axis]")) {
    button.addEventListener("click", () => app.set({ axis: button.dataset.axis }));
  }
  for (const button of document.querySelectorAll("[data-by]")) {
    button.addEventListener("click", () => app.set({ stacking: button.dataset.by }));
  }
  byId("legend-switch").addEventListener("click", () => app.set({ legend: !app.state.legend }));
  byId("device")?.addEventListener("change", (event) => app.turnTo(Number(event.target.value)));
  byId("raw").addEventListener("change", (event) => app.set({ raw: event.target.checked }));
  const repaint = () => { app.recolour(); app.show(); app.render(); };
  byId("theme").addEventListener("change", (event) => {
    document.documentElement.dataset.theme = event.target.value;
    repaint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  // Paper is light, and has no next frame.
  matchMedia("print").addEventListener("change", () => { repaint(); app.drawNow(); });
  for (const finding of document.querySelectorAll("[data-event]")) {
    finding.addEventListener("click", () => {
      const event = Number(finding.dataset.event);
      const at = m.number ? m.number.findIndex((number) => number >= event) : event;
      app.set({ event: Math.min(at < 0 ? m.n - 1 : at, m.n - 1), held: true, pin: -1 });
    });
  }
  // On a phone the words of a finding are cut; a tap shows all of them.
  for (const notes of document.querySelectorAll("article p")) {
    notes.addEventListener("click", () => notes.classList.toggle("full"));
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      app.hovered = -1;
      app.set({ pin: -1, held: false, range: null, query: "" });
      search.blur();
    }
    if (/^(INPUT|SELECT)$/.test(event.target.tagName)) return;
    keys(app, event);
  });
};

const keys = (app, event) => {
  const { m, state } = app;
  const work = {
    "/": () => { event.preventDefault(); byId("search").focus(); },
    p: () => app.set({ event: m.meta.peak_event, held: true, pin: -1 }),
    t: () => m.isTimed && app.set({ axis: state.axis === "time" ? "event" : "time" }),
    s: () => m.category && app.set({ stacking: state.stacking === "stacks" ? "categories" : "stacks" }),
    l: () => app.set({ legend: !state.legend }),
    d: () => app.turnTo(devices[(devices.indexOf(state.device) + 1) % devices.length]),
  }[event.key];
  if (work) work();
  if (/^[1-6]$/.test(event.key)) app.set({ tab: tabs[Number(event.key) - 1].dataset.tab });
};

start().catch((error) => {
  const box = byId("trouble");
  box.hidden = false;
  box.textContent = `This page could not be read: ${error.message}`;
  throw error;
});
