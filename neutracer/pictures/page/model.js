// SPDX-License-Identifier: Apache-2.0
// The trace as typed arrays: what is alive when, where it is, who asked for it.

// Rows of one entry of the index that skips what is out of sight.
export const CHUNK = 256;

// Events between two known states of the groups.
const CHECKPOINT = 256;

const GROUPS = 6;

// Entries of a series' level of detail that one of the next level stands for.
const FANOUT = 16;

// `m` is filled anew where there is one: another device of the same file.
export const build = (meta, c, m = {}) => {
  for (const key of Object.keys(m)) delete m[key];
  const n = c["event.action"].length;
  const rows = c["alloc.size"].length;
  Object.assign(m, { meta, n, rows, action: c["event.action"], stackOfEvent: c["event.stack"] });
  m.isPartial = rows < meta.allocations;
  m.coarse = c.coarse ? { cells: c.coarse, width: meta.coarse[0], height: meta.coarse[1] } : null;
  m.number = c["event.number"] || null;
  m.time = c["event.time"] || null;
  // Where all times are the same, or there is one, they are no axis.
  m.isTimed = m.time !== null && m.time.some((time) => time > m.time[0]);
  m.address = c["alloc.address"];
  m.size = c["alloc.size"];
  m.slack = c["alloc.slack"];
  m.stream = c["alloc.stream"];
  m.made = c["alloc.made"];
  m.freed = c["alloc.freed"];
  m.stack = c["alloc.stack"];
  // Where nothing is known of any block, nothing is said.
  m.category = c["alloc.category"].some((code) => code !== c["alloc.category"][0])
    ? c["alloc.category"] : null;
  m.stackNode = c["stack.node"];
  m.stackPlace = c["stack.place"];
  m.nodeFrame = c["node.frame"];
  m.nodeParent = c["node.parent"];
  // A block is in use until its last free is complete; `end` is that event, or n.
  m.end = new Int32Array(rows);
  for (let i = 0; i < rows; i++) {
    const done = m.freed[i] === -1 ? -1 : m.freed[i] + c["alloc.waited"][i];
    m.end[i] = done >= 0 ? done : n;
  }
  m.segments = segmentsOf(c, n);
  m.oom = [...c["oom.event"]].map((event, i) => ({
    event, asked: c["oom.asked"][i], free: c["oom.free"][i],
  }));
  subjects(m);
  m.allocated = seriesOf(c, "allocated", n, m.size, m.made, m.freed);
  m.reserved = seriesOf(c, "reserved", n, m.segments.size, m.segments.made, m.segments.freed);
  m.startAllocated = c["start.allocated"][0];
  m.startReserved = c["start.reserved"][0];
  m.steps = new Float64Array(n);
  for (let i = 0; i < rows; i++) {
    if (m.made[i] >= 0) m.steps[m.made[i]] += m.size[i];
    if (m.freed[i] >= 0) m.steps[m.freed[i]] -= m.size[i];
  }
  m.tops = { allocated: tops(m.allocated), reserved: tops(m.reserved) };
  return m;
};

const segmentsOf = (c, n) => {
  const s = { count: c["segment.size"].length };
  for (const name of ["address", "size", "stream", "kind", "expandable", "pool_first",
    "pool_second", "made", "freed", "stack"]) s[name] = c[`segment.${name}`];
  s.end = Int32Array.from(s.freed, (event) => (event >= 0 ? event : n));
  return s;
};

const seriesOf = (c, name, n, sizes, made, freed) => {
  if (c[`series.${name}`]) return Float64Array.from(c[`series.${name}`]);
  const series = new Float64Array(n);
  for (let i = 0; i < sizes.length; i++) {
    if (made[i] >= 0) series[made[i]] += sizes[i];
    if (freed[i] >= 0) series[freed[i]] -= sizes[i];
  }
  let sum = c[`start.${name}`][0];
  for (let i = 0; i < n; i++) series[i] = sum += series[i];
  return series;
};

// By event, the allocation it makes or frees; or, below -1, the segment: -2 - its row.
const subjects = (m) => {
  m.subject = new Int32Array(m.n).fill(-1);
  for (let i = 0; i < m.rows; i++) {
    if (m.made[i] >= 0) m.subject[m.made[i]] = i;
    if (m.freed[i] >= 0) m.subject[m.freed[i]] = i;
    if (m.freed[i] !== -1 && m.end[i] < m.n) m.subject[m.end[i]] = i;
  }
  const { count, made, freed } = m.segments;
  for (let s = 0; s < count; s++) {
    if (made[s] >= 0) m.subject[made[s]] = -2 - s;
    if (freed[s] >= 0) m.subject[freed[s]] = -2 - s;
  }
};

