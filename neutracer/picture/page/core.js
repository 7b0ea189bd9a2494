// SPDX-License-Identifier: Apache-2.0
// The core as a module of WebAssembly: calls, errors as sentences, columns by name.

const OK = 0;
export const LIMIT = 2;
const VIEWS = [null, Uint8Array, Int32Array, Uint32Array, Uint32Array, Int32Array, Float64Array];
const [U64, I64] = [4, 5];
const NO_OFFSET = 2 ** 32;
const DECODER = new TextDecoder();

// What a call of the core refused. `offset` is a byte of the input, or null; of the first byte
// nothing need be said.
export const coreError = (status, message, offset = null) => Object.assign(
  new Error(!offset ? message : `${message} (at byte ${offset.toLocaleString("en-US")})`),
  { status, sentence: true });

// `host`: read(room) fills a Uint8Array and says how much of it, write(bytes), allowance().
// `module`: its bytes.
export const makeCore = async (module, host) => {
  let memory = null;
  const page = {
    read: (at, size) => {
      try {
        return host.read(new Uint8Array(memory.buffer, at, size));
      } catch (error) {
        host.failed = error;
        return -1;
      }
    },
    write: (at, size) => { host.write(new Uint8Array(memory.buffer, at, size).slice()); return 0; },
    allowance: () => host.allowance(),
  };
  // The C library asks for a terminal, which there is none of.
  const none = new Proxy({}, { get: () => () => 52 });
  const { instance } = await WebAssembly.instantiate(module, { page, wasi_snapshot_preview1: none });
  const { exports } = instance;
  memory = exports.memory;

  const text = (at, length) => DECODER.decode(new Uint8Array(memory.buffer, at, length));
  const zeroEnded = (at) => {
    const bytes = new Uint8Array(memory.buffer, at);
    return text(at, bytes.indexOf(0));
  };
  const fail = (status) => {
    if (host.failed) {
      const error = host.failed;
      host.failed = null;
      throw error;
    }
    const at = exports.error();
    const words = new Uint32Array(memory.buffer, at, 4);
    const offset = words[2] + words[3] * 2 ** 32;
    throw coreError(status, zeroEnded(at + 16) || "there is not enough memory",
      offset < NO_OFFSET * 2 ** 20 ? offset : null);
  };
  const figures = (count) => [...new Float64Array(memory.buffer, exports.figures(), count)];
  const stored = (bytes, use) => {
    const at = exports.allocate(Math.max(bytes.byteLength, 1));
    if (!at) throw coreError(LIMIT, "there is not enough memory");
    new Uint8Array(memory.buffer, at, bytes.byteLength)
      .set(new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength));
    try {
      return use(at);
    } finally {
      exports.release(at, Math.max(bytes.byteLength, 1));
    }
  };

  // A column as it lies in memory: valid until the next call. Of 64 bits `at(i)` is a double,
  // whose last bits are lost above 2^53, and `big(i)` exact.
  const shown = (record) => {
    const [data, count, type] = new Uint32Array(memory.buffer, record, 3);
    if (!count) return null;
    if (type !== U64 && type !== I64) {
      const view = new VIEWS[type](memory.buffer, data, count);
      return { length: count, view, at: (i) => view[i] };
    }
    const low = new Uint32Array(memory.buffer, data, 2 * count);
    const high = type === U64 ? low : new Int32Array(memory.buffer, data, 2 * count);
    const big = type === U64 ? BigUint64Array : BigInt64Array;
    return {
      length: count, low,
      at: (i) => low[2 * i] + high[2 * i + 1] * 4294967296,
      big: (i) => new big(memory.buffer, data, count)[i],
    };
  };
  const column = (name) => stored(new TextEncoder().encode(`${name}\0`), (at) => shown(exports.column(at)));
  return {
    exports, figures, stored, column, text, zeroEnded,
    // Calls what gives a status.
    call: (name, ...given) => {
      const status = exports[name](...given);
      if (status !== OK) fail(status);
    },
    // Calls what gives a place in memory.
    place: (name) => {
      const at = exports[name]();
      if (!at) throw coreError(LIMIT, "there is not enough memory");
      return at;
    },
    answer: (which) => shown(exports.answer(which)),
    string: (id) => { const at = exports.string(id); return at ? text(at, figures(1)[0]) : ""; },
    stringCount: () => { exports.string(0); return figures(2)[1]; },
    action: (code) => { const at = exports.action(code); return at ? text(at, figures(1)[0]) : null; },
    room: (at, type, count) => new type(memory.buffer, at, count),
  };
};
