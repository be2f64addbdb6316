// The graph of the topology: dagre lays it out, Panzoom zooms and moves it. Names are never cut off: a box is as large
// as its texts, and the whole graph is scaled to its frame.

import * as dagre from "./vendor/dagre.esm.js";
import { $ } from "./api.js";
import { count, number } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const NAME = { size: 12, weight: 600, line: 15 }, SMALL = { size: 11, weight: 400, line: 14 };
const FAMILY = "system-ui, sans-serif"; // as in style.css
const LETTERS = 22; // of a line: longer names continue on the next one
const PAD = 9, CHIP = 5, LABEL = { width: 58, height: 14 };
const WIDEST = { Source: "999.9 k/s · 999.9 M waiting", Sink: "999.9 k/s" }; // what a box of the kind must have room for
// The name of a group is inside its frame, at the top, or above it: where dagre leaves room. The rate of an edge is above
// an edge that goes to the right, and beside one that goes down.
const LAYOUTS = {
  LR: { nodesep: 28, edgesep: 18, ranksep: 22, marginx: 10, marginy: 10, nameAt: 15, labelpos: "c" },
  TB: { nodesep: 20, edgesep: 14, ranksep: 26, marginx: 10, marginy: 20, nameAt: -5, labelpos: "r" },
};
const MANY = 60; // nodes: the better way to rank them takes a second for a hundred
const LOWEST = 150; // px: the height of the frame
const ENOUGH = 0.9; // of the natural size: a layout with this scale needs no other one
const BETTER = 1.2; // a layout without the ways between sub-topologies must be so much larger

const context = document.createElement("canvas").getContext("2d");
const widthOf = (text, font) => {
  context.font = `${font.weight} ${font.size}px ${FAMILY}`;
  return Math.ceil(context.measureText(text).width);
};

const draw = (name, attributes = {}, text) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

// Divides a name into lines, behind a hyphen, a dot or the like if there is one.
export const wrap = (text, letters = LETTERS) => {
  const pieces = text.match(/[^-._/:\s]*[-._/:\s]*/g).filter(Boolean).flatMap((piece) => piece.match(new RegExp(`.{1,${letters}}`, "gsu")));
  const lines = [];
  for (const piece of pieces) {
    const last = lines[lines.length - 1];
    if (last !== undefined && (last + piece).length <= letters) lines[lines.length - 1] = last + piece;
    else lines.push(piece);
  }
  return lines.length ? lines : [""];
};

// The texts of a node, and the size of its box.
const measure = (node) => {
  const name = wrap(node.name), topics = node.topics.filter((topic) => topic !== node.name).flatMap((topic) => wrap(topic));
  const stores = node.stores.map((store) => wrap(store));
  const words = [...name.map((line) => widthOf(line, NAME)), ...topics.map((line) => widthOf(line, SMALL)), ...stores.flat().map((line) => widthOf(line, SMALL) + 2 * CHIP)];
  const widest = node.kind in WIDEST ? widthOf(WIDEST[node.kind], SMALL) : 0;
  const rows = topics.length + (widest ? 1 : 0);
  const chips = stores.reduce((sum, lines) => sum + lines.length * SMALL.line + 6, 0);
  return { node, name, topics, stores, width: Math.max(...words, widest, 60) + 2 * PAD, height: 2 * PAD - 3 + name.length * NAME.line + rows * SMALL.line + chips + (stores.length ? 3 : 0) };
};

// The ways between sub-topologies: from a sink to the sources that read its topic.
const crossings = (nodes) => nodes.filter((node) => node.kind === "Sink").flatMap((sink) =>
  nodes.filter((node) => node.kind === "Source" && node.topics.some((topic) => sink.topics.includes(topic))).map((source) => [sink.name, source.name]));

