// SPDX-License-Identifier: Apache-2.0
// Live bytes by call stack: outermost frames on top, each as wide as what it holds.

import { byId, made, placed } from "./dom.js";
import { wordsOf } from "./filter.js";
import { bytes, many, share } from "./units.js";

const ROW = 22;
// Narrower boxes are left out, so that a page stays quick.
const NARROWEST = 0.003;

// Pixels from which on a box has room for some letters of its name.
const READABLE = 26;

export const flame = (app) => {
  const box = byId("flame");
  let drawn = "";
  let root = null;
  let zoom = null;
  let zoomed = null;
  let wide = 0;
  let words = [];
  const turned = { own: false, inverted: false };

  // The outermost call, with what it called inside.
  const treeOf = (calls) => {
    const nodes = calls.map((call) => ({ ...call, up: null, inner: [] }));
    calls.forEach(({ up }, k) => {
      if (up < 0) return;
      nodes[k].up = nodes[up];
      nodes[up].inner.push(nodes[k]);
    });
    return nodes[0];
  };

  const place = (node, left, width, depth) => {
    const button = made(box, "button", "", "box");
    button.style.left = `${left * 100}%`;
    button.style.width = `calc(${width * 100}% - 1px)`;
    button.style.top = `${depth * ROW}px`;
    if (node.owner === "own") button.classList.add("own");
    const isReadable = width * box.clientWidth >= READABLE;
    button.classList.toggle("bare", !isReadable);
    if (isReadable) {
      placed(button, `${node.name} ${node.where}`.trim(), node.where, words);
      made(button, "span", bytes(node.bytes), "muted");
    }
    button.ariaLabel = `${node.name} ${node.where}, ${bytes(node.bytes)}`;
    button.title = `${node.name} ${node.where}\n${bytes(node.bytes)}, ${share(node.bytes / root.bytes)}, `
      + `${many(node.count, "block")}${node.file.includes("/") ? `\n${node.file}` : ""}`;
    button.addEventListener("click", () => { zoom = node; render(); zoomed.focus(); });
    if (node === zoom) zoomed = button;
  };

  const render = () => {
    box.replaceChildren();
    words = wordsOf(app.state.query);
    let deepest = 0;
    const above = [];
    for (let node = zoom; node; node = node.up) above.unshift(node);
    above.forEach((node, depth) => place(node, 0, 1, depth));
    const walk = (node, left, width, depth) => {
      deepest = Math.max(deepest, depth);
      let at = left;
      for (const child of node.inner) {
        const part = (width * child.bytes) / node.bytes;
        if (part < NARROWEST) break;
        place(child, at, part, depth);
        walk(child, at, part, depth + 1);
        at += part;
      }
    };
    if (zoom.bytes) walk(zoom, 0, 1, above.length);
    box.style.height = `${(deepest + 2) * ROW}px`;
    byId("flame-words").textContent = root.bytes
      ? `${bytes(root.bytes)} in ${many(root.count, "block")} ${app.momentWords()}; ${turned.inverted ? "innermost" : "outermost"} call on top, `
        + "wider holds more. Your own code stands out. Click a call to look inside."
      : `Nothing is allocated ${app.momentWords()}.`;
  };

  const draw = async () => {
    if (app.state.tab !== "stacks" || !app.trace) return;
    const key = `${app.serial} ${app.state.event} ${turned.own} ${turned.inverted}`;
    if (key === drawn) return;
    drawn = key;
    const { calls } = await app.ask("flame", { event: app.state.event, ...turned });
    if (key !== drawn) return;
    wide = box.clientWidth;
    root = treeOf(calls);
    zoom = root;
    render();
  };
  // Which names have room depends on the width.
  new ResizeObserver(() => {
    if (!root || app.state.tab !== "stacks" || box.clientWidth === wide) return;
    wide = box.clientWidth;
    render();
  }).observe(box);
  for (const button of document.querySelectorAll("[data-flame]")) {
    button.addEventListener("click", () => {
      const name = button.dataset.flame;
      turned[name] = !turned[name];
      button.setAttribute("aria-pressed", String(turned[name]));
      draw().catch(app.complain);
    });
  }
  byId("flame-peak").addEventListener("click", () => app.set({ event: app.trace.peak.allocated.event, held: true }));
  byId("flame-end").addEventListener("click", () => app.set({ event: app.trace.events - 1, held: true }));
  return { draw: () => draw().catch(app.complain) };
};
