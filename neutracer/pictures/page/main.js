// SPDX-License-Identifier: Apache-2.0
// The page: opens files, keeps its state, and draws the tab that is shown.

import { MOST_MEMORY, inOrder, latest, openFile, packedBlob, past, prepare } from "./client.js";
import { clean } from "./clean.js";
import { compare } from "./compare.js";
import { byId, made, palette, perFrame } from "./dom.js";
import { saveCsv, savePickle, savePng } from "./exports.js";
import { drawFindings, failures, ownFindings } from "./findings.js";
import { flame } from "./flame.js";
import { drawLegend } from "./legend.js";
import { lists } from "./lists.js";
import { overview } from "./overview.js";
import { drawPanel } from "./panel.js";
import { segments } from "./segments.js";
import { settings } from "./settings.js";
import { TABS, read, write } from "./state.js";
import { HOST, bytes, count, deviceName, duration, many, settingsWords } from "./units.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const dataOf = (id) => JSON.parse(byId(id)?.textContent || "null");
const phone = () => window.innerWidth < 560;
const { documentElement: root } = document;

const app = {
  files: [], fileIndex: -1, serial: 0, redraws: [], exact: [], view: { x0: 0, x1: 1, y0: 0, y1: 1 },
  linked: location.hash, bands: [], ooms: [], pinned: null, hovered: null, moment: null, ranged: null,
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
  if (error.isPast || [...box.children].some(({ textContent }) => textContent === words)) return;
  box.hidden = false;
  box.append(made(null, "p", words));
};

// ---- opening ------------------------------------------------------------------------------

const isTold = () => app.told && app.files[app.fileIndex]?.isOwn;
const toldOf = (device) => (isTold() ? app.told.devices.find((one) => one.device === device) ?? null : null);

// The event that a page opens on: the peak, or where nothing was ever allocated, the last.
const opening = ({ peak, start, events }) => (peak.allocated.event < 0 && !start.allocated ? events - 1
  : Math.max(peak.allocated.event, -1));