const arrange = (subtopologies, boxes, ways, rankdir) => {
  const graph = new dagre.graphlib.Graph({ compound: true });
  graph.setGraph({ rankdir, ranker: boxes.size > MANY ? "tight-tree" : "network-simplex", ...LAYOUTS[rankdir] });
  for (const group of subtopologies) {
    graph.setNode(`group ${group.id}`, {});
    for (const node of group.nodes) {
      const { width, height } = boxes.get(node.name);
      graph.setNode(`node ${node.name}`, { width, height });
      graph.setParent(`node ${node.name}`, `group ${group.id}`);
    }
  }
  for (const group of subtopologies) {
    for (const node of group.nodes) for (const other of node.to) if (boxes.has(other)) graph.setEdge(`node ${node.name}`, `node ${other}`, { ...LABEL, labelpos: LAYOUTS[rankdir].labelpos, labeloffset: 4 });
  }
  for (const [from, to] of ways) graph.setEdge(`node ${from}`, `node ${to}`, { width: 0, height: 0, isWay: true });
  dagre.layout(graph);
  return { graph, width: graph.graph().width, height: graph.graph().height };
};

// The first layout that is large enough to be read, or else the largest one.
const layOut = (subtopologies, boxes, room) => {
  const scaleOf = ({ width, height }) => Math.min(1, room.width / width, room.height / height);
  const ways = crossings(subtopologies.flatMap((group) => group.nodes));
  let best = null;
  for (const connected of ways.length ? [true, false] : [true]) {
    for (const rankdir of ["LR", "TB"]) {
      const found = arrange(subtopologies, boxes, connected ? ways : [], rankdir), scale = scaleOf(found);
      if (best === null || scale > best.scale * (connected ? 1.05 : BETTER)) best = { ...found, scale };
      if (best.scale >= ENOUGH) return best;
    }
  }
  return best;
};

// The way of an edge: out of the middle of one side, through the points that dagre has left free, into the middle of the
// opposite side. An edge that goes back, in a circle, takes dagre's own ends.
const route = (graph, edge) => {
  const down = graph.graph().rankdir === "TB", [from, to] = [graph.node(edge.v), graph.node(edge.w)];
  const start = down ? { x: from.x, y: from.y + from.height / 2 } : { x: from.x + from.width / 2, y: from.y };
  const end = down ? { x: to.x, y: to.y - to.height / 2 } : { x: to.x - to.width / 2, y: to.y };
  const { points } = graph.edge(edge);
  if (down ? end.y < start.y : end.x < start.x) return { points, down: null };
  return { points: [start, ...points.slice(1, -1), end], down };
};

const curve = ({ points: [first, ...rest], down }) => {
  let path = `M${first.x} ${first.y}`, last = first;
  for (const next of rest) {
    const [x, y] = [(last.x + next.x) / 2, (last.y + next.y) / 2];
    if (down === null) path += ` L${next.x} ${next.y}`;
    else path += down ? ` C${last.x} ${y} ${next.x} ${y} ${next.x} ${next.y}` : ` C${x} ${last.y} ${x} ${next.y} ${next.x} ${next.y}`;
    last = next;
  }
  return path;
};

// The direction in which an edge arrives, in degrees.
const arrival = ({ points, down }) => {
  if (down !== null) return down ? 90 : 0;
  const [before, end] = points.slice(-2);
  return (Math.atan2(end.y - before.y, end.x - before.x) * 180) / Math.PI;
};

// Draws the texts of a node. Returns the element of the line that has its rate.
const drawNode = (shape, { node, name, topics, stores, width }, x, y, height) => {
  shape.append(draw("title", {}, `${node.name}\n${node.details}`), draw("rect", { class: "box", x, y, width, height, rx: 7 }));
  let line = y + PAD - 3;
  const write = (text, font, attributes = {}) => {
    line += font.line;
    const element = draw("text", { x: x + PAD, y: line - 3, ...attributes }, text);
    shape.append(element);
    return element;
  };
  name.forEach((each) => write(each, NAME, { class: "name" }));
  topics.forEach((each) => write(each, SMALL, { class: "topic" }));
  const rate = node.kind in WIDEST ? write("", SMALL, { class: "rate" }) : null;
  line += 3;
  for (const store of stores) {
    const tall = store.length * SMALL.line + 3;
    shape.append(draw("rect", { class: "chip", x: x + CHIP, y: line, width: width - 2 * CHIP, height: tall, rx: 4 }));
    store.forEach((each) => write(each, SMALL, { class: "store", x: x + 2 * CHIP }));
    line += 6;
  }
  return rate;
};

