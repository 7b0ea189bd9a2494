// SPDX-License-Identifier: Apache-2.0
// Files that somebody chose or dropped: read one after the other, and what does not fit is
// offered in part.

import { MOST_MEMORY, openFile } from "./client.js";
import { clean } from "./clean.js";
import { byId, made } from "./dom.js";
import { bytes } from "./units.js";

// Bytes of a file of which a page holds everything: what is read of them, and what is made of
// that, is less than three times as large.
const FITS = MOST_MEMORY / 3;

const progress = (name) => (share) => {
  byId("progress").textContent = `reading ${name}: ${Math.round(share * 100)} %`;
};

export const opening = (app, parts, { follow, inTurn, showFile }) => {
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

  // Files of several folders may have one name.
  const titleOf = (name, others) => {
    const taken = [...app.files, ...others].filter(({ from }) => from.name === name).length;
    return taken ? `${clean(name)} (${taken + 1})` : clean(name);
  };

  const openOne = async ({ blob, name, isOwn, most = Infinity }, others) => {
    byId("progress").hidden = false;
    progress(name)(0);
    const { renamed, libraries, rules, idle } = app.told ?? {};
    const more = { most, ...(isOwn ? { isOwn, renamed, libraries, told: rules, idle } : {}) };
    const { about, ask, close } = await openFile(blob, app.rules, more, progress(name));
    if (!about.devices.length) { close(); throw new Error("the snapshot is empty: no device has segments or events"); }
    return { about, ask, close, title: titleOf(name, others), isOwn: Boolean(isOwn), trace: null, device: null, from: { blob, name, most } };
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
        opened.push(await openOne(one, opened));
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
      byId("title").textContent = byId("title").title = document.title = "neutracer";
    }
    if (!opened.length || isEmpty) return;
    if (app.files.length > 1 && opened.length > 1 && !location.hash) app.state.tab = "compare";
    app.show();
    parts.overview.now();
    app.render();
  };

  // What somebody chose or dropped. A link of the page without a file is about the first one.
  const take = (list) => {
    app.dismiss();
    return inTurn(async () => {
      document.documentElement.dataset.ready = "";
      const isFirst = !app.files.length;
      await openAll(list).catch(app.complain);
      if (isFirst && location.hash) await follow().catch(app.complain);
      document.documentElement.dataset.ready = "1";
    });
  };

  // The file that is shown goes; the one before it is shown, or what is the first then.
  const closeFile = () => inTurn(async () => {
    const index = app.fileIndex;
    if (app.files.length < 2) return;
    const [{ close }] = app.files.splice(index, 1);
    close();
    await showFile(Math.max(index - 1, 0));
    app.show();
    parts.overview.now();
    app.render();
  }).catch(app.complain);

  const wireFiles = () => {
    byId("close").addEventListener("click", closeFile);
    const pick = byId("pick");
    for (const id of ["open", "empty-open"]) byId(id).addEventListener("click", () => pick.click());
    const named = (files) => [...files].map((blob) => ({ blob, name: blob.name }));
    pick.addEventListener("change", () => { take(named(pick.files)); pick.value = ""; });
    let over = 0;
    // Of what is dragged only files are the page's; text may go into its fields.
    const drag = (kind, work) => document.addEventListener(kind, (event) => {
      if (![...event.dataTransfer.types].includes("Files")) return;
      event.preventDefault();
      work(event);
    });
    drag("dragenter", () => { over += 1; byId("drop").hidden = false; });
    drag("dragover", () => {});
    drag("dragleave", () => { over -= 1; byId("drop").hidden = over <= 0; });
    drag("drop", (event) => {
      over = 0;
      byId("drop").hidden = true;
      take(named(event.dataTransfer.files));
    });
  };
  return { openAll, wireFiles };
};
