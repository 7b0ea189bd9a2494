// SPDX-License-Identifier: Apache-2.0
// What the page gives away: the picture as PNG, the visible range as CSV, the snapshot.

import { byId, fitted } from "./dom.js";

const give = (blob, name) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

const stem = (app) => (app.title || "snapshot").replace(/\.(pickle|pkl|gz)+(?= \(|$)/g, "").replace(/[^\w.-]+/g, "_");

// The chart with what it takes to read it elsewhere: the file's name, its facts, and the colours.
const SIDE = 12;
const LINE = 18;
const headed = (app, base) => {
  const scale = base.width / parseFloat(base.style.width);
  const width = base.width / scale;
  const { colours } = app;
  const canvas = document.createElement("canvas");
  const pen = canvas.getContext("2d");
  pen.font = "12px system-ui, sans-serif";
  const keys = [...byId("legend").querySelectorAll(".key")].map((key) => {
    const text = fitted(pen, key.textContent, width - 2 * SIDE - 20);
    return { text, fill: key.querySelector("i").style.background, wide: pen.measureText(text).width + 36 };
  });
  let [x, y] = [SIDE, 3 * LINE];
  for (const key of keys) {
    if (x > SIDE && x + key.wide > width) [x, y] = [SIDE, y + LINE];
    Object.assign(key, { x, y });
    x += key.wide;
  }
  const head = y + LINE / 2;
  [canvas.width, canvas.height] = [base.width, base.height + Math.round(head * scale)];
  pen.fillStyle = colours.page;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(base, 0, canvas.height - base.height);
  pen.scale(scale, scale);
  pen.font = "12px system-ui, sans-serif";
  pen.fillStyle = colours.grey;
  pen.fillText(fitted(pen, byId("facts").textContent, width - 2 * SIDE), SIDE, 2 * LINE);
  for (const { text, fill, x: left, y: below } of keys) {
    // What is no colour is the line of private pools.
    pen.fillStyle = fill.startsWith("rgb") ? fill : colours.ink;
    pen.fillRect(left, below - 9, 12, fill.startsWith("rgb") ? 10 : 2);
    pen.fillStyle = colours.grey;
    pen.fillText(text, left + 18, below);
  }
  pen.fillStyle = colours.ink;
  pen.font = "600 14px system-ui, sans-serif";
  pen.fillText(fitted(pen, app.title, width - 2 * SIDE), SIDE, LINE);
  return canvas;
};

export const savePng = (app) => headed(app, byId("base")).toBlob((blob) => give(blob, `${stem(app)}.png`));

export const saveCsv = (app) => app.ask("csv", { x0: app.view.x0, x1: app.view.x1 })
  .then(({ blob }) => give(blob, `${stem(app)}.csv`)).catch(app.complain);

export const savePickle = (app) => app.ask("save")
  .then(({ blob }) => give(blob, `${stem(app)}.pickle`)).catch(app.complain);