const groupName = (group) => `sub-topology ${group.id}${group.global ? " (global)" : ""}`;

const middleOf = (place) => {
  const { left, top, width, height } = place.getBoundingClientRect();
  return { clientX: left + width / 2, clientY: top + height / 2 };
};

export class TopologyGraph {
  constructor(place, topology, choose) {
    this.place = place;
    this.subtopologies = topology.subtopologies;
    this.choose = choose;
    this.boxes = new Map(this.subtopologies.flatMap((group) => group.nodes.map((node) => [node.name, measure(node)])));
    this.told = null;
    this.chosen = null;
    this.draw();
    this.observer = new ResizeObserver(() => { if (place.clientWidth && place.clientWidth !== this.width) this.draw(); });
    this.observer.observe(place);
  }

  get nodes() { return [...this.boxes.values()].map((box) => box.node); }

  draw() {
    this.width = this.place.clientWidth;
    const room = { width: this.width, height: Math.max(480, 0.95 * innerHeight) };
    const { graph, width, height, scale } = layOut(this.subtopologies, this.boxes, room);
    const frame = Math.max(LOWEST, Math.ceil(height * scale));
    this.place.style.height = `${frame}px`;
    // The picture is as large as its frame, and the graph in the middle of it.
    const seen = { width: this.width / scale, height: frame / scale };
    const viewBox = [(width - seen.width) / 2, (height - seen.height) / 2, seen.width, seen.height].join(" ");
    const svg = draw("svg", { viewBox, role: "group", "aria-label": "topology" });
    this.rates = new Map();
    this.labels = new Map();
    this.notes = new Map();
    this.drawGroups(svg, graph);
    this.drawEdges(svg, graph);
    this.drawNodes(svg, graph);
    this.panzoom?.destroy();
    this.place.replaceChildren(svg);
    this.enableZoom(svg, scale);
    if (this.told) this.tell(this.told);
  }

  drawGroups(svg, graph) {
    for (const group of this.subtopologies) {
      const { x, y, width, height } = graph.node(`group ${group.id}`);
      const [left, top] = [x - width / 2, y - height / 2];
      svg.append(draw("rect", { class: "group", x: left, y: top, width, height, rx: 10 }));
      const name = draw("text", { class: "group-name", x: left + 10, y: top + graph.graph().nameAt }, groupName(group));
      const note = draw("tspan", { class: "dropped", dx: 10 });
      name.append(note);
      this.notes.set(String(group.id), note);
      svg.append(name);
    }
  }

  drawEdges(svg, graph) {
    const labels = [];
    for (const edge of graph.edges()) {
      const { x, y, isWay } = graph.edge(edge), way = route(graph, edge), end = way.points[way.points.length - 1];
      svg.append(draw("path", { class: isWay ? "edge way" : "edge", d: curve(way) }));
      svg.append(draw("path", { class: "head", d: "M-7 -4 L0 0 L-7 4 Z", transform: `translate(${end.x} ${end.y}) rotate(${arrival(way)})` }));
      if (isWay) continue;
      const place = graph.graph().rankdir === "LR" ? { x, y: y - 5, "text-anchor": "middle" } : { x: x - LABEL.width / 2, y: y + 4 };
      const label = draw("text", { class: "edge-rate", ...place });
      this.labels.set(`${edge.v.slice(5)}\n${edge.w.slice(5)}`, label);
      labels.push(label);
    }
    svg.append(...labels);
  }