// By allocation, what it is put together by, and how many of these there are.
const KEYS = {
  stacks: (m) => ({ of: (row) => m.stackPlace[m.stack[row]], count: m.meta.places.length }),
  categories: (m) => ({ of: (row) => m.category[row], count: m.meta.categories.length }),
};

// The keys that hold the most bytes over the most events, and the rest as one group. What
// is of no known category is rest.
export const group = (m, kind) => {
  const key = KEYS[kind](m);
  const weights = new Float64Array(key.count);
  for (let i = 0; i < m.rows; i++) {
    const last = m.freed[i] === -1 ? m.n : m.freed[i];
    weights[key.of(i)] += m.size[i] * Math.max(last - Math.max(m.made[i], 0), 1);
  }
  const order = [...weights.keys()].filter((k) => weights[k] > 0).sort((a, b) => weights[b] - weights[a]);
  const known = kind === "categories" ? order.filter((k) => k) : order.slice(0, GROUPS);
  m.groupKind = kind;
  m.groups = known;
  m.hasOthers = m.isPartial || order.length > known.length;
  const groupOfKey = new Uint8Array(key.count).fill(known.length);
  known.forEach((k, place) => { groupOfKey[k] = place; });
  const width = known.length + 1;
  m.groupWidth = width;
  m.stepGroup = new Uint8Array(m.n);
  const state = new Float64Array(width);
  for (let i = 0; i < m.rows; i++) {
    const place = groupOfKey[key.of(i)];
    if (m.made[i] >= 0) m.stepGroup[m.made[i]] = place;
    else if (m.freed[i] !== -2) state[place] += m.size[i];
    if (m.freed[i] >= 0) m.stepGroup[m.freed[i]] = place;
  }
  m.checkpoints = new Float64Array((Math.floor(m.n / CHECKPOINT) + 1) * width);
  for (let e = 0; e < m.n; e++) {
    if (e % CHECKPOINT === 0) m.checkpoints.set(state, (e / CHECKPOINT) * width);
    state[m.stepGroup[e]] += m.steps[e];
  }
  if (m.n === 0) m.checkpoints.set(state);
};

// The name of a group, and a search that finds what is in it.
export const groupName = (m, key) => (m.groupKind === "stacks" ? placeName(m, key)
  : m.meta.categories[key].replaceAll("_", " "));

export const groupQuery = (m, key) => (m.groupKind === "stacks"
  ? `"${placeName(m, key).replaceAll('"', "")}"` : `category:${m.meta.categories[key]}`);

// Bytes of each group after ascending events, handed to `take(index, sums)`.
export const groupSums = (m, events, take) => {
  const state = m.checkpoints.slice(0, m.groupWidth);
  let next = 0;
  for (let k = 0; k < events.length; k++) {
    const jump = Math.floor((events[k] + 1) / CHECKPOINT) * CHECKPOINT;
    if (jump > next && jump < m.n) {
      const from = (jump / CHECKPOINT) * m.groupWidth;
      for (let g = 0; g < m.groupWidth; g++) state[g] = m.checkpoints[from + g];
      next = jump;
    }
    for (; next <= events[k]; next++) state[m.stepGroup[next]] += m.steps[next];
    take(k, state);
  }
};

// The event at which a series is highest, by stretches of 16, 256, ... events.
const tops = (series) => {
  const levels = [];
  let below = null;
  for (let count = series.length; count > FANOUT;) {
    const found = new Int32Array(Math.ceil(count / FANOUT));
    for (let k = 0; k < found.length; k++) {
      let best = below ? below[k * FANOUT] : k * FANOUT;
      const stop = Math.min((k + 1) * FANOUT, count);
      for (let i = k * FANOUT + 1; i < stop; i++) {
        const at = below ? below[i] : i;
        if (series[at] > series[best]) best = at;
      }
      found[k] = best;
    }
    levels.push(found);
    below = found;
    count = found.length;
  }
  return levels;
};

