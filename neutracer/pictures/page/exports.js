// SPDX-License-Identifier: Apache-2.0
// What the page gives away: the picture as PNG, the visible range as CSV, the snapshot.

import { byId } from "./dom.js";

const give = (blob, name) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

const stem = (app) => (app.title || "snapshot").replace(/\.(pickle|pkl|gz)+$/g, "").replace(/[^\w.-]+/g, "_");

export const savePng = (app) => byId("base").toBlob((blob) => give(blob, `${stem(app)}.png`));

export const saveCsv = (app) => app.ask("csv", { x0: app.view.x0, x1: app.view.x1 })
  .then(({ text }) => give(new Blob([text], { type: "text/csv" }), `${stem(app)}.csv`)).catch(app.complain);

export const savePickle = (app) => app.ask("save")
  .then(({ blob }) => give(blob, `${stem(app)}.pickle`)).catch(app.complain);