const momentSoon = latest(({ file, event }) => file.ask("moment", { event }), (moment, { file, serial }) => {
  if (file !== app.files[app.fileIndex] || serial !== app.serial) return;
  app.moment = moment;
  if (moment.event === app.state.event) app.settled = true;
  parts.overview.over();
  app.render();
});
const askMoment = () => {
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

const setBands = async () => {
  const { bands } = await app.ask("bands", { by: app.state.stacking, query: app.state.query });
  app.bands = bands;
};

// `bands`: what a file that is turned to lacks as well, without which nothing of it can be drawn.
const setAxis = async (bands = null) => {
  const { trace, state } = app;
  // Until the core has answered, nothing is drawn: its axes are not those of the view.
  app.axis = null;
  const file = app.files[app.fileIndex];
  const axis = await file.ask("axes", { byTime: state.axis === "time" && trace.isTimed, raw: state.raw });
  // The file has these axes from here on, even if another one is shown by now.
  file.axis = { ...axis, lanes: { lanes: [], pools: [] } };
  file.summary = null;
  if (app.trace !== trace) throw past("another trace is shown");
  if (bands) await bands();
  app.axis = file.axis;
  const at = await app.ask("place", { events: trace.ooms.map(({ event }) => event) });
  app.ooms = trace.ooms.map((oom, k) => ({ ...oom, x: at[k] }));
  Object.assign(app.view, { x0: 0, x1: axis.width, y0: 0, y1: axis.height });
  app.first = { x1: axis.width, y1: axis.height, axis: trace.isTimed ? "time" : "event", device: app.firstDevice };
};

// The lanes under the timeline come after its first picture.
const setLanes = async () => {
  const { axis } = app.files[app.fileIndex];
  axis.lanes = await app.ask("lanes");
};

// What blocks were for, which the first picture does not wait for either.
const settle = async () => {
  const { trace } = app;
  if (trace.isKnown === undefined) Object.assign(trace, await app.ask("settle"));
  const byCategory = document.querySelector("[data-by=categories]");
  byCategory.disabled = !trace.isKnown;
  byCategory.title = trace.isKnown ? "" : "nothing in the trace says what its blocks are for";
};

const figures = () => {
  const { trace } = app;
  const end = toldOf(app.state.device)?.figures;
  const rows = end ?? [
    ["peak allocated", bytes(trace.peak.allocated.bytes), ""],
    ["peak reserved", bytes(trace.peak.reserved.bytes), trace.ooms.length ? "worst" : ""],
  ];
  const box = byId("figures");
  box.replaceChildren();
  for (const [word, value, kind] of rows) {
    const part = made(box, "div", "", kind);
    made(part, "dt", word);
    made(part, "dd", value);
  }
  const { settings: inForce, partial } = app.about;
  const history = !trace.events ? "no history" : trace.complete ? "history complete" : "history begins late";
  const isHost = trace.isHost || inForce.isPinned;
  const words = [isHost ? deviceName(HOST) : inForce.isCpu ? "cpu" : deviceName(app.state.device),
    many(trace.events, "event") + (trace.isTimed ? ` over ${duration(trace.duration)}` : ""), history,
    ...(isHost ? [] : [settingsWords(inForce)])];
  if (partial) words.push(`only a part was read: ${partial}`);
  byId("facts").textContent = toldOf(app.state.device)?.facts ?? clean(words.join(" · "));
};

// What puts another file or device in place of the one that is shown, one after the other.
const inTurn = inOrder();

// Another device, or another file: everything is asked anew. `isShown`: drawn at once.
const turnTo = async (device, isShown = true) => {
  const file = app.files[app.fileIndex];
  const known = file.device === device && file.trace;
  app.axis = null;
  app.serial += 1;
  // Until it is there, the core has none.
  file.device = null;
  app.trace = known ? file.trace : await file.ask("device", device);
  file.trace = app.trace;
  file.device = device;
  app.serial += 1;
  app.shot = null;
  app.settled = false;
  Object.assign(app, { pinned: null, hovered: null, ranged: null, moment: null });
  app.start = {
    event: opening(app.trace), pin: -1, held: false, range: null, query: "",
    axis: app.trace.isTimed ? "time" : "event", stacking: "stacks", raw: false,
  };
  Object.assign(app.state, app.start, { device });
  await setAxis(setBands);
  const { trace } = app;
  figures();
  drawFindings(app, toldOf(device)?.findings ?? ownFindings(app));
  document.querySelector("[data-axis=time]").disabled = !trace.isTimed;
  byId("kept").textContent = `all ${many(trace.rows, "allocation")} and ${many(trace.events, "event")}`;
  byId("device").value = String(device);
  parts.settings.reset();
  app.moved();
  if (isShown) parts.overview.now();
  await Promise.all([settle(), setLanes()]);
  // What has no stack has a place by now, where a backward pass says whose it was.
  if (trace.isNamed) { app.serial += 1; await setBands(); app.show(); }
  if (trace.ooms.length && !toldOf(device)) drawFindings(app, ownFindings(app, await failures(app)));
  parts.lists.reset();
  if (isShown) parts.overview.now();
  await askMoment();
  // Pictures that waited for the rest of a file are no measure of zooming and panning.
  Object.assign(app, { redraws: [], exact: [] });
};

const showFile = async (index, device, isShown = true) => {
  app.fileIndex = index;
  const file = app.files[index];
  app.about = file.about;
  app.title = file.title;
  byId("title").textContent = document.title = file.title;
  const devices = file.isOwn ? app.told.devices.map((one) => one.device) : file.about.devices;
  file.devices = devices;
  app.firstDevice = devices[0] ?? 0;
  byId("device").replaceChildren(...devices.map((number) => {
    const option = made(null, "option", toldOf(number)?.name ?? deviceName(number));
    option.value = String(number);
    return option;
  }));
  byId("device-choice").hidden = devices.length < 2;
  byId("file-choice").hidden = app.files.length < 2;
  byId("file").replaceChildren(...app.files.map(({ title }, k) => {
    const option = made(null, "option", title);
    option.value = String(k);
    return option;
  }));
  byId("file").value = String(index);
  byId("save").hidden = false;
  await turnTo(device ?? file.device ?? app.firstDevice, isShown);
};

// Another file or device, and if there is no memory for it, again what was shown before.
const turned = async (index, device) => {
  const before = [app.fileIndex, app.state.device];
  try {
    await (index === before[0] && device !== undefined ? turnTo(device) : showFile(index, device));
  } catch (error) {
    app.complain(error);
    await showFile(...before);
  }
};

let chosen = null;
// What somebody chose; of several choices in a row, only the last is followed.
const choose = (index, device) => {
  const mine = { index, device };
  chosen = mine;
  return inTurn(async () => {
    if (chosen !== mine) return;
    await turned(index, device);
    app.show();
    parts.overview.now();
    app.render();
  }).catch(app.complain);
};

const progress = (name) => (share) => {
  byId("progress").textContent = `reading ${name}: ${Math.round(share * 100)} %`;
};

// Bytes of a file of which a page holds everything: what is read of them, and what is made of
// that, is less than three times as large.
const FITS = MOST_MEMORY / 3;

// Offers what fits of a file, or of its first `most` bytes, for which a page has no memory.
const offer = ({ blob, name, most = Infinity }, error) => {
  app.complain(new Error(`${clean(name)}: ${error.message}`));
  if (!error.isLimit) return;
  const tried = Math.min(blob.size, most);
  for (const part of [tried > 1.1 * FITS ? FITS : tried / 2, tried / 4]) {
    const button = made(byId("trouble"), "button", `read its first ${bytes(Math.floor(part))}`);
    button.addEventListener("click", () => take([{ blob, name, most: Math.floor(part) }]));
  }
};

const openOne = async ({ blob, name, isOwn, most = Infinity }) => {
  byId("progress").hidden = false;
  progress(name)(0);
  const more = { most, ...(isOwn ? { isOwn, renamed: app.told.renamed, told: app.told.rules } : {}) };
  const { about, ask, close } = await openFile(blob, app.rules, more, progress(name));
  if (!about.devices.length) { close(); throw new Error("the snapshot is empty: no device has segments or events"); }
  return { about, ask, close, title: clean(name), isOwn: Boolean(isOwn), trace: null, device: null, from: { blob, name, most } };
};

// Each of the files from number `before` on is replayed, so that they can be compared; the
// first of them is shown. For what there is no memory, that goes.
const replayAll = async (before) => {
  for (let k = app.files.length - 1; k >= before; k--) {
    try {
      await showFile(k, undefined, k === before);
    } catch (error) {
      const [{ close, from, isOwn }] = app.files.splice(k, 1);
      if (isOwn) throw error;
      close();
      Object.assign(app, { trace: null, axis: null });
      const words = `showing it takes more than the ${bytes(MOST_MEMORY)} that a page can have`;
      offer(from, error.isLimit ? Object.assign(new Error(words), { isLimit: true }) : error);
    }
  }
  if (app.trace || !app.files.length) return;
  await showFile(Math.min(before, app.files.length - 1));
};

const openAll = async (list) => {
  const opened = [];
  for (const one of list) {
    try {
      opened.push(await openOne(one));
    } catch (error) {
      offer(one, error);
    }
  }
  byId("progress").hidden = true;
  if (opened.length) {
    for (const id of ["nav", "columns"]) byId(id).hidden = false;
    byId("empty").hidden = true;
    const before = app.files.length;
    app.files.push(...opened);
    await replayAll(before);
  }
  const isEmpty = !app.files.length;
  for (const id of ["nav", "columns"]) byId(id).hidden = isEmpty;
  byId("empty").hidden = !isEmpty;
  if (isEmpty) {
    for (const id of ["save", "device-choice", "file-choice"]) byId(id).hidden = true;
    for (const id of ["facts", "figures"]) byId(id).replaceChildren();
    byId("title").textContent = document.title = "neutracer";
  }
  if (!opened.length || isEmpty) return;
  if (app.files.length > 1 && opened.length > 1 && !location.hash) app.state.tab = "compare";
  app.show();
  parts.overview.now();
  app.render();
};

// What somebody chose or dropped.
const take = (list) => {
  byId("trouble").hidden = true;
  byId("trouble").replaceChildren();
  return inTurn(async () => {
    root.dataset.ready = "";
    await openAll(list).catch(app.complain);
    root.dataset.ready = "1";
  });
};

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

const remember = () => {
  // Inside of another page it has no address of its own.
  if (location.protocol === "about:" || !app.first) return;
  // A link that somebody else wrote is followed first.
  if (location.hash !== app.linked) return;
  const text = write(app.state, app.view, app.first);
  if (location.hash.slice(1) !== text) history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  app.linked = location.hash;
};
let later = 0;
app.moved = () => { clearTimeout(later); later = setTimeout(remember, 150); };

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
window.addEventListener("resize", () => {
  fitSoon();
  if (app.state.tab === "settings" || app.state.tab === "compare") app.render();
});

const frozenChip = () => {
  const { held, event } = app.state;
  byId("frozen").hidden = !held;
  byId("frozen-words").textContent = held ? `cursor frozen at event ${count(event)}` : "";
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
    if (state.event !== before.event || !app.moment || app.moment.event !== state.event) work.push(askMoment());
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
app.search = (query) => app.set({ query, tab: "allocations" });

const follow = async () => {
  // The link is written anew while it is followed.
  const { hash } = location;
  app.linked = hash;
  if (!app.trace) return;
  const found = read(hash, Infinity, Infinity);
  const { devices } = app.files[app.fileIndex];
  const device = devices.includes(found.device) ? found.device : app.firstDevice;
  if (device !== app.state.device) await turned(app.fileIndex, device);
  const inside = read(hash, app.trace.events, app.trace.rows);
  // What a link does not say is as it was at first.
  const change = { ...app.start, tab: "overview" };
  for (const key of ["tab", "event", "pin", "query", "axis", "stacking"]) if (inside[key] !== null) change[key] = inside[key];
  if (change.axis === "time" && !app.trace.isTimed) change.axis = "event";
  if (change.stacking === "categories" && !app.trace.isKnown) change.stacking = "stacks";
  if (inside.event !== null) change.held = true;
  await app.set({ ...change, raw: inside.raw }, true);
  if (!app.axis) return;
  const { width, height } = app.axis;
  const [from, to] = (inside.range ?? [0, 0]).map((x) => Math.min(Math.max(x, 0), width));
  await app.set({ range: from < to ? [from, to] : null }, true);
  parts.overview.look(...(inside.x || [0, width]), ...(inside.y || [0, height]));
  const focus = !hash && isTold() && app.told.focus;
  if (focus) {
    const [first, last] = await app.ask("place", { events: focus });
    parts.overview.look(first, last, 0, height);
  }
  app.show();
  app.render();
};
const restore = () => inTurn(async () => {
  root.dataset.ready = "";
  await follow().catch(app.complain);
  root.dataset.ready = "1";
  root.dataset.links = String(Number(root.dataset.links || 0) + 1);
});

// ---- wires --------------------------------------------------------------------------------

const alive = () => {
  const term = `alive:${Math.max(app.state.event, 0)}`;
  const rest = app.state.query.replace(/\s*\balive:[\d,]+/g, "").trim();
  app.set({ query: app.state.query.includes(term) ? rest : `${rest} ${term}`.trim(), tab: "allocations" });
};
const showKeys = (is) => {
  byId("keys").hidden = !is;
  byId("keys-switch").setAttribute("aria-expanded", String(is));
  if (is) byId("keys-close").focus();
};
const cycle = (list, now) => list[(list.indexOf(now) + 1) % list.length];

const keyWork = (event) => {
  const { trace, state } = app;
  const { devices } = app.files[app.fileIndex];
  const work = {
    "/": () => { event.preventDefault(); byId("search").focus(); },
    p: () => app.set({ event: trace.peak.allocated.event, held: true, pin: -1 }),
    t: () => trace.isTimed && app.set({ axis: state.axis === "time" ? "event" : "time" }),
    s: () => app.set({ stacking: cycle(["stacks", ...(trace.isKnown ? ["categories"] : []), "sizes"], state.stacking) }),
    l: () => app.set({ legend: !state.legend }),
    a: alive, m: parts.compare.mark, g: () => savePng(app), c: () => saveCsv(app),
    d: () => devices.length > 1 && choose(app.fileIndex, cycle(devices, state.device)),
  }[event.key];
  if (work) work();
  if (/^[1-7]$/.test(event.key)) app.set({ tab: TABS[Number(event.key) - 1] });
};

const wireKeys = () => {
  const search = byId("search");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (!byId("keys").hidden) { showKeys(false); return; }
      app.hovered = null;
      clearTimeout(app.typing);
      search.value = "";
      app.set({ pin: -1, held: false, range: null, query: "" });
      search.blur();
    }
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (event.key === "?") showKeys(byId("keys").hidden);
    else if (event.key === "o") byId("pick").click();
    else if (app.trace) keyWork(event);
  });
};

const wireFiles = () => {
  const pick = byId("pick");
  for (const id of ["open", "empty-open"]) byId(id).addEventListener("click", () => pick.click());
  const named = (files) => [...files].map((blob) => ({ blob, name: blob.name }));
  pick.addEventListener("change", () => { take(named(pick.files)); pick.value = ""; });
  let over = 0;
  const hold = (event) => { if ([...event.dataTransfer.types].includes("Files")) event.preventDefault(); };
  document.addEventListener("dragenter", (event) => { hold(event); over += 1; byId("drop").hidden = false; });
  document.addEventListener("dragover", hold);
  document.addEventListener("dragleave", () => { over -= 1; byId("drop").hidden = over > 0; });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    over = 0;
    byId("drop").hidden = true;
    take(named(event.dataTransfer.files));
  });
};

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
    settings: settings(app), compare: compare(app),
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
