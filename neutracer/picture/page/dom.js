// SPDX-License-Identifier: Apache-2.0
// Elements out of plain text. Text from the file is only ever set as text.

export const byId = (id) => document.getElementById(id);

export const made = (parent, tag, text = "", name = "") => {
  const element = document.createElement(tag);
  element.textContent = text;
  if (name) element.className = name;
  if (parent) parent.append(element);
  return element;
};

// The parts of a text that a search finds stand out; `words` are in lower case.
export const searched = (parent, text, words) => {
  const lower = text.toLowerCase();
  let at = 0;
  const next = () => words.map((word) => [lower.indexOf(word, at), word.length]).filter(([from]) => from >= 0)
    .sort((a, b) => a[0] - b[0] || b[1] - a[1])[0];
  // A letter that grows in lower case would move what is behind it.
  for (let one = lower.length === text.length ? next() : null; one; one = next()) {
    parent.append(text.slice(at, one[0]));
    made(parent, "mark", text.slice(one[0], one[0] + one[1]));
    at = one[0] + one[1];
  }
  parent.append(text.slice(at));
};

// A function and where it is: for what there is no room, the function is cut, and never the line.
export const placed = (parent, name, where = "", words = []) => {
  const isApart = where !== "" && name.endsWith(where);
  const box = made(parent, "span", "", "place");
  const parts = isApart ? [name.slice(0, -where.length).trimEnd(), where] : [name];
  const lower = parts.map((part) => part.toLowerCase());
  // What reaches over both is in neither.
  const isOver = words.some((word) => name.toLowerCase().includes(word) && !lower.some((part) => part.includes(word)));
  searched(made(box, "span", "", "fn"), parts[0], isOver ? [lower[0]] : words);
  if (!isApart) return box;
  box.append(" ");
  searched(made(made(box, "span", "", "at"), "bdi"), where, isOver ? [lower[1]] : words);
  return box;
};

export const facts = (parent, pairs) => {
  const list = made(parent, "dl");
  for (const [name, value] of pairs) {
    made(list, "dt", name);
    made(list, "dd", value);
  }
  return list;
};

// A function that runs at most once a frame, with a `now` to run it at once.
export const perFrame = (work) => {
  let waiting = 0;
  const run = () => { waiting = 0; work(); };
  const ask = () => { if (!waiting) waiting = requestAnimationFrame(run); };
  ask.now = () => { cancelAnimationFrame(waiting); run(); };
  return ask;
};

// A canvas as large as its element, in pixels of the screen; at most two a point.
export const fitCanvas = (canvas, width, height) => {
  const scale = Math.min(window.devicePixelRatio || 1, 2);
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  const isNew = canvas.width !== w || canvas.height !== h;
  if (isNew) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d", { alpha: canvas.id !== "base" });
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  return { pen, scale, isNew };
};

// A text for so many pixels, cut in its middle: names of ranks differ at their ends.
export const fitted = (pen, text, room) => {
  const letters = [...text];
  const cut = (kept) => [...letters.slice(0, Math.ceil(kept / 2)), "…",
    ...letters.slice(letters.length - Math.floor(kept / 2))].join("");
  const fits = (words) => pen.measureText(words).width <= room;
  if (fits(text)) return text;
  let [low, high] = [0, letters.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (fits(cut(middle))) low = middle; else high = middle - 1;
  }
  return cut(low);
};

// The palette that is in force, out of the style sheet.
export const palette = () => {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(`--${name}`).trim();
  const colours = { blues: [0, 1, 2, 3, 4].map((i) => get(`b${i}`)) };
  colours.hues = [0, 1, 2, 3, 4, 5, 6, 7].map((i) => get(`h${i}`));
  for (const name of ["page", "ink", "grey", "line", "surface", "sand", "sand-ink", "red"]) {
    colours[name] = get(name);
  }
  return colours;
};

const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

// The blue scale at a share between 0 and 1, as red, green, blue.
export const blueAt = (colours, share) => {
  const at = Math.min(Math.max(share, 0), 1) * 4;
  const low = Math.min(Math.floor(at), 3);
  const [a, b] = [channels(colours.blues[low]), channels(colours.blues[low + 1])];
  return a.map((channel, i) => Math.round(channel + (b[i] - channel) * (at - low)));
};

export const rgb = (parts) => `rgb(${parts.join(",")})`;

export const packed = (parts) => ((255 << 24) | (parts[2] << 16) | (parts[1] << 8) | parts[0]) >>> 0;

export const ofHex = (colour) => channels(colour);

// Between two colours, as red, green, blue.
export const mixed = (a, b, share = 0.5) => {
  const [x, y] = [channels(a), channels(b)];
  return x.map((channel, i) => Math.round(channel + (y[i] - channel) * share));
};
