// SPDX-License-Identifier: Apache-2.0
// The page: decodes its payload, keeps its state, and draws the tab that is shown.

import { makeAxis } from "./axis.js";
import { colourTable } from "./chart.js";
import { decode } from "./decode.js";
import { byId, palette, perFrame } from "./dom.js";
import { compile, parse } from "./filter.js";
import { flame } from "./flame.js";
import { allocationSubject, lifetime, lists } from "./lists.js";
import { build, eventNumber, place } from "./model.js";
import { overview } from "./overview.js";
import { drawPanel } from "./panel.js";
import { DIM, classes } from "./raster.js";
import { segments } from "./segments.js";
import { read, write } from "./state.js";
import { count, duration, share } from "./units.js";

const tabs = [...document.querySelectorAll("[role=tab]")];

const start = async () => {
  const holder = byId("payload");
  const { meta, columns } = await decode(holder.textContent);
  holder.remove();
  const m = build(meta, columns);
  const app = { m, hovered: -1, redraws: [], view: { x0: 0, x1: 1, y0: 0, y1: 1 } };
  const kind = m.time ? "time" : "event";
  app.state = {
    tab: "overview", event: Math.max(meta.peak_event, -1), pin: -1, held: false, range: null,
    query: "", axis: kind, raw: false,
  };
  const first = { x0: 0, x1: 0, y0: 0, y1: 0, axis: kind };

  const recolour = () => {
    app.colours = palette();
    app.lut = colourTable(app.colours);
  };
  const replace = () => {
    place(m, app.state.raw);
    app.axis = makeAxis(m, app.state.axis);
    Object.assign(first, { x0: app.axis.low, x1: app.axis.high, y0: 0, y1: m.height });
    Object.assign(app.view, { x0: first.x0, x1: first.x1, y0: 0, y1: m.height });
  };
  const refilter = () => {
    const parsed = parse(app.state.query);
    app.shownClasses = app.sizes.of;
    if (!parsed.terms.length) return;
    const test = compile(parsed, allocationSubject(m));
    app.shownClasses = app.sizes.of.map((value, row) => (test(row) ? value : DIM));
  };

  app.sizes = classes(m);
  recolour();
  replace();
  app.cursorX = () => {
    const { event } = app.state;
    return app.axis.edges[event + 1];
  };
  app.lifeWords = (row) => {
    const events = m.freed[row] === -1 ? "kept to the end" : null;
    if (events) return m.made[row] < 0 ? "from before the trace to the end" : events;
    if (m.made[row] < 0) return "from before the trace";
    const many = eventNumber(m, m.freed[row]) - eventNumber(m, m.made[row]);
    const long = lifetime(m, row);
    return Number.isFinite(long) ? `${duration(long)} (${count(many)} events)` : `${count(many)} events`;
  };
  app.momentWords = () => {
    const { event } = app.state;
    if (event < 0) return "before the first event";
    const peak = event === meta.peak_event ? ", the peak" : "";
    return `after event ${count(eventNumber(m, event))}${m.time ? ` at ${duration(m.time[event])}` : ""}${peak}`;
  };

  const parts = {};
  const remember = () => {
    const text = write(app.state, app.view, first);
    if (location.hash.slice(1) !== text) history.replaceState(null, "", text ? `#${text}` : location.pathname);
  };
  let later = 0;
  app.moved = () => { clearTimeout(later); later = setTimeout(remember, 150); };

  const render = perFrame(() => {
    const { tab } = app.state;
    if (tab !== "settings") drawPanel(app);
    for (const words of document.querySelectorAll(".moment")) words.textContent = app.momentWords();
    if (tab === "segments" || tab === "stacks") parts[tab].draw();
    if (tab === "allocations" || tab === "events") parts.lists.draw(tab);
    if (tab === "overview") parts.overview.over();
    if (tab === "settings") speed();
  });
  const speed = () => {
    const sorted = [...app.redraws].sort((a, b) => a - b);
    byId("speed").textContent = sorted.length
      ? `${count(sorted.length)} redraws, half within ${sorted[sorted.length >> 1].toFixed(1)} ms, `
        + `95 of 100 within ${sorted[Math.floor(sorted.length * 0.95)].toFixed(1)} ms`
      : "nothing drawn yet";
  };

  const show = () => {
    for (const tab of tabs) {
      const mine = tab.dataset.tab === app.state.tab;
      tab.setAttribute("aria-selected", String(mine));
      tab.tabIndex = mine ? 0 : -1;
      byId(tab.dataset.tab).hidden = !mine;
    }
    byId("panel").hidden = app.state.tab === "settings";
    if (app.state.tab === "overview") parts.overview.draw();
  };

  // `quiet`: what follows the pointer and does not belong into a link.
  app.set = (change, quiet = false) => {
    const before = { ...app.state };
    Object.assign(app.state, change);
    if (app.state.tab !== before.tab) show();
    if (app.state.query !== before.query) {
      byId("search").value = app.state.query;
      refilter();
      parts.overview.draw();
    }
    if (app.state.axis !== before.axis || app.state.raw !== before.raw) {
      app.state.range = null;
      replace();
      parts.overview.draw();
      for (const box of document.querySelectorAll("[data-axis]")) {
        box.setAttribute("aria-pressed", String(box.dataset.axis === app.state.axis));
      }
      byId("raw").checked = app.state.raw;
    }
    if (!quiet) app.moved();
    render();
  };
  app.step = (by) => app.set({ event: Math.min(Math.max(app.state.event + by, -1), m.n - 1), held: true });
  app.search = (query) => app.set({ query, tab: "allocations" });

  Object.assign(parts, { overview: overview(app), segments: segments(app), stacks: flame(app), lists: lists(app) });

  const restore = () => {
    const found = read(location.hash, m.n, m.rows);
    const change = {};
    for (const key of ["tab", "event", "pin", "query", "axis"]) if (found[key] !== null) change[key] = found[key];
    if (found.event !== null) change.held = true;
    app.set({ ...change, raw: found.raw }, true);
    app.set({ range: found.range }, true);
    if (found.x || found.y) {
      parts.overview.look(...(found.x || [first.x0, first.x1]), ...(found.y || [first.y0, first.y1]));
    }
  };

  wire(app, recolour, parts, render);
  refilter();
  restore();
  show();
  window.addEventListener("hashchange", restore);
  parts.overview.now();
  document.documentElement.dataset.ready = "1";
};

