// SPDX-License-Identifier: Apache-2.0
// What a link carries: tab, file, device, cursor, pinned block, time (t) and addresses (a) on
// the screen, range, search, axis, colours.

export const TABS = ["overview", "segments", "stacks", "allocations", "events", "settings", "compare"];

const pair = (text) => {
  const numbers = (text || "").split(",").map(Number);
  return numbers.length === 2 && numbers.every(Number.isFinite) && numbers[0] < numbers[1] ? numbers : null;
};

const whole = (text, most) => {
  const number = text === null || text === "" ? NaN : Number(text);
  return Number.isInteger(number) && number >= -1 && number < most ? number : null;
};

// The parts of a fragment that make sense for a page of `events` events and `rows` rows.
export const read = (fragment, events, rows) => {
  const words = new URLSearchParams(fragment.replace(/^#/, ""));
  return {
    tab: TABS.includes(words.get("tab")) ? words.get("tab") : null,
    event: whole(words.get("e"), events),
    pin: whole(words.get("pin"), rows),
    x: pair(words.get("t")), y: pair(words.get("a")), range: pair(words.get("range")),
    query: words.get("q"),
    axis: words.get("axis") === "event" ? "event" : words.get("axis") === "time" ? "time" : null,
    raw: words.get("raw") === "1",
    stacking: ["stacks", "categories", "sizes"].includes(words.get("by")) ? words.get("by") : null,
    device: /^\d{1,4}$/.test(words.get("device") ?? "") ? Number(words.get("device")) : null,
  };
};

const rounded = (numbers) => numbers.map((number) => Math.round(number * 100) / 100).join(",");

// The fragment of a state; what is as it was at first is left out.
export const write = (state, view, first) => {
  const words = new URLSearchParams();
  if (state.tab !== "overview") words.set("tab", state.tab);
  if (state.pin >= 0 || state.held || state.tab !== "overview") words.set("e", state.event);
  if (state.pin >= 0) words.set("pin", state.pin);
  if (view.x0 > 0 || view.x1 < first.x1) words.set("t", rounded([view.x0, view.x1]));
  if (view.y0 > 0 || view.y1 < first.y1) words.set("a", rounded([view.y0, view.y1]));
  if (state.range) words.set("range", rounded(state.range));
  if (state.query) words.set("q", state.query);
  if (state.axis !== first.axis) words.set("axis", state.axis);
  if (state.raw) words.set("raw", "1");
  if (state.stacking !== first.stacking) words.set("by", state.stacking);
  if (state.device !== first.device) words.set("device", state.device);
  return words.toString();
};
