// The charts over time, drawn by uPlot: rate, lag, latency, and where the time of a record goes.

import { $, make } from "./api.js";
import { count, duration, instant, number } from "./format.js";
import { colour, onTheme } from "./theme.js";

const KEPT = 900; // points, as many as the server keeps
const HEIGHT = 190;
const RANGES = { "1 min": 60, "5 min": 300, "15 min": 900 }; // seconds
const SHORT = 15; // seconds: a gap between batches that a line passes over
const FONT = "11px system-ui, sans-serif";
const PARTS = { wait: "part-wait", plan: "part-plan", exchange: "part-exchange", "orders and receipts": "part-orders", run: "part-level-0", commit: "part-commit", deliver: "part-deliver" };
const partColour = (part) => PARTS[part] ?? `part-level-${Number(part.slice("level ".length)) % 2}`;

let points = [], range = "5 min", charts = [];

const plain = (key, label, stroke) => ({ key, label, stroke, valueOf: (point) => point[key] });
const CHARTS = [
  { id: "chart-rate", format: number, series: () => [plain("read", "in", "water"), plain("written", "out", "good")] },
  { id: "chart-lag", format: count, axis: number, series: () => [plain("lag", "lag", "amber")] },
  { id: "chart-latency", format: duration, logarithmic: true, series: () => [plain("p50", "p50", "water"), plain("p99", "p99", "amber")] },
  { id: "chart-parts", format: duration, stacked: true, series: () => partNames().map((part) => ({ key: part, label: part, stroke: partColour(part), valueOf: (point) => point.parts[part] ?? (total(point) ? 0 : null) })) },
];
const total = (point) => Object.keys(point.parts).length;
const partNames = () => {
  const names = new Set(points.flatMap((point) => Object.keys(point.parts)));
  const order = ["wait", "plan", ...[...names].filter((name) => name.startsWith("level ")).sort(), "run", "exchange", "orders and receipts", "commit", "deliver"];
  return order.filter((name) => names.has(name));
};

const valuesOf = (chart) => chart.series.map((each) => points.map((point) => each.valueOf(point) ?? null));
const stack = (rows) => {
  const sums = rows.length ? rows[0].map(() => 0) : [];
  return rows.map((row) => row.map((value, index) => (value === null ? null : (sums[index] += value))));
};

// What is far above the rest, such as the first batch of a run, is cut off: the legend has its value.
const highest = (u, min, max) => {
  const top = u.data[u.data.length - 1].slice(...u.series[0].idxs).filter((value) => value !== null).sort((one, other) => one - other);
  const usual = top[Math.floor(0.95 * (top.length - 1))] ?? max;
  return [0, Math.max(1, Math.min(max, 2 * usual) * 1.1)];
};
const fromZero = (u, min, max) => [0, Math.max(1, max * 1.15)];
const decades = (u, min, max) => [10 ** Math.floor(Math.log10(Math.max(min || 1, 0.1))), 10 ** Math.ceil(Math.log10(Math.max(max || 10, 1) * 1.01))];

// 1, 2, 5, 10, 20 … over few decades; over more of them 1, 10, 100 …
const steps = (u, axis, min, max) => {
  const few = Math.log10(max / min) < 2.5, found = [];
  for (let decade = min; decade <= max * 1.001; decade *= 10) found.push(...(few ? [1, 2, 5] : [1]).map((each) => each * decade));
  return found.filter((each) => each <= max * 1.001);
};

const shortGaps = (u, series, from, to, gaps) => {
  const seconds = (u.scales.x.max - u.scales.x.min) / u.bbox.width;
  return gaps.filter(([left, right]) => (right - left) * seconds > SHORT);
};

const build = (description) => {
  const { id, format, axis, logarithmic, stacked } = description, place = $(id);
  const chart = { ...description, series: description.series(), place };
  const line = colour("line"), faint = colour("faint");
  const side = { stroke: faint, font: FONT, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 } };
  const options = {
    width: Math.max(place.clientWidth, 120), height: HEIGHT,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    cursor: { sync: { key: "time" }, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { x: { time: true }, y: logarithmic ? { distr: 3, range: decades } : { range: stacked ? highest : fromZero } },
    axes: [
      { ...side, space: 80, size: 28, values: [[60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
      { ...side, size: 62, space: 30, ...(logarithmic ? { splits: steps } : {}), values: (u, ticks) => ticks.map((tick) => (tick === null ? "" : (axis ?? format)(tick))) },
    ],
    series: [
      { label: "time", value: (u, seconds) => (seconds === null ? "–" : instant(seconds * 1000).slice(11, 19)) },
      ...chart.series.map((each, index) => ({
        label: each.label, stroke: colour(each.stroke), width: stacked ? 1 : 1.75,
        fill: stacked ? colour(each.stroke) : undefined,
        points: { show: !stacked && undefined, size: 4 }, gaps: shortGaps,
        value: (u, value, series, at) => format(at === null ? null : chart.values[index][at]),
      })),
    ],
    bands: stacked ? chart.series.slice(1).map((_, index) => ({ series: [index + 2, index + 1] })) : [],
  };
  chart.plot = new uPlot(options, [[]], place);
  return chart;
};

const fill = (chart) => {
  const times = points.map((point) => point.at / 1000);
  chart.values = valuesOf(chart);
  const { plot } = chart, last = times[times.length - 1];
  plot.batch(() => {
    plot.setData([times, ...(chart.stacked ? stack(chart.values) : chart.values)], false);
    plot.setScale("x", { min: last - RANGES[range], max: last });
  });
  if (plot.cursor.idx === null || plot.cursor.left < 0) plot.setLegend({ idx: newest(chart) });
};

// The legend has the values under the pointer, or else the last ones that are known.
const newest = (chart) => {
  const known = points.map((_, index) => index).filter((index) => chart.values.some((row) => row[index] !== null));
  return known[known.length - 1] ?? points.length - 1;
};

const rebuild = () => {
  for (const chart of charts) chart.plot.destroy();
  charts = CHARTS.map(build);
  if (points.length) charts.forEach(fill);
};

export const showPoints = (added) => {
  if (!added.length) return;
  const known = points.length ? points[points.length - 1].at : 0;
  points = [...points, ...added.filter((point) => point.at > known)].slice(-KEPT);
  const parts = charts.find((chart) => chart.stacked);
  if (!parts || parts.series.map((each) => each.key).join() !== partNames().join()) rebuild();
  else charts.forEach(fill);
};

// After a reconnect the server sends all points again.
export const clearPoints = () => { points = []; };

// The newest latency: a second without a batch has none.
export const lastLatency = () => points.findLast((point) => point.p50 !== null) ?? null;

$("ranges").append(
  ...Object.keys(RANGES).map((name) => {
    const button = make("button", { type: "button", textContent: name });
    button.setAttribute("aria-pressed", String(name === range));
    button.addEventListener("click", () => {
      range = name;
      for (const other of $("ranges").children) other.setAttribute("aria-pressed", String(other === button));
      if (points.length) charts.forEach(fill);
    });
    return button;
  }),
);
onTheme(() => charts.length && rebuild());
new ResizeObserver(() => charts.forEach(({ plot, place }) => {
  if (place.clientWidth && place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height: HEIGHT });
})).observe($("charts"));
