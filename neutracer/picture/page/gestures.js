// SPDX-License-Identifier: Apache-2.0
// Two fingers: what they hold of the picture stays under them, so that spreading zooms and
// moving pans, each direction by itself.

// Pixels that the fingers must be apart in a direction to zoom it.
const APART = 36;

// The view of one direction: `held` are the coordinates under the fingers when they came
// down, `now` where the fingers are, `origin` and `length` of the plot, all in pixels; a
// `length` below zero has its coordinates grow towards smaller pixels.
export const pinched = (view, held, now, origin, length, apart) => {
  const own = (view[1] - view[0]) / length;
  const per = apart ? (held[1] - held[0]) / (now[1] - now[0]) : own;
  if (!(per * length > 0)) return view;
  const middle = (held[0] + held[1]) / 2 - ((now[0] + now[1]) / 2 - origin) * per;
  return [middle, middle + per * length];
};

// `spots(event)` tells px, py, x, y of a pointer; `plot()` the frame in pixels and the view.
export const twoFingers = (spots, plot, look) => {
  const fingers = new Map();
  let held = null;
  const pair = () => [...fingers.values()].slice(0, 2);
  return {
    active: () => fingers.size > 1,
    down: (event) => {
      if (event.pointerType !== "touch") return;
      fingers.set(event.pointerId, spots(event));
      if (fingers.size !== 2) return;
      const [a, b] = pair();
      held = {
        x: [a.x, b.x], y: [a.y, b.y], view: { ...plot().view },
        wide: Math.abs(a.px - b.px) > APART, tall: Math.abs(a.py - b.py) > APART,
      };
    },
    move: (event) => {
      if (!fingers.has(event.pointerId)) return;
      fingers.set(event.pointerId, spots(event));
      if (fingers.size < 2) return;
      const [a, b] = pair();
      const { left, width, bottom, height } = plot();
      const { view } = held;
      // Fingers that meet would zoom without end.
      const [wide, tall] = [held.wide && a.px !== b.px, held.tall && a.py !== b.py];
      look(
        ...pinched([view.x0, view.x1], held.x, [a.px, b.px], left, width, wide),
        ...pinched([view.y0, view.y1], held.y, [a.py, b.py], bottom, -height, tall));
    },
    up: (event) => { fingers.delete(event.pointerId); },
  };
};
