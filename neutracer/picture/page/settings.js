// SPDX-License-Identifier: Apache-2.0
// What if the allocator had other settings: the program of the trace on the core's model,
// beside what was recorded.

import { drawSmall } from "./chart.js";
import { latest, past } from "./client.js";
import { byId, facts, made } from "./dom.js";
import { mostOf, paintMap, paintStrip } from "./strip.js";
import { bytes, count, many, parseBytes, settingsWords } from "./units.js";

const SPLITS = ["", 20, 32, 64, 128, 256, 512, 1024];
const ROUNDUPS = ["", 1, 2, 4, 8, 16];
const THRESHOLDS = ["", 0.6, 0.7, 0.8, 0.9, 0.95];
const HEIGHT = 260;
const NONE = -2;
// The largest device that the model takes.
const MOST_CAPACITY = 2 ** 60;

const options = (select, values) => {
  for (const value of values) {
    const option = made(select, "option", value === "" ? "not set" : String(value));
    option.value = value;
  }
};

export const settings = (app) => {
  const [split, roundup, threshold] = [byId("max-split"), byId("roundup"), byId("threshold")];
  const [expandable, conf, capacity] = [byId("expandable"), byId("conf"), byId("capacity")];
  options(split, SPLITS);
  options(roundup, ROUNDUPS);
  options(threshold, THRESHOLDS);
  let prepared = -1;
  let program = null;
  let recorded = null;
  const canvases = [0, 1, 2, 3].map(() => document.createElement("canvas"));

  const textOf = () => [
    expandable.checked && "expandable_segments:True",
    split.value && `max_split_size_mb:${split.value}`,
    roundup.value && `roundup_power2_divisions:${roundup.value}`,
    threshold.value && `garbage_collection_threshold:${threshold.value}`,
  ].filter(Boolean).join(",");
  // Shows in the controls what a text says; what they have no place for stays in the text.
  const show = (text) => {
    const said = Object.fromEntries(text.split(",").map((pair) => pair.split(":").map((word) => word.trim())));
    expandable.checked = /^true$/i.test(said.expandable_segments ?? "");
    for (const [select, key] of [[split, "max_split_size_mb"], [roundup, "roundup_power2_divisions"],
      [threshold, "garbage_collection_threshold"]]) {
      select.value = [...select.options].some(({ value }) => value === said[key]) ? said[key] : "";
    }
    conf.value = text;
  };

  const oomWords = (outcome) => {
    if (outcome.stoppedEvent !== NONE) {
      return ["bad", `out of memory at event ${count(outcome.stoppedEvent)}, where the recording was not`];
    }
    if (outcome.beyondEvent !== NONE) {
      return ["", `no failure at event ${count(outcome.beyondEvent)}, where the recording ran out of memory; `
        + "the trace does not show how the program would have gone on"];
    }
    return outcome.ooms ? ["bad", `${many(outcome.ooms, "request")} failed, as in the recording`] : ["", "no request fails"];
  };
  const row = (box, name, outcome, against) => {
    const line = made(box, "div", "", "outcome");
    made(line, "span", name, "muted");
    const peak = made(line, "span", "peak reserved ");
    made(peak, "b", bytes(outcome.peakReserved));
    if (against && against.peakReserved !== outcome.peakReserved) {
      const by = outcome.peakReserved - against.peakReserved;
      // A program that goes on for longer may need more: neither is trouble by itself.
      made(peak, "span", ` (${by > 0 ? "+" : "−"}${bytes(Math.abs(by))})`);
    }
    made(line, "span", `peak allocated ${bytes(outcome.peakAllocated)}`);
    made(line, "span", `${many(outcome.deviceAllocs + outcome.deviceFrees, "call")} to the device`);
    if (outcome.retries) made(line, "span", outcome.retries === 1 ? "1 retry" : `${count(outcome.retries)} retries`);
    made(line, "span", ...oomWords(outcome).reverse());
  };

  const picture = (which, shot, top) => {
    const [strip, map] = canvases.slice(2 * which, 2 * which + 2);
    const one = [{ hue: 0, blue: 0.55 }];
    paintStrip(strip, { ...shot, sums: null }, 90, top, app.colours, one);
    paintMap(map, shot, app.colours, one);
    drawSmall(byId(which ? "outcome-canvas" : "recorded-canvas"), app.colours, strip, map, HEIGHT);
  };
  // Both pictures, as wide as the page is now and in its colours.
  let pair = null;
  const paint = () => {
    if (!pair) return;
    const top = Math.max(...pair.map(mostOf)) * 1.04;
    pair.forEach((shot, which) => picture(which, shot, top));
  };
  const sizeOf = () => ({
    width: Math.max(Math.min(Math.round(byId("recorded-canvas").parentElement.clientWidth), 1000), 60), height: 170,
  });

  // What is assumed of the limit matters where none is given.
  const tellFidelity = (room) => {
    byId("fidelity").textContent = program.sentence + (program.limit && !room
      ? ` PyTorch limited this process, as its failures show; ${bytes(program.limit)} is assumed.` : "");
  };

  const run = latest(async (wanted) => {
    const started = performance.now();
    const outcome = await app.ask("whatIf", wanted);
    const drawn = await app.ask("whatIfDraw", { ...wanted, ...sizeOf(), byTime: app.state.axis === "time" });
    return { outcome, drawn, took: performance.now() - started };
  }, ({ outcome, drawn, took }, wanted) => {
    const box = byId("what-if-words");
    box.replaceChildren();
    row(box, "recorded", recorded.outcome);
    row(box, wanted.settings || "default settings", outcome, recorded.outcome);
    pair = [recorded.shot, drawn];
    paint();
    const { settings: text, capacity: room } = wanted;
    byId("outcome-caption").textContent = `under ${text || "default settings"}${room ? `, with ${bytes(room)}` : ""}`;
    tellFidelity(room);
    box.dataset.took = String(Math.round(took));
    box.dataset.peak = String(outcome.peakReserved);
  });
  const wanted = () => {
    const asked = capacity.value.trim();
    const size = asked ? parseBytes(asked) : 0;
    if (size === null) throw new Error(`${asked} is no size: 24GiB, 80000MiB`);
    if (asked && !(size >= 1 && size <= MOST_CAPACITY)) throw new Error("a capacity must be above 0 bytes and at most 2^60");
    return { settings: conf.value.trim(), capacity: size };
  };
  const complain = (error) => {
    if (error.isPast) return;
    const box = byId("what-if-words");
    box.replaceChildren();
    made(box, "p", error.message, "bad");
  };
  const change = async () => {
    try {
      await run(wanted());
    } catch (error) {
      complain(error);
    }
  };

  // Done once a device, when the tab is first shown.
  const prepare = async () => {
    if (prepared === app.serial) return;
    prepared = app.serial;
    const { settings: inForce } = app.about;
    const refused = app.trace.isHost || inForce.isPinned ? "no setting of the CUDA allocator changes the host's pinned memory"
      : inForce.isCpu ? "no setting of the CUDA allocator changes the memory of the CPU, which has no cache"
        : !inForce.isNative ? "this program ran under another allocator than PyTorch's native one, which records nothing that could be replayed"
          : !app.trace.events ? "the snapshot has no history to replay" : "";
    document.querySelector(".pair").hidden = refused !== "";
    if (refused) {
      complain(new Error(refused));
      return;
    }
    try {
      program = await app.ask("program");
      tellFidelity(0);
      const { width, height } = sizeOf();
      const { axis } = app;
      if (!axis) throw past("another axis is shown");
      const shot = await app.ask("draw", { x0: 0, x1: axis.width, y0: 0, y1: axis.height, width, height });
      // All blocks in one colour, as in the other picture.
      shot.pixels = shot.pixels.map((code) => Math.min(code, 2));
      const outcome = await app.ask("whatIf", { settings: inForce.text, capacity: 0 });
      recorded = { shot, outcome: { ...outcome, peakReserved: app.trace.peak.reserved.bytes } };
      if (!conf.value) show(inForce.text);
      await change();
    } catch (error) {
      complain(error);
    }
  };

  for (const element of [expandable, split, roundup, threshold]) {
    element.addEventListener("change", () => { conf.value = textOf(); change(); });
  }
  let typing = 0;
  const later = () => { clearTimeout(typing); typing = setTimeout(change, 250); };
  conf.addEventListener("input", () => { const text = conf.value; show(text); later(); });
  capacity.addEventListener("input", later);
  byId("what-if").addEventListener("submit", (event) => { event.preventDefault(); change(); });
  const draw = () => {
    if (app.state.tab !== "settings" || !app.trace) return;
    prepare();
    paint();
    const { settings: inForce } = app.about;
    byId("in-force").replaceChildren();
    facts(byId("in-force"), [["PYTORCH_CUDA_ALLOC_CONF", settingsWords(inForce)]]);
  };
  return { draw, reset: () => { prepared = -1; pair = null; conf.value = capacity.value = ""; byId("what-if-words").replaceChildren(); byId("fidelity").textContent = ""; } };
};
