// SPDX-License-Identifier: Apache-2.0
// What the keyboard does, but for the chart's and the tables' own keys.

import { byId } from "./dom.js";
import { saveCsv, savePng } from "./exports.js";
import { TABS } from "./state.js";

// The chart's keys that work wherever the focus is on its tab; those up and down scroll the page,
// and Enter presses the button that has the focus.
const CHART = ["+", "=", "-", "0", "ArrowLeft", "ArrowRight"];

const cycle = (list, now) => list[(list.indexOf(now) + 1) % list.length];

export const keyboard = (app, parts, { alive, choose }) => {
  const showKeys = (is) => {
    byId("keys").hidden = !is;
    byId("keys-switch").setAttribute("aria-expanded", String(is));
    if (is) byId("keys-close").focus();
  };
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
    const isOutside = !event.target.closest?.("#chart,#tabs");
    const isFor = CHART.includes(event.key) || (event.key === "Enter" && event.target === document.body);
    if (state.tab === "overview" && isOutside && isFor) parts.overview.key(event);
    if (/^[1-7]$/.test(event.key)) app.set({ tab: TABS[Number(event.key) - 1] });
  };

  const wireKeys = () => {
    const search = byId("search");
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") {
        if (!byId("keys").hidden) { showKeys(false); return; }
        // Who leaves a field of a form keeps what is shown.
        if (/^(INPUT|SELECT)$/.test(event.target.tagName) && event.target !== search) { event.target.blur(); return; }
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
  return { showKeys, wireKeys };
};
