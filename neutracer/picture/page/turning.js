// SPDX-License-Identifier: Apache-2.0
// What is shown: the device of a file, with all that is asked of it anew when it is another one.

import { drawBill } from "./bill.js";
import { inOrder, past } from "./client.js";
import { clean } from "./clean.js";
import { byId, made } from "./dom.js";
import { drawFindings, looked, ownFindings } from "./findings.js";
import { HOST, bytes, deviceName, duration, many, settingsWords } from "./units.js";

// The event that a page opens on: the last request that failed, else the peak, or where nothing
// was ever allocated, the last.
const firstEvent = ({ ooms, peak, start, events }) => {
  if (ooms.length) return ooms[ooms.length - 1].event;
  return peak.allocated.event < 0 && !start.allocated ? events - 1 : Math.max(peak.allocated.event, -1);
};

// The axis that says more: by time, unless half of the events lie within this share of it.
const CROWDED = 0.25;
const firstAxis = ({ isTimed, halfWithin }) => (isTimed && halfWithin >= CROWDED ? "time" : "event");

// A choice between some, which is none of one.
const offer = (id, choices) => {
  byId(`${id}-choice`).hidden = choices.length < 2;
  byId(id).replaceChildren(...choices.map(([value, text]) => {
    const option = made(null, "option", text);
    option.value = String(value);
    return option;
  }));
};

export const turning = (app, parts) => {
  const isTold = () => app.told && app.files[app.fileIndex]?.isOwn;
  const toldOf = (device) => (isTold() ? app.told.devices.find((one) => one.device === device) ?? null : null);

  const setBands = async () => {
    const { bands } = await app.ask("bands", { by: app.state.stacking, query: app.state.query });
    app.bands = bands;
    for (const one of bands) one.isHidden = app.aside.has(one.name);
  };

  // `bands`: what a file that is turned to lacks as well, without which nothing of it can be drawn.
  const setAxis = async (bands = null) => {
    const { trace, state } = app;
    // Until the core has answered, nothing is drawn: its axes are not those of the view.
    app.axis = null;
    const file = app.files[app.fileIndex];
    const axis = await file.ask("axes", { byTime: state.axis === "time" && trace.isTimed, raw: state.raw });
    // The file has these axes from here on, even if another one is shown by now.
    file.axis = { ...axis, lanes: { lanes: [], pools: [], idle: [] } };
    file.summary = null;
    if (app.trace !== trace) throw past("another trace is shown");
    if (bands) await bands();
    app.axis = file.axis;
    const at = await app.ask("place", { events: trace.ooms.map(({ event }) => event) });
    app.ooms = trace.ooms.map((oom, k) => ({ ...oom, x: at[k] }));
    Object.assign(app.view, { x0: 0, x1: axis.width, y0: 0, y1: axis.height });
    app.first = { x1: axis.width, y1: axis.height, device: app.firstDevice };
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
    const peak = trace.events ? "peak " : "";
    const rows = end ?? [
      [`${peak}allocated`, bytes(trace.peak.allocated.bytes), ""],
      [`${peak}reserved`, bytes(trace.peak.reserved.bytes), trace.ooms.length ? "worst" : ""],
    ];
    const box = byId("figures");
    box.replaceChildren();
    for (const [word, value, kind] of rows) {
      const part = made(box, "div", "", kind);
      made(part, "dt", word);
      made(part, "dd", value);
    }
    const { settings: inForce, partial } = app.about;
    const history = !trace.events ? "no history" : trace.complete && !trace.unmatched ? "history complete" : "history begins late";
    const isHost = trace.isHost || inForce.isPinned;
    const words = [isHost ? deviceName(HOST) : inForce.isCpu ? "cpu" : deviceName(app.state.device),
      many(trace.events, "event") + (trace.isTimed ? ` over ${duration(trace.duration)}` : ""),
      ...(partial ? [] : [history]),
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
      event: firstEvent(app.trace), pin: -1, held: false, range: null, query: "",
      axis: firstAxis(app.trace), stacking: "stacks", raw: false,
    };
    Object.assign(app.state, app.start, { device });
    await setAxis(setBands);
    const { trace, state } = app;
    figures();
    drawFindings(app, toldOf(device)?.findings ?? ownFindings(app));
    drawBill(toldOf(device)?.bill);
    document.querySelector("[data-axis=time]").disabled = !trace.isTimed;
    byId("kept").textContent = `all ${many(trace.rows, "allocation")} and ${many(trace.events, "event")}`;
    byId("device").value = String(device);
    parts.settings.reset();
    app.moved();
    if (isShown) parts.overview.now();
    await Promise.all([settle(), setLanes()]);
    // Purposes say more than lines where they are known of most bytes.
    if (trace.isMostlyKnown) app.start.stacking = state.stacking = "categories";
    // What has no stack has a place by now, where a backward pass says whose it was.
    if (trace.isNamed || trace.isMostlyKnown) { app.serial += 1; await setBands(); app.show(); }
    if (!toldOf(device)) drawFindings(app, ownFindings(app, await looked(app)));
    parts.lists.reset();
    if (isShown) parts.overview.now();
    await app.askMoment();
    // Pictures that waited for the rest of a file are no measure of zooming and panning.
    Object.assign(app, { redraws: [], exact: [] });
  };

  // The devices of a file with their names, those first that ran out of memory. Several are
  // replayed once to know that.
  const surveyed = async ({ ask, about, isOwn }) => {
    if (isOwn) return app.told.devices.map(({ device, name }) => ({ device, name }));
    const found = about.devices.map((device) => ({ device, name: deviceName(device), fails: false }));
    for (const one of found.length > 1 ? found : []) {
      try {
        const { peak, ooms } = await ask("device", one.device);
        one.fails = ooms.length > 0;
        one.name += `, ${bytes(peak.reserved.bytes)} at most${one.fails ? ", out of memory" : ""}`;
      } catch (error) {
        if (!error.isLimit) throw error;
      }
    }
    return found.sort((a, b) => b.fails - a.fails);
  };

  const showFile = async (index, device, isShown = true) => {
    const file = app.files[index];
    file.named ??= await surveyed(file);
    app.fileIndex = index;
    app.about = file.about;
    app.title = file.title;
    byId("title").textContent = byId("title").title = document.title = file.title;
    file.devices = file.named.map((one) => one.device);
    app.firstDevice = file.devices[0] ?? 0;
    offer("device", file.named.map((one) => [one.device, one.name]));
    offer("file", app.files.map(({ title }, k) => [k, title]));
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
      // By now it may be closed.
      if (chosen !== mine || !app.files[index]) return;
      await turned(index, device);
      app.show();
      parts.overview.now();
      app.render();
    }).catch(app.complain);
  };
  return { choose, inTurn, isTold, setAxis, setBands, setLanes, showFile, turned };
};
