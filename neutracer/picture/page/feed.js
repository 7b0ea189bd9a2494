// SPDX-License-Identifier: Apache-2.0
// A file's bytes for the core's reader: in slices, unpacked where they are packed. What is no
// snapshot is named by its first bytes, in the same words as by `neutracer.load`.

import { coreError, LIMIT } from "./core.js";

const PEEK = 512;
const SLICE = 4 << 20;
const NOTHING = new Uint8Array(0);

// Bytes that were read are given back at once: they are sent to where nobody is. Left to be
// collected, the slices of a file add up to all of it; `transfer` leaves them with the browser.
const { port1: nowhere, port2: nobody } = new MessageChannel();
nobody.close();
const giveBack = ({ byteLength, buffer }) => {
  if (byteLength && byteLength === buffer.byteLength) nowhere.postMessage(null, [buffer]);
};

const starts = (head, hex) => {
  const magic = hex.match(/../g).map((pair) => parseInt(pair, 16));
  return magic.every((byte, i) => head[i] === byte);
};

const packedKind = (head, rules) => Object.entries(rules.magic).find(([, hex]) => starts(head, hex))?.[0] ?? null;

const textKind = (head) => {
  const ascii = String.fromCharCode(...head);
  if (ascii.startsWith("(d") || ascii.startsWith("(l") || head[0] === 0x80) return null;
  if (head.some((byte) => byte < 32 && byte !== 9 && byte !== 10 && byte !== 13)) return null;
  const start = ascii.replace(/^\u00ef\u00bb\u00bf/, "").replace(/^[\t\n\v\f\r ]+/, "")[0];
  if (start === "{" || start === "[") return ascii.includes('"traceEvents"') ? "a profiler's trace" : "JSON text";
  return start === "<" ? "an HTML or XML page" : "a text file: 'neutracer explain' finds PyTorch's out-of-memory message in a log";
};

// Names what is not a pickle. `packed`: the kind of compression that it was in, or null.
export const checkHead = (head, rules, packed = null) => {
  if (!head.length) {
    throw coreError(4, `${packed ? `the ${packed} data is empty, or breaks off before anything can be unpacked`
      : "the file is empty (0 bytes)"}: ${rules.expected}`, 0);
  }
  const text = String.fromCharCode(...head);
  let kind = rules.others.find(([begin]) => new RegExp(`^(?:${begin})`, "s").test(text))?.[1] ?? null;
  const again = packed && packedKind(head, rules);
  if (again) kind = `${again} data again`;
  kind ||= textKind(head);
  if (kind) {
    const subject = packed ? `what is packed with ${packed}` : "this";
    throw coreError(4, `${subject} is ${kind}${kind.includes(": ") ? "" : `: ${rules.expected}`}`, 0);
  }
};

// What is not packed: read when it is asked for.
const plain = (blob, most) => {
  const reader = new FileReaderSync();
  // `held` is what is left of a slice.
  let [at, slice, held] = [0, NOTHING, NOTHING];
  const end = Math.min(blob.size, most);
  return {
    read: (room) => {
      if (!held.length && at < end) {
        held = slice = new Uint8Array(reader.readAsArrayBuffer(blob.slice(at, Math.min(at + SLICE, end))));
        at += held.length;
      }
      const taken = Math.min(held.length, room.length);
      room.set(held.subarray(0, taken));
      held = held.subarray(taken);
      if (!held.length) { giveBack(slice); slice = held = NOTHING; }
      return taken;
    },
    allowance: () => 0,
    total: end,
  };
};

// Bytes that are unpacked at once where the end of a member is looked for, and how much finer
// each further look is.
const COARSE = 1 << 16;
const FINER = 4;
// Members are found one after the other, each in some milliseconds.
const MOST_MEMBERS = 100;

// How far what is packed from `from` on goes: all up to `known`, and from there on in steps, as
// many as a browser takes.
const taken = async (blob, from, known, step) => {
  const { readable, writable } = new DecompressionStream("gzip");
  readable.pipeTo(new WritableStream()).catch(() => {});
  const writer = writable.getWriter();
  const put = async (at, end) => writer.write(await blob.slice(at, end).arrayBuffer());
  let at = known;
  try {
    for (let early = from; early < known; early += SLICE) await put(early, Math.min(early + SLICE, known));
    for (; at < blob.size; at = Math.min(at + step, blob.size)) await put(at, Math.min(at + step, blob.size));
  } catch {
    // That step was one too many.
  }
  writer.abort().catch(() => {});
  return at;
};

