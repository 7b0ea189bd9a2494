// SPDX-License-Identifier: Apache-2.0
// Views of an axis: whole positions, as the core's pictures count them.

// A view with its ends kept inside, and no narrower than a few steps of the axis.
export const clampView = (low, high, least, most, narrowest) => {
  let width = Math.min(Math.max(high - low, narrowest), most - least);
  if (!(width > 0)) width = most - least;
  const start = Math.min(Math.max((low + high - width) / 2, least), most - width);
  return [start, start + width];
};

export const zoomed = ([low, high], factor, at) => [at - (at - low) / factor, at + (high - at) / factor];

// The whole positions around a view, of which there is at least one.
export const wholeView = (low, high, most) => {
  const first = Math.min(Math.max(Math.floor(low), 0), most - 1);
  return [first, Math.min(Math.max(Math.ceil(high), first + 1), most)];
};
