// SPDX-License-Identifier: Apache-2.0
// What a file says of a device that no allocator can have done, in the words of trace/flaws.py.

import { HOST, bytes, count } from "./units.js";

const [KIND, DEVICE, COUNT, BYTES, NUMBERS] = [0, 1, 2, 3, 4];

// The headline, and a sentence for each; without any of a sound file.
export const flawsOf = ({ core, rules, device }) => {
  const { words, of_segments: ofSegments, no_segments: noSegments, only_history: onlyHistory, read_with_care: care } = rules.flaws;
  core.call("flaws");
  const [isListed] = core.figures(1);
  const numbers = core.answer(0)?.view ?? [];
  const found = [];
  for (let k = 0; k < numbers.length; k += NUMBERS) {
    if (numbers[k + DEVICE] !== (device === HOST ? 0 : device)) continue;
    const [kind, one, more, rest] = words[numbers[k + KIND]];
    const [times, size] = [numbers[k + COUNT], bytes(numbers[k + BYTES])];
    found.push({ kind, times, size, text: `${count(times)} ${times === 1 ? one : more} ${rest.replace("{bytes}", size)}` });
  }
  const left = found.find(({ kind }) => kind === "live_set");
  const told = left && !isListed ? found.filter(({ kind }) => !ofSegments.includes(kind)) : found;
  const notes = told.map(({ text }) => `${text}.`);
  if (told === found) return { message: care, notes };
  const blocks = `${count(left.times)} block${left.times === 1 ? "" : "s"}`;
  notes.unshift(`${noSegments.replace("{count}", blocks).replace("{bytes}", left.size)}.`);
  return { message: notes.length > 1 ? care : onlyHistory, notes };
};