// Where the member that begins at `from` ends, or is damaged. A browser refuses what stands
// behind a member, together with what it unpacked last.
const endOf = async (blob, from) => {
  let known = from;
  for (let step = COARSE; step >= 1; step >>= FINER) known = await taken(blob, from, known, step);
  return known;
};

// The pieces that are in `blob`, packed with gzip in one member or several, of which at most
// `bound` bytes. Behind the last member anything may stand.
const gunzip = async (blob, bound, rules, most) => {
  const chunks = [];
  let [from, given] = [0, 0];
  const unpack = async (end) => {
    const pieces = [];
    let size = given;
    const reader = blob.slice(from, end).stream().pipeThrough(new DecompressionStream("gzip")).getReader();
    try {
      while (size < most) {
        const { done, value } = await reader.read();
        if (done) break;
        size += value.length;
        if (size > bound) {
          throw coreError(LIMIT, `the gzip data unpacks to over ${rules.most_ratio.toLocaleString("en-US")} times its size`);
        }
        pieces.push(value);
      }
    } catch (error) {
      if (error.sentence) throw error;
      return { pieces, size, isWhole: false };
    }
    return { pieces, size, isWhole: true };
  };
  const isNext = async () => packedKind(new Uint8Array(await blob.slice(from, from + PEEK).arrayBuffer()), rules) === "gzip";
  let members = 0;
  do {
    if (++members > MOST_MEMBERS) {
      throw coreError(LIMIT, `the gzip data has more than ${MOST_MEMBERS} members: unpack the file first, or let neutracer view make a page of it`);
    }
    let end = blob.size;
    let member = await unpack(end);
    if (!member.isWhole) {
      end = await endOf(blob, from);
      if (end < blob.size) member = await unpack(end);
    }
    for (const piece of member.pieces) chunks.push(piece);
    [from, given] = [end, member.size];
    if (member.isWhole) continue;
    // What breaks off ends there.
    if (end === blob.size) break;
    if (!given) throw coreError(4, "the gzip data is damaged");
    chunks.push(new Error("damaged"));
    break;
  } while (given < most && await isNext());
  return chunks;
};

// Pieces for the core to read, each given back as soon as it is read.
const fromChunks = (chunks, allowance) => {
  let [next, from] = [0, 0];
  return {
    total: chunks.reduce((sum, chunk) => sum + (chunk.length ?? 0), 0),
    read: (room) => {
      let written = 0;
      while (written < room.length && next < chunks.length) {
        if (chunks[next] instanceof Error) throw coreError(4, "the gzip data is damaged");
        const piece = chunks[next].subarray(from, from + room.length - written);
        room.set(piece, written);
        written += piece.length;
        from += piece.length;
        if (from === chunks[next].length) { giveBack(chunks[next]); chunks[next++] = null; from = 0; }
      }
      return written;
    },
    allowance,
  };
};

// What is packed: unpacked first, within the bounds of `rules`, and read piece by piece.
const unpacked = async (blob, rules, most) => {
  const chunks = await gunzip(blob, Math.max(rules.ratio_floor, rules.most_ratio * blob.size), rules, most);
  const head = new Uint8Array(PEEK);
  let filled = 0;
  for (const chunk of chunks) {
    if (filled === PEEK || !chunk.length) break;
    const piece = chunk.subarray(0, PEEK - filled);
    head.set(piece, filled);
    filled += piece.length;
  }
  checkHead(head.subarray(0, filled), rules, "gzip");
  return fromChunks(chunks, () => rules.memory_floor + rules.memory_ratio * blob.size);
};

// The page's own snapshot: columns as the core packed them.
export const ownFeed = async (blob, rules) => fromChunks(await gunzip(blob, Infinity, rules, Infinity), () => 0);

// What the core reads of `blob`, of which at most `most` bytes.
export const feed = async (blob, rules, most) => {
  const head = new Uint8Array(await blob.slice(0, PEEK).arrayBuffer());
  checkHead(head, rules);
  const kind = packedKind(head, rules);
  if (kind === "gzip") return unpacked(blob, rules, most);
  if (kind) throw coreError(4, `a browser does not unpack ${kind}: unpack the file first, or let neutracer view make a page of it`);
  return plain(blob, most);
};