const wire = (app, recolour, parts, render) => {
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
  for (const box of document.querySelectorAll("[data-axis]")) {
    box.disabled = box.dataset.axis === "time" && !m.time;
    box.setAttribute("aria-pressed", String(box.dataset.axis === app.state.axis));
    box.addEventListener("click", () => app.set({ axis: box.dataset.axis }));
  }
  byId("raw").addEventListener("change", (event) => app.set({ raw: event.target.checked }));
  const repaint = () => { recolour(); parts.overview.draw(); render(); };
  byId("theme").addEventListener("change", (event) => {
    document.documentElement.dataset.theme = event.target.value;
    repaint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  for (const finding of document.querySelectorAll("[data-event]")) {
    finding.addEventListener("click", () => {
      const event = Number(finding.dataset.event);
      const at = m.number ? m.number.findIndex((number) => number >= event) : event;
      app.set({ event: Math.min(at < 0 ? m.n - 1 : at, m.n - 1), held: true, pin: -1 });
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      app.hovered = -1;
      app.set({ pin: -1, held: false, range: null, query: "" });
      search.blur();
    }
    if (/^(INPUT|SELECT)$/.test(event.target.tagName)) return;
    if (event.key === "/") { event.preventDefault(); search.focus(); }
    if (event.key === "p") app.set({ event: m.meta.peak_event, held: true, pin: -1 });
    if (/^[1-6]$/.test(event.key)) app.set({ tab: tabs[Number(event.key) - 1].dataset.tab });
  });
  const left = m.meta.allocations - m.rows;
  byId("kept").textContent = left > 0
    ? `${count(m.rows)} of ${count(m.meta.allocations)} allocations one by one: those with the most bytes times `
      + `events lived; totals are exact, the others (${share(left / m.meta.allocations)} of all) are in the band "others"`
    : `all ${count(m.rows)} allocations and ${count(m.n)} events`;
};

start().catch((error) => {
  const box = byId("trouble");
  box.hidden = false;
  box.textContent = `This page could not be read: ${error.message}`;
  throw error;
});
