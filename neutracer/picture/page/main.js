// SPDX-License-Identifier: Apache-2.0
// The page: its state, what a change of that asks of the core, and the tab that is shown.

import { latest, packedBlob, past, prepare } from "./client.js";
import { clean } from "./clean.js";
import { compare } from "./compare.js";
import { byId, made, palette, perFrame } from "./dom.js";
import { saveCsv, savePickle, savePng } from "./exports.js";
import { flame } from "./flame.js";
import { keyboard } from "./keyboard.js";
import { drawLegend } from "./legend.js";
import { links } from "./links.js";
import { lists } from "./lists.js";
import { opening } from "./opening.js";
import { overview } from "./overview.js";
import { drawPanel } from "./panel.js";
import { segments } from "./segments.js";
import { settings } from "./settings.js";
import { turning } from "./turning.js";
import { count, duration, many } from "./units.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const dataOf = (id) => JSON.parse(byId(id)?.textContent || "null");
const phone = () => window.innerWidth < 560;
const { documentElement: root } = document;

// `linked`: the address that the page shows or wrote; a link that is still to be followed is another.
const app = {
  files: [], fileIndex: -1, serial: 0, redraws: [], exact: [], view: { x0: 0, x1: 1, y0: 0, y1: 1 },
  linked: location.hash ? null : "", bands: [], aside: new Set(), ooms: [], pinned: null, hovered: null, moment: null, ranged: null,
  rules: dataOf("rules"), told: dataOf("told"),
  state: {
    tab: "overview", device: 0, legend: !phone(), event: -1, pin: -1, held: false, range: null, query: "",
    axis: "time", stacking: "stacks", raw: false,
  },
};
const parts = {};

// About the trace that is shown; of another one by then, no answer counts.
app.ask = async (name, given) => {
  const { trace } = app;
  try {
    const answer = await app.files[app.fileIndex].ask(name, given);
    if (app.trace === trace) return answer;
  } catch (error) {
    if (app.trace === trace) throw error;
  }
  throw past("another trace is shown");
};
app.complain = (error) => {
  const box = byId("trouble");
  const words = clean(error.message);
  // Once is enough.
  if (error.isPast || [...box.children].some(({ dataset }) => dataset.words === words)) return;
  box.hidden = false;
  const line = made(box, "p", `${words} `);
  line.dataset.words = words;
  made(line, "button", "dismiss", "link").addEventListener("click", () => app.dismiss());
};
// What was wrong before is no matter now.
app.dismiss = () => {
  byId("trouble").hidden = true;
  byId("trouble").replaceChildren();
};

const momentSoon = latest(({ file, event }) => file.ask("moment", { event }), (moment, { file, serial }) => {
  if (file !== app.files[app.fileIndex] || serial !== app.serial) return;
  app.moment = moment;
  if (moment.event === app.state.event) app.settled = true;
  parts.overview.over();
  app.render();
});
app.askMoment = () => {
  const { trace } = app;
  const file = app.files[app.fileIndex];
  app.settled = false;
  return momentSoon({ file, event: app.state.event, serial: app.serial })
    .catch((error) => { if (trace === app.trace) app.complain(error); });
};
const followSoon = latest(({ x }) => app.ask("at", { x }), ({ event }) => {
  if (!app.state.held && event !== app.state.event) app.set({ event }, true);
});
app.follow = (x) => followSoon({ x: Math.floor(x) }).catch(app.complain);

const { choose, inTurn, isTold, setAxis, setBands, setLanes, showFile, turned } = turning(app, parts);

// ---- state --------------------------------------------------------------------------------

const press = (name, value) => {
  for (const button of document.querySelectorAll(`[data-${name}]`)) {
    button.setAttribute("aria-pressed", String(button.dataset[name] === value));
  }
};

app.cursorX = () => app.moment?.x ?? app.view.x0;
app.lifeWords = ({ made: from, freed, madeTime, freedTime }) => {
  if (freed === -1) return from < 0 ? "from before the trace to the end" : "kept to the end";
  if (from < 0) return "from before the trace";
  const passed = many(freed - from, "event");
  return madeTime !== null && freedTime !== null ? `${duration(freedTime - madeTime)} (${passed})` : passed;
};
app.momentWords = () => {
  const { event } = app.state;
  const { trace } = app;
  if (event < 0) return trace.events ? "before the first event" : "when the snapshot was taken";
  const peak = event === trace.peak.allocated.event ? ", the peak" : "";
  const time = app.moment?.event === event && trace.isTimed ? ` at ${duration(app.moment.time)}` : "";
  return `after event ${count(event)}${time}${peak}`;
};

app.recolour = () => { app.colours = palette(); };

