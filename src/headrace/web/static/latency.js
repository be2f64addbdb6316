// The chart of latencies: how long records take from log to log, batch by batch, and where the time goes.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640, HEIGHT = 110, TOP = 6, RECENT = 20; // batches whose parts are averaged
const $ = (id) => document.getElementById(id);
const ms = (value) => (value >= 10000 ? `${(value / 1000).toFixed(1)} s` : value >= 10 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`);

const make = (name, attributes, text) => {
  const made = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  if (text !== undefined) made.textContent = text;
  return made;
};

// Levels and the exchange are parts of the run; what is left of it is the way of orders and receipts.
export const partsOf = (batch) => {
  const { run = 0, ...phases } = batch.phases;
  const inside = Object.entries(phases).filter(([phase]) => phase === "exchange" || phase.startsWith("level "));
  const rest = Math.max(0, run - inside.reduce((sum, [, value]) => sum + value, 0));
  const { plan = 0, commit = 0, deliver = 0 } = phases;
  const [levels, exchange] = [inside.filter(([phase]) => phase !== "exchange"), phases.exchange ?? 0];
  return Object.fromEntries([
    ["wait", Math.max(0, batch.latency.wait)], ["plan", plan], ...levels, ["exchange", exchange],
    [levels.length ? "orders and receipts" : "run", rest], ["commit", commit], ["deliver", deliver],
  ]);
};

const PARTS = ["wait", "plan", "", "", "exchange", "", "commit", "deliver"]; // levels take turns, what is left of the run is 5
const colour = (part) => `part-${part.startsWith("level ") ? 2 + (Number(part.slice(6)) % 2) : PARTS.includes(part) ? PARTS.indexOf(part) : 5}`;

const average = (batches) => {
  const sums = {};
  for (const batch of batches) for (const [part, value] of Object.entries(partsOf(batch))) sums[part] = (sums[part] ?? 0) + value / batches.length;
  return sums;
};

const line = (batches, which, most) => {
  const from = batches[0].clock, span = Math.max(1, batches[batches.length - 1].clock - from);
  const at = (batch) => `${(((batch.clock - from) / span) * WIDTH).toFixed(1)},${(HEIGHT - (Math.min(batch.latency[which], most) / most) * (HEIGHT - TOP)).toFixed(1)}`;
  return make("polyline", { class: `line ${which}`, points: batches.map(at).join(" ") });
};

// Only batches that have read records, and whose results the log has, say how long records take.
export const showLatency = (all) => {
  const batches = all.filter((batch) => batch.latency && "deliver" in batch.phases);
  $("latency-panel").hidden = batches.length === 0;
  if (!batches.length) return;
  const highest = batches.map((batch) => batch.latency.p99).sort((one, other) => one - other);
  const most = Math.max(1, highest[Math.floor(0.98 * (highest.length - 1))]); // the first batch of a run takes long: what is higher is cut
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": "latency by batch" });
  svg.append(line(batches, "p99", most), line(batches, "p50", most));
  $("latency-chart").replaceChildren(svg);
  $("latency-most").textContent = ms(most);
  const last = batches[batches.length - 1].latency;
  $("latency-p50").textContent = ms(last.p50);
  $("latency-p99").textContent = ms(last.p99);
  const parts = average(batches.slice(-RECENT)), sum = Object.values(parts).reduce((one, other) => one + other, 0) || 1;
  $("latency-parts").replaceChildren(
    ...Object.entries(parts).map(([part, value]) => {
      const piece = Object.assign(document.createElement("span"), { className: `part ${colour(part)}`, title: `${part} ${ms(value)}` });
      piece.style.flexGrow = value / sum;
      return piece;
    }),
  );
  $("latency-legend").replaceChildren(
    ...Object.entries(parts).map(([part, value]) => {
      const entry = document.createElement("span");
      entry.dataset.part = part;
      entry.append(Object.assign(document.createElement("i"), { className: `key ${colour(part)}` }), `${part} ${ms(value)}`);
      return entry;
    }),
  );
};
