// SPDX-License-Identifier: Apache-2.0
// Live bytes by call stack: outermost frames on top, each as wide as what it holds.

import { blueAt, byId, made, rgb } from "./dom.js";
import { baseName, framesOf, isAllocated, liveRows, whereOf } from "./model.js";
import { bytes, many, share } from "./units.js";

const ROW = 22;
// Narrower boxes are shown as "more", so that a page stays quick.
const NARROWEST = 0.003;

// Pixels from which on a box has room for some letters of its name.
const READABLE = 26;

const treeOf = (app, event) => {
  const { m } = app;
  const held = new Map();
  for (const row of liveRows(m, event)) {
    if (!isAllocated(m, row, event)) continue;
    const entry = held.get(m.stack[row]) || [0, 0];
    entry[0] += m.size[row];
    entry[1] += 1;
    held.set(m.stack[row], entry);
  }
  const root = { name: "all live bytes", file: "", where: "", bytes: 0, count: 0, inner: new Map() };
  for (const [stack, [size, blocks]] of held) {
    const frames = framesOf(m, stack).reverse();
    if (!frames.length) frames.push(["(no stack recorded)", "", 0, 0]);
    let node = root;
    node.bytes += size;
    node.count += blocks;
    for (const [name, file, line, own] of frames) {
      const key = `${name}\0${file}\0${line}`;
      let next = node.inner.get(key);
      if (!next) {
        next = { name, file, own, where: file ? whereOf([name, file, line]) : "", bytes: 0, count: 0, inner: new Map(), up: node };
        node.inner.set(key, next);
      }
      next.bytes += size;
      next.count += blocks;
      node = next;
    }
  }
  const rest = m.isPartial && event >= 0 ? m.allocated[event] - root.bytes : 0;
  if (rest > 0) {
    root.bytes += rest;
    root.inner.set("", { name: "(not kept one by one)", file: "", where: "", bytes: rest, count: 0, inner: new Map(), up: root });
  }
  return root;
};

export const flame = (app) => {
  const box = byId("flame");
  let drawn = "";
  let root = null;
  let zoom = null;
  let zoomed = null;
  let wide = 0;

  const place = (node, left, width, depth, whole) => {
    const button = made(box, "button", "", "box");
    button.style.left = `${left * 100}%`;
    button.style.width = `calc(${width * 100}% - 1px)`;
    button.style.top = `${depth * ROW}px`;
    if (node.own) {
      const tone = 0.05 + 0.22 * (node.bytes / whole);
      button.style.background = rgb(blueAt(app.colours, tone));
      button.classList.add("own");
    }
    const isReadable = width * box.clientWidth >= READABLE;
    button.classList.toggle("bare", !isReadable);
    if (isReadable) {
      made(button, "span", node.name);
      made(button, "span", ` ${node.where}  ${bytes(node.bytes)}`, "muted");
    }
    button.ariaLabel = `${node.name} ${node.where}, ${bytes(node.bytes)}`;
    button.title = `${node.name} ${node.where}\n${bytes(node.bytes)}, ${share(node.bytes / root.bytes)}, `
      + `${many(node.count, "block")}${node.file === baseName(node.file) ? "" : `\n${node.file}`}`;
    button.addEventListener("click", () => { zoom = node; render(); zoomed.focus(); });
    if (node === zoom) zoomed = button;
  };

  const render = () => {
    box.replaceChildren();
    let deepest = 0;
    const above = [];
    for (let node = zoom; node; node = node.up) above.unshift(node);
    above.forEach((node, depth) => place(node, 0, 1, depth, root.bytes));
    const walk = (node, left, width, depth) => {
      deepest = Math.max(deepest, depth);
      const inner = [...node.inner.values()].sort((a, b) => b.bytes - a.bytes);
      let at = left;
      for (const child of inner) {
        const part = (width * child.bytes) / node.bytes;
        if (part < NARROWEST) break;
        place(child, at, part, depth, root.bytes);
        walk(child, at, part, depth + 1);
        at += part;
      }
    };
    if (zoom.bytes) walk(zoom, 0, 1, above.length);
    box.style.height = `${(deepest + 2) * ROW}px`;
    byId("flame-words").textContent = root.bytes
      ? `${bytes(root.bytes)} in ${many(root.count, "block")} ${app.momentWords()}; outermost call on top, `
        + "wider holds more. Your own code is blue. Click a call to look inside."
      : `Nothing is allocated ${app.momentWords()}.`;
  };

  const draw = () => {
    if (app.state.tab !== "stacks") return;
    const key = `${app.state.device} ${app.state.event} ${app.colours.page}`;
    if (key === drawn) return;
    drawn = key;
    wide = box.clientWidth;
    root = treeOf(app, app.state.event);
    zoom = root;
    render();
  };
  // Which names have room depends on the width.
  new ResizeObserver(() => {
    if (!root || app.state.tab !== "stacks" || box.clientWidth === wide) return;
    wide = box.clientWidth;
    render();
  }).observe(box);
  byId("flame-peak").addEventListener("click", () => app.set({ event: app.m.meta.peak_event, held: true }));
  byId("flame-end").addEventListener("click", () => app.set({ event: app.m.n - 1, held: true }));
  return { draw };
};