  drawNodes(svg, graph) {
    for (const box of this.boxes.values()) {
      const { node } = box, { x, y, width, height } = graph.node(`node ${node.name}`);
      const shape = draw("g", { class: `node ${node.kind.toLowerCase()}`, tabindex: 0, role: "button", "aria-label": node.name });
      shape.dataset.name = node.name;
      this.rates.set(node.name, drawNode(shape, box, x - width / 2, y - height / 2, height));
      if (this.chosen === node.name) shape.classList.add("chosen");
      const chosen = () => {
        svg.querySelectorAll(".chosen").forEach((other) => other.classList.remove("chosen"));
        shape.classList.add("chosen");
        this.chosen = node.name;
        this.choose(node);
      };
      shape.addEventListener("click", () => { if (!this.isDragged) chosen(); });
      shape.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); chosen(); } });
      svg.append(shape);
    }
  }

  // ------------------------------------------------------------------------------------------------------------ zoom
  // At scale 1 the whole graph is seen, and a finger scrolls the page; a larger one can be moved.
  enableZoom(svg, scale) {
    const panzoom = Panzoom(svg, {
      canvas: true, contain: "outside", minScale: 1, maxScale: Math.max(4, 2 / scale), step: 0.4, panOnlyWhenZoomed: true,
      cursor: "default", touchAction: "pan-y", handleStartEvent: (event) => { this.start = [event.clientX, event.clientY]; this.isDragged = false; },
    });
    this.panzoom = panzoom;
    const show = () => {
      const zoomed = panzoom.getScale() > 1.001;
      $("zoom").textContent = `${Math.round(100 * scale * panzoom.getScale())} %`;
      panzoom.setOptions({ cursor: zoomed ? "grab" : "default", touchAction: zoomed ? "none" : "pan-y" });
    };
    svg.addEventListener("panzoomchange", show);
    svg.addEventListener("panzoompan", (event) => {
      const from = event.detail.originalEvent;
      if (from && Math.hypot(from.clientX - this.start[0], from.clientY - this.start[1]) > 4) this.isDragged = true;
    });
    show();
  }

  zoomBy(steps, point = middleOf(this.place)) {
    this.panzoom.zoomToPoint(this.panzoom.getScale() * Math.exp(0.4 * steps), point);
  }

  fit() { this.panzoom.reset({ animate: false }); }

  wheel(event) { if (event.ctrlKey || event.metaKey) this.panzoom.zoomWithWheel(event); }

  press(event) {
    const [x, y] = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key] ?? [0, 0];
    if (event.key === "+" || event.key === "=") this.zoomBy(1);
    else if (event.key === "-") this.zoomBy(-1);
    else if (event.key === "0") this.fit();
    else if ((x || y) && this.panzoom.getScale() > 1) this.panzoom.pan(x / this.panzoom.getScale(), y / this.panzoom.getScale(), { relative: true });
    else return;
    event.preventDefault();
  }

  // ------------------------------------------------------------------------------------------------------ what moves
  // `told` has the rates of nodes and edges, the lag by partition, and the dropped records by sub-topology.
  tell(told) {
    this.told = told;
    const { rates, lag, dropped, healthy } = told;
    for (const [name, line] of this.rates) {
      if (line === null) continue;
      const { node } = this.boxes.get(name), rate = rates.nodes[name];
      const waiting = node.kind === "Source" ? lagOf(lag, node.topics) : 0;
      line.replaceChildren(draw("tspan", {}, rate === undefined ? "" : `${number(rate)}/s`));
      if (waiting) line.append(draw("tspan", { class: healthy ? "waiting" : "waiting bad" }, `${rate === undefined ? "" : " · "}${number(waiting)} waiting`));
    }
    const along = new Map(rates.edges.map(([from, to, rate]) => [`${from}\n${to}`, rate]));
    for (const [edge, label] of this.labels) label.textContent = along.has(edge) ? `${number(along.get(edge))}/s` : "";
    for (const [group, note] of this.notes) {
      const reasons = Object.values(dropped[group] ?? {});
      note.textContent = reasons.length ? `${count(reasons.reduce((sum, each) => sum + each, 0))} dropped` : "";
    }
  }

  forget() {
    this.chosen = null;
    this.place.querySelectorAll(".chosen").forEach((shape) => shape.classList.remove("chosen"));
  }

  close() {
    this.observer.disconnect();
    this.panzoom.destroy();
  }
}

const lagOf = (lag, topics) => Object.entries(lag ?? {}).reduce((sum, [at, waiting]) => sum + (topics.includes(at.slice(0, at.lastIndexOf("-"))) ? waiting : 0), 0);