const timesOf = (times) => {
  const sorted = [...times].sort((a, b) => a - b);
  return sorted.length ? `half within ${sorted[sorted.length >> 1].toFixed(1)} ms, 95 of 100 within `
    + `${sorted[Math.floor(sorted.length * 0.95)].toFixed(1)} ms` : "nothing yet";
};
const speed = () => {
  byId("speed").textContent = `${count(app.redraws.length)} redraws, ${timesOf(app.redraws)}; exact pictures `
    + timesOf(app.exact);
};

// What scrolls by itself reaches down to the end of the window.
const tell = (name, element, more) => {
  const value = `${Math.round(element.getBoundingClientRect().top + window.scrollY) + more}px`;
  if (root.style.getPropertyValue(name) !== value) root.style.setProperty(name, value);
};
const fitSoon = perFrame(() => {
  tell("--top", byId("main"), 0);
  const scroll = document.querySelector("section:not([hidden]) .scroll");
  if (scroll) tell("--above", scroll, 16);
});
// What stands above it comes with the answers.
new ResizeObserver(fitSoon).observe(byId("main"));
new ResizeObserver(() => { if (app.trace) parts.overview.draw(); }).observe(byId("trouble"));
window.addEventListener("resize", () => {
  fitSoon();
  if (app.state.tab === "settings" || app.state.tab === "compare") app.render();
});

const frozenChip = () => {
  const { held, event } = app.state;
  const words = (at) => `frozen at ${count(at)}`;
  byId("frozen").hidden = !held;
  byId("frozen-words").textContent = words(event);
  // As wide for any event, so that nothing moves when it comes or goes.
  byId("frozen-words").style.minWidth = `${words(app.trace.events).length}ch`;
};

app.render = perFrame(() => {
  if (!app.trace || !app.axis) return;
  const { tab } = app.state;
  if (tab !== "settings" && tab !== "compare") drawPanel(app);
  document.querySelector("[data-zoom=range]").disabled = !app.state.range;
  frozenChip();
  for (const text of document.querySelectorAll(".moment")) text.textContent = app.momentWords();
  if (tab === "segments" || tab === "stacks") parts[tab].draw();
  if (tab === "allocations" || tab === "events") parts.lists.draw(tab);
  if (tab === "overview") parts.overview.over();
  if (tab === "settings") { speed(); parts.settings.draw(); }
  if (tab === "compare") parts.compare.draw();
  fitSoon();
});

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
  // Who types has the last word.
  if (document.activeElement !== byId("search")) byId("search").value = state.query;
  byId("legend").hidden = !state.legend;
  byId("legend-switch").setAttribute("aria-pressed", String(state.legend));
  byId("panel").hidden = state.tab === "settings" || state.tab === "compare";
  if (state.legend && app.axis) drawLegend(app);
  if (state.tab === "overview") parts.overview.draw();
};

const askBlock = async (row) => {
  app.pinned = row < 0 ? null : await app.ask("block", { row });
  parts.overview.over();
  app.render();
};
const rangeSoon = latest(({ x0, x1 }) => app.ask("range", { x0, x1 }), (found) => { app.ranged = found; app.render(); });

// Other axes, or where there is no memory for them, those that were there.
const turnAxis = async ({ axis, raw }) => {
  try {
    await setAxis();
  } catch (error) {
    if (error.isPast) throw error;
    app.complain(error);
    Object.assign(app.state, { axis, raw });
    await setAxis();
  }
  await setLanes();
};