// The event in [first, stop) at which a series is highest; first where there is none.
export const highest = (m, name, first, stop) => {
  const series = m[name];
  const levels = m.tops[name];
  let best = first;
  // What does not fill an entry of the next level is looked at in this one, at both ends.
  for (let level = 0; first < stop; level++) {
    const entries = level ? levels[level - 1] : null;
    const isLast = level === levels.length;
    while (first < stop && (first % FANOUT || isLast)) {
      const event = entries ? entries[first] : first;
      if (series[event] > series[best]) best = event;
      first += 1;
    }
    while (first < stop && stop % FANOUT) {
      stop -= 1;
      const event = entries ? entries[stop] : stop;
      if (series[event] > series[best]) best = event;
    }
    first /= FANOUT;
    stop /= FANOUT;
  }
  return best;
};

// ---- where: addresses with what was never reserved taken out, and the index ----

// `raw` keeps the gaps.
export const place = (m, raw) => {
  const { count, address, size } = m.segments;
  const order = [...Array(count).keys()].sort((a, b) => address[a] - address[b]);
  const ranges = [];
  for (const s of order) {
    const last = ranges[ranges.length - 1];
    const stop = address[s] + size[s];
    if (last && address[s] <= last.stop) last.stop = Math.max(last.stop, stop);
    else ranges.push({ start: address[s], stop, y: 0 });
  }
  // Where an address stands on the axis without gaps, which the coarse picture has.
  const packed = ranges.map(({ start, stop }) => ({ start, stop, below: 0 }));
  m.compact = 0;
  for (const range of packed) { range.below = m.compact; m.compact += range.stop - range.start; }
  m.compact ||= 1;
  m.compactOf = (y) => {
    if (!raw || !packed.length) return y;
    const at = y + packed[0].start;
    const range = packed.findLast(({ start }) => start <= at) || packed[0];
    return range.below + Math.min(at - range.start, range.stop - range.start);
  };
  if (raw && ranges.length) {
    ranges.splice(0, ranges.length, {
      start: ranges[0].start, stop: ranges[ranges.length - 1].stop, y: 0,
    });
  }
  let height = 0;
  for (const range of ranges) { range.y = height; height += range.stop - range.start; }
  m.ranges = ranges;
  m.height = height || 1;
  m.borders = [...new Set(order.map((s) => yOf(m, address[s])))].filter((y) => y > 0);
  m.y = Float64Array.from(m.address, (at) => yOf(m, at));
  const s = m.segments;
  s.y = Float64Array.from(address, (at) => yOf(m, at));
  s.order = order;
  s.reach = new Float64Array(count);
  order.forEach((i, k) => { s.reach[k] = Math.max(k ? s.reach[k - 1] : 0, s.y[i] + size[i]); });
  index(m);
};

export const yOf = (m, address) => {
  let [low, high] = [0, m.ranges.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (m.ranges[middle].stop <= address) low = middle + 1; else high = middle;
  }
  const range = m.ranges[low];
  return range && range.start <= address ? range.y + address - range.start : -1;
};

const index = (m) => {
  const chunks = Math.ceil(m.rows / CHUNK);
  const k = { first: new Int32Array(chunks), last: new Int32Array(chunks) };
  k.low = new Float64Array(chunks).fill(Infinity);
  k.high = new Float64Array(chunks);
  k.first.fill(0x7fffffff);
  k.last.fill(-1);
  for (let i = 0; i < m.rows; i++) {
    const at = Math.floor(i / CHUNK);
    k.first[at] = Math.min(k.first[at], m.made[i]);
    k.last[at] = Math.max(k.last[at], m.end[i]);
    k.low[at] = Math.min(k.low[at], m.y[i]);
    k.high[at] = Math.max(k.high[at], m.y[i] + m.size[i]);
  }
  m.index = k;
};

// Calls `take(row)` for rows in use at some event of [first, last], within [low, high) of y.
export const each = (m, first, last, low, high, take) => {
  const k = m.index;
  for (let chunk = 0; chunk < k.first.length; chunk++) {
    if (k.first[chunk] > last || k.last[chunk] <= first) continue;
    if (k.low[chunk] >= high || k.high[chunk] <= low) continue;
    const stop = Math.min((chunk + 1) * CHUNK, m.rows);
    for (let i = chunk * CHUNK; i < stop; i++) {
      if (m.made[i] <= last && m.end[i] > first && m.y[i] < high && m.y[i] + m.size[i] > low) {
        take(i);
      }
    }
  }
};

// ---- questions about one moment ----

export const isAllocated = (m, row, event) =>
  m.made[row] <= event && (m.freed[row] === -1 || m.freed[row] > event);

export const liveRows = (m, event) => {
  const found = [];
  each(m, event, event, -Infinity, Infinity, (row) => found.push(row));
  return found;
};

export const blockAt = (m, event, y) => {
  let found = -1;
  each(m, event, event, y, y + 1e-9, (row) => { found = row; });
  return found;
};

