// SPDX-License-Identifier: Apache-2.0
// Pan, zoom, search and details of an object graph's page. Text from the data is only ever
// set as text.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const stage = document.getElementById("stage");
  const svg = stage.querySelector("svg");
  const panel = document.getElementById("panel");
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const boxes = [...svg.querySelectorAll(".nt-node")];
  const boxOf = new Map(boxes.map((box) => [Number(box.dataset.node), box]));
  // A point is 4/3 of a pixel: no small graph is blown up beyond that.
  const LARGEST = 4 / 3;

  // ---- pan and zoom: a view is the part of the plane that fills the stage ----

  const [left, top, width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  let view = { x: left, y: top, scale: 1 };

  const draw = () => {
    const extent = [stage.clientWidth / view.scale, stage.clientHeight / view.scale];
    svg.setAttribute("viewBox", [view.x, view.y, ...extent].join(" "));
  };
  const fit = () => {
    const scale = Math.min(stage.clientWidth / width, stage.clientHeight / height, LARGEST);
    view = {
      x: left + width / 2 - stage.clientWidth / scale / 2,
      y: top + height / 2 - stage.clientHeight / scale / 2,
      scale,
    };
    draw();
  };
  const zoom = (factor, px = stage.clientWidth / 2, py = stage.clientHeight / 2) => {
    const scale = Math.min(Math.max(view.scale * factor, 0.01), 20);
    view.x += px / view.scale - px / scale;
    view.y += py / view.scale - py / scale;
    view.scale = scale;
    draw();
  };
  const show = (number) => {
    // What is looked for is to be read.
    if (view.scale < 1) zoom(1 / view.scale);
    const box = boxOf.get(number).getBoundingClientRect();
    const frame = stage.getBoundingClientRect();
    view.x += (box.x + box.width / 2 - frame.x - frame.width / 2) / view.scale;
    view.y += (box.y + box.height / 2 - frame.y - frame.height / 2) / view.scale;
    draw();
  };

  stage.classList.add("live");
  svg.removeAttribute("width");
  svg.removeAttribute("height");
  svg.removeAttribute("role");
  document.querySelector(".bar").hidden = false;
  panel.hidden = false;
  fit();
  let fitted = true;
  new ResizeObserver(() => (fitted ? fit() : draw())).observe(stage);

  stage.addEventListener("wheel", (event) => {
    event.preventDefault();
    fitted = false;
    const frame = stage.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY / 500), event.clientX - frame.x, event.clientY - frame.y);
  }, { passive: false });

  let held = null;
  stage.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, y: event.clientY, moved: false };
  });
  stage.addEventListener("pointermove", (event) => {
    if (held === null) return;
    const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
    // A hand that clicks moves a little.
    if (!held.moved && Math.hypot(dx, dy) < 4) return;
    if (!held.moved) stage.setPointerCapture(event.pointerId);
    stage.classList.add("held");
    fitted = false;
    held = { x: event.clientX, y: event.clientY, moved: true };
    view.x -= dx / view.scale;
    view.y -= dy / view.scale;
    draw();
  });
  stage.addEventListener("pointerup", (event) => {
    const clicked = held !== null && !held.moved;
    held = null;
    stage.classList.remove("held");
    const box = clicked ? event.target.closest(".nt-node") : null;
    if (clicked) choose(box ? Number(box.dataset.node) : null);
  });
  stage.addEventListener("pointercancel", () => { held = null; });

  // ---- details ----

  const made = (tag, text = "", parent = null) => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };
  const references = (title, edges, other, mark) => {
    if (edges.length === 0) return;
    made("h3", title, panel);
    const list = made("ul", "", panel);
    for (const edge of edges) {
      const item = made("li", mark(edge), list);
      const button = made("button", data.nodes[edge[other]].label, item);
      button.addEventListener("click", () => { choose(edge[other]); show(edge[other]); });
      if (edge.role) made("span", ` (${edge.role})`, item).className = "muted";
    }
  };
  const choose = (number) => {
    for (const box of boxes) box.classList.toggle("chosen", Number(box.dataset.node) === number);
    panel.replaceChildren();
    if (number === null) {
      made("p", "Click a box to see what it is and who refers to it.", panel).className = "muted";
      return;
    }
    const node = data.nodes[number];
    made("h2", node.label, panel);
    const facts = made("dl", "", panel);
    for (const [name, value] of node.facts) {
      made("dt", name, facts);
      made("dd", value, facts);
    }
    if (node.frames.length) {
      made("h3", "Allocated at, innermost first", panel);
      const list = made("ol", "", panel);
      for (const frame of node.frames) made("li", frame, list);
    }
    references("Refers to", data.edges.filter((edge) => edge.source === number), "target",
      (edge) => `${edge.text || "(unnamed)"} → `);
    references("Referred to by", data.edges.filter((edge) => edge.target === number), "source",
      (edge) => `${edge.text || "(unnamed)"} of `);
  };
  for (const box of boxes) {
    box.setAttribute("tabindex", "0");
    box.setAttribute("role", "button");
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose(Number(box.dataset.node));
    });
  }

  choose(null);

  // ---- search ----

  let hits = [];
  let at = -1;
  const look = () => {
    const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    hits = [];
    data.nodes.forEach((node, number) => {
      const hit = words.length > 0 && words.every((word) => node.searched.includes(word));
      boxOf.get(number).classList.toggle("found", hit);
      if (hit) hits.push(number);
    });
    at = -1;
    svg.classList.toggle("searching", words.length > 0);
    found.textContent = words.length ? `${hits.length} of ${data.nodes.length}` : "";
  };
  search.addEventListener("input", look);
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || hits.length === 0) return;
    at = (at + 1) % hits.length;
    fitted = false;
    choose(hits[at]);
    show(hits[at]);
  });

  const turn = (factor) => { fitted = factor === 0; if (fitted) fit(); else zoom(factor); };
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => turn(Number(button.dataset.zoom)));
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { search.value = ""; look(); choose(null); search.blur(); }
    if (event.target === search || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); search.focus(); }
    if (event.key === "+" || event.key === "=") turn(1.25);
    if (event.key === "-") turn(0.8);
    if (event.key === "0") turn(0);
  });
})();
