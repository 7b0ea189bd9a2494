// SPDX-License-Identifier: Apache-2.0
// The worker: one file, its core, and one answer at a time.

import { makeAnswers } from "./answers.js";
import { coreError, LIMIT, makeCore } from "./core.js";
import { feed, ownFeed } from "./feed.js";
import { HOST } from "./units.js";

// The core's status where its allocator gave nothing.
const NOMEM = 1;

const host = { failed: null, read: () => 0, allowance: () => 0, write: () => {} };
let core = null;
let answers = null;

// What the budget refused, in words; `limit` is what a page may have.
const refused = (error, limit) => {
  if (!error.sentence || error.status !== NOMEM) return error;
  const [isPacked] = core.figures(1);
  return coreError(isPacked ? LIMIT : NOMEM, isPacked
    ? "what is packed in it takes far more memory than a snapshot of its size"
    : `reading it takes more than the ${Math.round(limit).toLocaleString("en-US")} bytes that a page can have`);
};

const prepare = ({ module }) => { core = makeCore(module, host); };

const open = async ({ rules, blob, limit, most = Infinity, isOwn = false, renamed = {}, libraries = [], told = {}, idle = {} }) => {
  core = await core;
  const fed = await (isOwn ? ownFeed(blob, rules.files) : feed(blob, rules.files, most));
  let [total, reported] = [0, 0];
  host.read = (room) => {
    const got = fed.read(room);
    total += got;
    if (performance.now() - reported > 60) { reported = performance.now(); postMessage({ progress: total, of: blob.size }); }
    return got;
  };
  host.allowance = fed.allowance;
  try {
    core.call("load", limit, fed.total, isOwn ? 1 : 0);
  } catch (error) {
    throw refused(error, limit);
  } finally {
    // What was read of the file is not kept beside its columns.
    Object.assign(host, { read: () => 0, allowance: () => 0 });
  }
  answers = makeAnswers(core, rules, { renamed, libraries, told, idle });
  answers.ctx.keep = (pieces) => { host.write = (piece) => pieces.push(piece); };
  const partial = core.exports.partial();
  return {
    devices: answers.devices(), settings: answers.settings(), read: total,
    partial: partial ? core.zeroEnded(partial) : "",
    hasTrace: answers.devices().some((device) => device === HOST || core.exports.trace_length(device) > 0),
  };
};

// Arrays of an answer go over without a copy.
const buffersOf = (answer) => Object.values(answer ?? {})
  .flatMap((value) => (ArrayBuffer.isView(value) ? [value.buffer]
    : value && typeof value === "object" && !Array.isArray(value) && !(value instanceof Blob) ? buffersOf(value) : []));

self.onmessage = async ({ data: { id, name, given } }) => {
  if (name === "prepare") { prepare(given); return; }
  try {
    const answer = name === "open" ? await open(given) : answers.answer(name, given);
    postMessage({ id, answer }, buffersOf(answer));
  } catch (error) {
    // The browser's, for a file that is no longer what was chosen.
    const isGone = /^Not(Readable|Found)Error$/.test(error.name);
    const isMemory = !error.sentence && (error instanceof RangeError || /memory/i.test(error.message ?? ""));
    const words = isGone ? "the file can't be read: it was changed, moved or deleted since it was chosen"
      : isMemory ? "there is not enough memory for this" : `the core stopped: ${error.message}`;
    postMessage({
      id, error: error.sentence ? error.message : words,
      isLimit: error.status === NOMEM || isMemory,
    });
  }
};

postMessage({ runs: true });