const shown = ["tab", "axis", "raw", "query", "stacking", "legend"];
// `quiet`: what follows the pointer and does not belong into a link. The promise is kept when
// the core has answered all that the change asks for.
app.set = async (change, quiet = false) => {
  if (!app.trace) return;
  const before = { ...app.state };
  Object.assign(app.state, change);
  // A list may still be that of the trace before.
  app.state.event = Math.min(app.state.event, app.trace.events - 1);
  if (app.state.pin >= app.trace.rows) app.state.pin = -1;
  // The axes of a trace that is on its way come with it.
  if (!app.axis) Object.assign(app.state, { axis: before.axis, raw: before.raw });
  const { state } = app;
  if (!quiet) app.moved();
  if (state.query !== before.query) {
    clearTimeout(app.typing);
    if (byId("search").value.trim() !== state.query) byId("search").value = state.query;
  }
  try {
    const work = [];
    if (state.axis !== before.axis || state.raw !== before.raw) {
      state.range = null;
      app.serial += 1;
      await turnAxis(before);
      app.moment = null;
      if (state.pin >= 0) work.push(askBlock(state.pin));
    }
    if (state.query !== before.query || state.stacking !== before.stacking) {
      app.serial += 1;
      await setBands();
    }
    if (shown.some((key) => state[key] !== before[key])) app.show();
    if (state.event !== before.event || !app.moment || app.moment.event !== state.event) work.push(app.askMoment());
    if (state.pin !== before.pin) work.push(askBlock(state.pin));
    if (state.range && state.range !== before.range) work.push(rangeSoon({ x0: state.range[0], x1: state.range[1] }));
    if (!quiet) app.moved();
    app.render();
    await Promise.all(work);
  } catch (error) {
    app.complain(error);
  }
};
app.step = (by) => app.set({ event: Math.min(Math.max(app.state.event + by, -1), app.trace.events - 1), held: true });
// A block with some of what is around it; `whole` is the way back.
app.zoomTo = async ({ x0, x1, y, size }) => {
  await app.set({ tab: "overview" });
  const [beside, above] = [(x1 - x0) / 4, size];
  parts.overview.look(x0 - beside, x1 + beside, y - above, y + size + above);
};
// Puts a band aside, or takes it back; alone: all others.
app.hide = (name) => {
  if (!app.aside.delete(name)) app.aside.add(name);
  app.shade();
};
app.isolate = (name) => {
  const others = app.bands.map((one) => one.name).filter((one) => one !== name);
  const isAlone = !app.aside.has(name) && others.every((one) => app.aside.has(one));
  app.aside = new Set(isAlone ? [] : others);
  app.shade();
};
app.shade = () => {
  for (const one of app.bands) one.isHidden = app.aside.has(one.name);
  app.show();
  app.render();
};
app.search = (query) => app.set({ query, tab: "allocations" });

// ---- wires --------------------------------------------------------------------------------

const alive = () => {
  const term = `alive:${Math.max(app.state.event, 0)}`;
  const rest = app.state.query.replace(/\s*\balive:[\d,]+/g, "").trim();
  app.set({ query: app.state.query.includes(term) ? rest : `${rest} ${term}`.trim(), tab: "allocations" });
};
const { follow, restore } = links(app, parts, { inTurn, isTold, turned });
const { openAll, wireFiles } = opening(app, parts, { follow, inTurn, showFile });
const { showKeys, wireKeys } = keyboard(app, parts, { alive, choose });

const wire = () => {
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
  search.addEventListener("input", () => {
    clearTimeout(app.typing);
    app.typing = setTimeout(() => app.set({ query: search.value.trim() }), 150);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    clearTimeout(app.typing);
    app.set({ query: search.value.trim(), tab: app.state.tab === "events" ? "events" : "allocations" });
  });
  for (const button of document.querySelectorAll("[data-axis]")) {
    button.addEventListener("click", () => app.set({ axis: button.dataset.axis }));
  }
  for (const button of document.querySelectorAll("[data-by]")) {
    button.addEventListener("click", () => app.set({ stacking: button.dataset.by }));
  }
  const clicks = {
    "legend-switch": () => app.set({ legend: !app.state.legend }),
    "free-cursor": () => app.set({ held: false, pin: -1 }),
    "alive-filter": alive,
    "save-png": () => savePng(app), "save-csv": () => saveCsv(app), save: () => savePickle(app),
    "keys-switch": () => showKeys(byId("keys").hidden), "keys-close": () => showKeys(false),
  };
  for (const [id, work] of Object.entries(clicks)) byId(id).addEventListener("click", work);
  byId("device").addEventListener("change", (event) => choose(app.fileIndex, Number(event.target.value)));
  byId("file").addEventListener("change", (event) => choose(Number(event.target.value)));
  byId("raw").addEventListener("change", (event) => app.set({ raw: event.target.checked }));
  const repaint = () => { app.recolour(); if (app.trace) { app.show(); parts.overview.now(); app.render(); } };
  byId("theme").addEventListener("change", (event) => { root.dataset.theme = event.target.value; repaint(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  // Paper is light, and has no next frame.
  matchMedia("print").addEventListener("change", repaint);
};

const start = async () => {
  app.recolour();
  Object.assign(parts, {
    overview: overview(app), segments: segments(app), stacks: flame(app), lists: lists(app),
    settings: settings(app),
    compare: compare(app, (index) => choose(index).then(() => app.set({ tab: "overview" }))),
  });
  wire();
  wireKeys();
  wireFiles();
  window.addEventListener("hashchange", restore);
  const own = byId("snapshot");
  if (!own) {
    byId("empty").hidden = false;
    root.dataset.ready = "1";
    prepare();
    return;
  }
  await inTurn(() => openAll([{ blob: packedBlob(own), name: app.told.title, isOwn: true }]));
  await restore();
};

start().catch((error) => {
  app.complain(new Error(`This page could not be read: ${error.message}`));
  throw error;
});