// The segment over `y` at an event. Segments stand in the order of y; `reach` is how far those
// up to a place reach, so that the walk back ends early.
export const segmentAt = (m, event, y) => {
  const s = m.segments;
  let [low, high] = [0, s.count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (s.y[s.order[middle]] <= y) low = middle + 1; else high = middle;
  }
  for (let k = low - 1; k >= 0 && s.reach[k] > y; k--) {
    const i = s.order[k];
    if (s.made[i] <= event && s.end[i] > event && y < s.y[i] + s.size[i]) return i;
  }
  return -1;
};

export const poolOf = (m, segment) => {
  const s = m.segments;
  if (segment < 0) return "unknown";
  const kind = s.kind[segment] ? "large" : "small";
  const [a, b] = [s.pool_first[segment], s.pool_second[segment]];
  return a || b ? `private (${a}, ${b}) ${kind}` : kind;
};

// The live segments in the order of their addresses, neighbours of an expandable one joined,
// each with its blocks and holes.
export const layoutAt = (m, event) => {
  const s = m.segments;
  const live = [...Array(s.count).keys()]
    .filter((i) => s.made[i] <= event && s.end[i] > event)
    .sort((a, b) => s.address[a] - s.address[b]);
  const found = [];
  for (const i of live) {
    const last = found[found.length - 1];
    const joins = last && s.expandable[i] && s.expandable[last.row]
      && last.address + last.size === s.address[i] && s.stream[i] === s.stream[last.row];
    if (joins) last.size += s.size[i];
    else found.push({ row: i, address: s.address[i], size: s.size[i], blocks: [], used: 0 });
  }
  const rows = liveRows(m, event).sort((a, b) => m.address[a] - m.address[b]);
  let at = 0;
  for (const row of rows) {
    while (at < found.length && found[at].address + found[at].size <= m.address[row]) at++;
    const segment = found[at];
    if (!segment || segment.address > m.address[row]) continue;
    segment.blocks.push(row);
    segment.used += m.size[row];
  }
  for (const segment of found) segment.hole = largestHole(m, segment);
  return found;
};

const largestHole = (m, segment) => {
  let [at, best] = [segment.address, 0];
  for (const row of segment.blocks) {
    best = Math.max(best, m.address[row] - at);
    at = m.address[row] + m.size[row];
  }
  return Math.max(best, segment.address + segment.size - at);
};

// Bytes by place: at an event, or on the mean over a range of coordinates.
export const holders = (m, event) => ranked(m, (add) => {
  each(m, event, event, -Infinity, Infinity, (row) => {
    if (isAllocated(m, row, event)) add(row, m.size[row]);
  });
});

export const holdersOver = (m, axis, first, last, low, high) => ranked(m, (add) => {
  const span = Math.max(last - first, 1e-9);
  each(m, axis.eventAt(first), axis.eventAt(last), low, high, (row) => {
    const from = Math.max(axis.edges[m.made[row] + 1], first);
    const to = Math.min(axis.edges[m.end[row] + 1], last);
    if (to >= from) add(row, (m.size[row] * (to - from)) / span);
  });
});

const ranked = (m, fill) => {
  const sums = new Map();
  fill((row, held) => {
    const key = m.stackPlace[m.stack[row]];
    const entry = sums.get(key) || { place: key, bytes: 0, count: 0 };
    entry.bytes += held;
    entry.count += 1;
    sums.set(key, entry);
  });
  return [...sums.values()].sort((a, b) => b.bytes - a.bytes);
};

// ---- words ----

export const framesOf = (m, stack) => {
  const found = [];
  for (let node = m.stackNode[stack]; node; node = m.nodeParent[node]) {
    found.push(m.meta.frames[m.nodeFrame[node]]);
  }
  return found;
};

export const baseName = (file) => file.slice(Math.max(file.lastIndexOf("/"), file.lastIndexOf("\\")) + 1);

export const whereOf = ([, file, line]) => (line > 0 ? `${baseName(file)}:${line}` : baseName(file));

export const placeName = (m, place) => {
  const [name, file, line, caller] = m.meta.places[place];
  const where = file ? `${name} ${whereOf([name, file, line])}` : name;
  return caller ? `${where}, from ${caller}` : where;
};

export const eventNumber = (m, event) => (m.number && event >= 0 && event < m.n ? m.number[event] : event);

export const hexAddress = (m, offset) => `0x${(BigInt(m.meta.base) + BigInt(offset)).toString(16)}`;
