// SPDX-License-Identifier: Apache-2.0
// Bytes, counts, times and shares as people read them, and sizes read back.

// The number that the host's pinned memory has beside those of devices.
export const HOST = 1024;

export const deviceName = (number) => (number === HOST ? "pinned host memory" : `cuda:${number}`);

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

const FORMATS = [0, 1, 2, 3].map((places) => new Intl.NumberFormat("en-US", {
  minimumFractionDigits: places, maximumFractionDigits: places, roundingMode: "halfEven",
}));

// A number with so many places, 3 at most.
export const digits = (value, places) => FORMATS[places].format(value);

export const count = (number) => digits(Math.round(number), 0);

// A count with its word, which takes an s but for one.
export const many = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

// Three digits that matter, and none after the point where the number is whole.
const short = (value) => {
  const whole = Number.isInteger(value);
  return digits(value, whole || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2);
};

// MiB is kept up to 9,999, so that the figures of one page stay in one unit.
export const bytes = (number) => {
  const size = Math.abs(number);
  const limits = [1024, 1024, 10000, 1024];
  let unit = 0;
  while (unit < 4 && size / 1024 ** unit >= limits[unit] - 0.5) unit++;
  return `${number < 0 ? "-" : ""}${short(size / 1024 ** unit)} ${UNITS[unit]}`;
};

export const duration = (us) => {
  if (us < 1000) return `${count(us)} µs`;
  if (us < 1e6) return `${short(us / 1e3)} ms`;
  if (us < 6e7) return `${short(us / 1e6)} s`;
  const minutes = Math.floor(us / 6e7);
  return `${count(minutes)} min ${Math.round(us / 1e6 - minutes * 60)} s`;
};

// It is 0 or 100 only where the ratio is 0 or 1.
export const share = (ratio) => {
  if (ratio > 0 && ratio < 0.001) return "<0.1 %";
  return ratio > 0.999 && ratio < 1 ? ">99.9 %" : `${(ratio * 100).toFixed(1)} %`;
};

const FACTORS = { "": 1, b: 1, k: 1024, kb: 1e3, kib: 1024 };
["m", "g", "t"].forEach((letter, power) => {
  FACTORS[letter] = FACTORS[`${letter}ib`] = 1024 ** (power + 2);
  FACTORS[`${letter}b`] = 1000 ** (power + 2);
});

const SECONDS = { us: 1, µs: 1, ms: 1e3, s: 1e6, min: 6e7, h: 3.6e9 };

// Commas stand between thousands: "1,5" is a number to nobody.
const read = (text, factors) => {
  const match = /^((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?)\s*([a-zµ]*)$/.exec(text.trim().toLowerCase());
  const factor = match ? factors[match[2]] : undefined;
  return factor === undefined ? null : Number(match[1].replaceAll(",", "")) * factor;
};

// "16MiB" as bytes, "3ms" as microseconds; null for what is neither.
export const parseBytes = (text) => read(text, FACTORS);
export const parseDuration = (text) => read(text, SECONDS);

// Round steps of an axis: 1, 2, 5 times a power of ten, or powers of two for bytes.
export const steps = (low, high, most, binary = false) => {
  const raw = (high - low) / Math.max(most, 1);
  if (!(raw > 0)) return [low];
  let step = Math.max(2 ** Math.ceil(Math.log2(raw)), 1);
  if (!binary) {
    const power = 10 ** Math.floor(Math.log10(raw));
    step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  }
  const found = [];
  // No tick is at minus zero.
  for (let at = Math.ceil(low / step) * step + 0; at <= high; at += step) found.push(at);
  return found;
};

// Sizes at the ticks of one axis: where they would look the same, all but the first say how far
// they are above it.
export const byteTicks = (values) => {
  const words = values.map(bytes);
  return new Set(words).size === words.length ? words
    : values.map((value, k) => (k ? `+${bytes(value - values[0])}` : words[0]));
};

// Settings for a reader; a file that states none may show one by what it has.
export const settingsWords = ({ text, isStated }) => (isStated ? text || "default settings"
  : text ? `${text}, as its trace shows` : "settings not recorded");
