// SPDX-License-Identifier: Apache-2.0
// The payload: base64 of a deflated stream of a JSON header and columns by planes.

const bytesOf = (text) => {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const packed = atob(text);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = packed.charCodeAt(i);
  return bytes;
};

const WIDTHS = { B: 1, b: 1, H: 2, h: 2, I: 4, i: 4, q: 8 };

// One column as Int32Array, or as Float64Array where its numbers need more than 32 bits.
const column = (bytes, spec) => {
  const width = WIDTHS[spec.type];
  const { count, delta, scale = 1 } = spec;
  const out = spec.wide ? new Float64Array(count) : new Int32Array(count);
  const signed = spec.type >= "a";
  const plane = (k) => bytes.subarray(k * count, (k + 1) * count);
  const [p0, p1, p2, p3] = [plane(0), plane(1), plane(2), plane(3)];
  const high = width === 8 ? [plane(4), plane(5), plane(6), plane(7)] : null;
  let sum = 0;
  for (let i = 0; i < count; i++) {
    let value = p0[i];
    if (width === 1) {
      if (signed) value = (value << 24) >> 24;
    } else if (width === 2) {
      value |= p1[i] << 8;
      if (signed) value = (value << 16) >> 16;
    } else {
      value |= (p1[i] << 8) | (p2[i] << 16) | (p3[i] << 24);
      if (high) {
        const top = high[0][i] | (high[1][i] << 8) | (high[2][i] << 16) | (high[3][i] << 24);
        value = (value >>> 0) + top * 4294967296;
      } else if (!signed) value >>>= 0;
    }
    sum = delta ? sum + value : value;
    out[i] = sum * scale;
  }
  return out;
};

// The header, and the columns by name.
export const decode = async (text) => {
  const source = new Blob([bytesOf(text)]).stream();
  const stream = source.pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const meta = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const columns = {};
  let at = 4 + length;
  for (const spec of meta.columns) {
    const size = spec.count * WIDTHS[spec.type];
    columns[spec.name] = column(bytes.subarray(at, at + size), spec);
    at += size;
  }
  return { meta, columns };
};
