// Draws a topology: a column for each step from the sources, sub-topologies side by side below each other.
// Whatever comes from the application is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 206, HEIGHT = 44, ACROSS = 62, DOWN = 16, CHIP = 18, MARGIN = 14;

const make = (name, attributes = {}, text) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

const short = (text, length) => (text.length > length ? text.slice(0, length - 1) + "…" : text);

export const storesOf = (node) => {
  const found = /stores: \[(.*)\]/.exec(node.details);
  return found && found[1] ? found[1].split(", ") : [];
};

// The longest way from a source: nothing stands left of what it comes from. A circle is walked once.
const columnsOf = (nodes) => {
  const byName = new Map(nodes.map((node) => [node.name, node]));
  const columns = new Map();
  const column = (name, seen) => {
    if (columns.has(name)) return columns.get(name);
    if (seen.has(name)) return 0;
    const before = byName.get(name).from.filter((other) => byName.has(other));
    const place = Math.max(-1, ...before.map((other) => column(other, new Set([...seen, name])))) + 1;
    columns.set(name, place);
    return place;
  };
  nodes.forEach((node) => column(node.name, new Set()));
  return columns;
};

const placed = (subtopologies) => {
  const boxes = [], groups = [];
  let top = MARGIN;
  for (const group of subtopologies) {
    const columns = columnsOf(group.nodes), heights = [];
    const start = top + 22;
    let right = 0;
    for (const node of group.nodes) {
      const column = columns.get(node.name), stores = storesOf(node);
      const x = MARGIN * 2 + column * (WIDTH + ACROSS), y = heights[column] ?? start;
      const height = HEIGHT + stores.length * CHIP;
      boxes.push({ node, stores, x, y, height });
      heights[column] = y + height + DOWN;
      right = Math.max(right, x + WIDTH);
    }
    const bottom = Math.max(start, ...heights.filter(Boolean));
    groups.push({ group, x: MARGIN, y: top, width: right, height: bottom - top });
    top = bottom + DOWN;
  }
  return { boxes, groups, height: top + MARGIN, width: Math.max(300, ...groups.map((g) => g.x + g.width)) + MARGIN * 2 };
};

const topicsOf = (node) => (node.kind === "Processor" ? "" : (/topics?: \[?([^\]]*)\]?$/.exec(node.details) || [])[1] ?? "").split(", ").filter(Boolean);

export const draw = (place, topology, choose) => {
  const { boxes, groups, width, height } = placed(topology.subtopologies);
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "topology" });
  const at = new Map(boxes.map((box) => [box.node.name, box]));
  const along = new Map(), badges = new Map(), labels = [];
  for (const { group, x, y, width: w, height: h } of groups) {
    svg.append(make("rect", { class: "group", x, y, width: w, height: h, rx: 8 }));
    const name = make("text", { class: "group-name", x: x + 8, y: y + 14 }, `sub-topology ${group.id}${group.global ? " (global)" : ""}`);
    const badge = make("tspan", { class: "dropped", dx: 10 });
    name.append(badge);
    badges.set(String(group.id), badge);
    svg.append(name);
  }
  for (const { node, x, y } of boxes) {
    for (const other of node.to.map((name) => at.get(name)).filter(Boolean)) {
      const [x1, y1, x2, y2] = [x + WIDTH, y + HEIGHT / 2, other.x, other.y + HEIGHT / 2], half = (x2 - x1) / 2;
      svg.append(make("path", { class: "edge", d: `M${x1} ${y1} C${x1 + half} ${y1} ${x2 - half} ${y2} ${x2} ${y2}` }));
      const label = make("text", { class: "edge-rate", x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 4, "text-anchor": "middle" });
      along.set(`${node.name}\n${other.node.name}`, label);
      labels.push(label);
    }
  }
  const rates = new Map(), lags = new Map();
  for (const { node, stores, x, y, height: h } of boxes) {
    const shape = make("g", { class: `node ${node.kind.toLowerCase()}`, tabindex: 0, role: "button" });
    shape.dataset.name = node.name;
    shape.append(make("title", {}, `${node.name}\n${node.details}`));
    shape.append(make("rect", { class: "box", x, y, width: WIDTH, height: h, rx: 6 }));
    shape.append(make("text", { x: x + 10, y: y + 18 }, short(node.name, 26)));
    const rate = make("text", { class: "rate", x: x + 10, y: y + 35 }, topicsOf(node).length ? short(topicsOf(node).join(", "), 24) : "");
    const lag = make("text", { class: "lag", x: x + WIDTH - 8, y: y + 35, "text-anchor": "end" });
    shape.append(rate, lag);
    rates.set(node.name, rate);
    lags.set(node.name, lag);
    stores.forEach((store, index) => {
      shape.append(make("rect", { class: "chip", x: x + 8, y: y + HEIGHT + index * CHIP - 4, width: WIDTH - 16, height: CHIP - 3, rx: 4 }));
      shape.append(make("text", { x: x + 14, y: y + HEIGHT + index * CHIP + 8 }, short(store, 28)));
    });
    const chosen = () => {
      svg.querySelectorAll(".chosen").forEach((other) => other.classList.remove("chosen"));
      shape.classList.add("chosen");
      choose(node, stores);
    };
    shape.addEventListener("click", chosen);
    shape.addEventListener("keydown", (event) => event.key === "Enter" && chosen());
    svg.append(shape);
  }
  svg.append(...labels);
  if (width <= 1.3 * place.clientWidth) svg.classList.add("fits"); // a little smaller is better than to scroll
  place.replaceChildren(svg);
  // What moves: the rate of a node beside its topics, the records that wait for it, and the rate along an edge.
  const tell = (node, rate, lag) => {
    const topics = topicsOf(node).join(", "), waiting = lag ? `${lag.toLocaleString("en")} wait` : "";
    const room = Math.max(4, 26 - rate.length - waiting.length);
    rates.get(node.name).textContent = [topics && short(topics, room), rate].filter(Boolean).join(" · ");
    lags.get(node.name).textContent = waiting;
  };
  const tellEdge = (from, to, rate) => { const label = along.get(`${from}\n${to}`); if (label) label.textContent = rate; };
  const tellDropped = (dropped) => badges.forEach((badge, group) => {
    const reasons = Object.entries(dropped[group] ?? {});
    badge.textContent = reasons.length ? `dropped ${reasons.map(([reason, count]) => `${count.toLocaleString("en")} (${reason})`).join(", ")}` : "";
  });
  return { nodes: topology.subtopologies.flatMap((group) => group.nodes), tell, tellDropped, tellEdge, topicsOf };
};
