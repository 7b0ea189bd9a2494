// SPDX-License-Identifier: Apache-2.0
// A file in a worker of its own: questions go out, answers come as promises.

let script = null;
let core = null;

const bytesOf = (text) => {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const packed = atob(text);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = packed.charCodeAt(i);
  return bytes;
};

// What an element of the page holds, as base64 of gzip.
const unpackedOf = async (element) => new Response(
  new Blob([bytesOf(element.textContent)]).stream().pipeThrough(new DecompressionStream("gzip")));

export const packedBlob = (element) => new Blob([bytesOf(element.textContent)]);

// A worker, once it says that it runs. Of the pages around a notebook's frame some take
// workers from data, and some those from a blob.
const begun = (url) => new Promise((done, fail) => {
  const worker = new Worker(url);
  worker.onmessage = () => done(worker);
  worker.onerror = (event) => { event.preventDefault(); fail(new Error(event.message || "no worker can be started here")); };
});

const start = async () => {
  const text = document.getElementById("worker").textContent;
  script ??= `data:text/javascript;charset=utf-8,${encodeURIComponent(text)}`;
  try {
    return await begun(script);
  } catch {
    script = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    return begun(script);
  }
};

const coreBytes = () => {
  core ??= unpackedOf(document.getElementById("core")).then((response) => response.arrayBuffer());
  return core;
};

// A worker with its core, before there is a file for it.
let spare = null;
const ready = async () => {
  const [worker, module] = await Promise.all([start(), coreBytes()]);
  worker.postMessage({ name: "prepare", given: { module } });
  return worker;
};
export const prepare = () => { spare = ready(); spare.catch(() => { spare = null; }); };

// What nobody waits for any longer: it is no matter that it failed, or what it came to.
export const past = (words) => Object.assign(new Error(words), { isPast: true });

// Bytes that a page can have: the core counts in 32 bits.
export const MOST_MEMORY = 4096 * 2 ** 20 - 2 ** 26;

export const openFile = async (blob, rules, more = {}, progress = () => {}) => {
  const made = spare ?? ready();
  spare = null;
  const worker = await made;
  const waiting = new Map();
  let next = 1;
  worker.onmessage = ({ data }) => {
    if (data.progress !== undefined) { progress(data.progress / Math.max(data.of, 1)); return; }
    const { done, fail } = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.error === undefined) done(data.answer);
    else fail(Object.assign(new Error(data.error), { isLimit: data.isLimit }));
  };
  worker.onerror = (event) => {
    for (const { fail } of waiting.values()) fail(new Error(event.message || "the worker stopped"));
    waiting.clear();
  };
  const ask = (name, given, handed = []) => new Promise((done, fail) => {
    waiting.set(next, { done, fail });
    worker.postMessage({ id: next++, name, given }, handed);
  });
  const close = () => {
    worker.terminate();
    for (const { fail } of waiting.values()) fail(past("the file was closed"));
    waiting.clear();
  };
  try {
    const about = await ask("open", { rules, blob, limit: MOST_MEMORY, ...more });
    return { about, ask, close, isBusy: () => waiting.size > 0 };
  } catch (error) {
    worker.terminate();
    throw error;
  }
};

// Does one work after the other, whatever becomes of those before; gives the promise of each.
export const inOrder = () => {
  let last = Promise.resolve();
  return (work) => {
    const done = last.then(work);
    last = done.catch(() => {});
    return done;
  };
};

// Asks the last of what is wanted: while an answer is under way, others only replace each
// other. `take` gets the answer, with what was wanted.
export const latest = (work, take) => {
  let [busy, wanted] = [false, null];
  const run = async () => {
    while (wanted) {
      const mine = wanted;
      wanted = null;
      busy = true;
      try {
        const answer = await work(mine);
        take(answer, mine);
      } catch (error) {
        // What is wanted by now may well be answered.
        if (!wanted) throw error;
      } finally {
        busy = false;
      }
    }
  };
  const ask = (given) => { wanted = given; return busy ? Promise.resolve() : run(); };
  ask.isBusy = () => busy || wanted !== null;
  return ask;
};
