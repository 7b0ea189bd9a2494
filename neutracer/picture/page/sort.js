// SPDX-License-Identifier: Apache-2.0
// Sorting millions of rows by a number each: by its digits, in time that grows with the rows.

const DIGITS = 11;
const SIZE = 1 << DIGITS;

// Puts `rows` in the order of `keys` (one a row, no NaN), equal keys as they were.
export const sortedBy = (rows, keys, down) => {
  const bits = new Uint32Array(Float64Array.from(keys).buffer);
  const count = rows.length;
  for (let i = 0; i < count; i++) {
    // As unsigned numbers of 64 bits, in the order of the doubles; turned round for `down`.
    const flip = bits[2 * i + 1] >>> 31 ? -1 : 0;
    bits[2 * i] ^= flip;
    bits[2 * i + 1] ^= flip | 0x80000000;
    if (down) { bits[2 * i] = ~bits[2 * i]; bits[2 * i + 1] = ~bits[2 * i + 1]; }
  }
  let [places, spare] = [Uint32Array.from({ length: count }, (_, i) => i), new Uint32Array(count)];
  const counts = new Uint32Array(SIZE);
  for (let at = 0; at < 64; at += DIGITS) {
    const digit = (i) => {
      if (at + DIGITS <= 32) return (bits[2 * i] >>> at) & (SIZE - 1);
      if (at >= 32) return (bits[2 * i + 1] >>> (at - 32)) & (SIZE - 1);
      return ((bits[2 * i] >>> at) | (bits[2 * i + 1] << (32 - at))) & (SIZE - 1);
    };
    counts.fill(0);
    for (let i = 0; i < count; i++) counts[digit(i)]++;
    if (counts.includes(count)) continue;
    for (let k = 0, sum = 0; k < SIZE; k++) { const own = counts[k]; counts[k] = sum; sum += own; }
    for (const place of places) spare[counts[digit(place)]++] = place;
    [places, spare] = [spare, places];
  }
  for (let i = 0; i < count; i++) spare[i] = rows[places[i]];
  return spare;
};
