// The page: reads what stands still once, and what moves from one stream of events.

import { draw } from "./graph.js";
import { ask, choose, counts, list } from "./stores.js";

const $ = (id) => document.getElementById(id);
const number = (value) => (value === null || value === undefined ? "–" : Math.round(value * 10) / 10 === Math.round(value) ? Math.round(value).toLocaleString("en") : value.toFixed(1));
const total = (mapping) => Object.values(mapping ?? {}).reduce((sum, each) => sum + each, 0);
const bytes = (value) => {
  const unit = value < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${(value / 1024 ** unit).toFixed(unit ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
};
const duration = (seconds) => (seconds === null ? "–" : seconds < 90 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds / 60)} min`);

let graph = null, stores = [], batches = [], before = null, listening = null, attempt = 0;

const showStatus = (status) => {
  document.title = `${status.application} · Headrace`;
  $("application").textContent = status.application;
  $("state").textContent = status.state;
  $("state").className = `badge ${status.healthy ? "good" : "bad"}`;
  $("verdict").textContent = status.verdict;
  $("verdict").className = status.healthy ? "" : "bad";
  $("rate").textContent = number(total(status.rates));
  $("lag").textContent = status.lag === null ? "–" : number(total(status.lag));
  $("catch-up").textContent = duration(status.catch_up);
  $("batch").textContent = status.batch;
  $("dropped").textContent = number(total(status.dropped));
  $("dropped").title = Object.entries(status.dropped).map(([reason, count]) => `${reason}: ${count}`).join("\n");
  showActions(status.actions);
};

const showActions = (actions) => {
  if ($("actions").children.length !== actions.length) {
    $("actions").replaceChildren(
      ...actions.map((action) => {
        const button = Object.assign(document.createElement("button"), { type: "button", textContent: action });
        button.addEventListener("click", () => fetch(`/actions/${action}`, { method: "POST" }));
        return button;
      }),
    );
  }
  $("actions").hidden = actions.length === 0;
};

// A node's rate is that of its own count; of a source, without counts, that of its topic.
const showRates = (rates, taken) => {
  if (!graph) return;
  const now = performance.now();
  for (const node of graph.nodes) {
    const place = graph.rates.get(node.name), topic = graph.topicOf(node);
    let rate = null;
    if (node.name in taken && before && node.name in before.taken) rate = ((taken[node.name] - before.taken[node.name]) * 1000) / (now - before.now);
    else if (node.kind === "Source" && topic in rates) rate = rates[topic];
    const told = rate === null ? "" : `${number(rate)}/s`;
    const room = 26 - told.length;
    const name = node.kind === "Processor" || !topic ? "" : topic.length > room ? topic.slice(0, room - 1) + "…" : topic;
    place.textContent = [name, told].filter(Boolean).join(" · ");
  }
  if (!before || now - before.now > 900) before = { now, taken };
};

const showBatches = () => {
  const last = batches.slice(-80), width = 8, height = 80;
  const size = (batch) => total(batch.phases) || batch.records;
  const most = Math.max(1, ...last.map(size));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${80 * width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  last.forEach((batch, index) => {
    const parts = Object.entries(batch.phases).length ? Object.entries(batch.phases) : [["records", batch.records]];
    let bottom = height;
    parts.forEach(([phase, value], kind) => {
      const tall = (value / most) * (height - 4) || 1;
      const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
      title.textContent = `batch ${batch.number}: ${batch.records} records, ${phase} ${number(value)}${phase === "records" ? "" : " ms"}`;
      for (const [name, to] of Object.entries({ class: `bar phase-${kind % 4}`, x: index * width, y: (bottom -= tall), width: width - 2, height: tall })) bar.setAttribute(name, to);
      bar.append(title);
      svg.append(bar);
    });
  });
  $("strip").replaceChildren(svg);
  const newest = last[last.length - 1];
  if (newest) {
    const phases = Object.entries(newest.phases).map(([phase, ms]) => `${phase} ${number(ms)} ms`);
    $("strip-text").textContent = [`batch ${newest.number}`, `${newest.records} records`, `${bytes(newest.state_bytes)} of state`, ...phases].join(" · ");
  }
};

const showDurability = (told) => {
  const lines = {
    "last committed batch": told.batch,
    "instance": told.epoch,
    "checkpoint": told.place,
    "state in it": bytes(told.state_bytes),
    "back after a loss in about": duration(told.restore_seconds),
    "between batches": told.interval_ms === null ? "–" : `${number(told.interval_ms)} ms`,
  };
  $("durability").replaceChildren(
    ...Object.entries(lines).flatMap(([name, value]) => [
      Object.assign(document.createElement("dt"), { textContent: name }),
      Object.assign(document.createElement("dd"), { textContent: value }),
    ]),
  );
};

const showNode = (node, names) => {
  $("node-panel").hidden = false;
  $("node-name").textContent = node.name;
  $("node-details").textContent = node.details;
  $("node-stores").replaceChildren(
    ...stores.filter((store) => names.includes(store.name)).map((store) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: `${store.name}, ${store.entries} entries` });
      button.addEventListener("click", () => choose(store));
      return button;
    }),
  );
};

const show = (told) => {
  const first = batches.length ? batches[batches.length - 1].number : -1;
  batches = [...(told.batches.some((batch) => batch.number <= first) ? [] : batches), ...told.batches].slice(-200);
  showStatus(told.status);
  showDurability(told.durability);
  showRates(told.status.rates, told.counts);
  counts(told.stores);
  showBatches();
};

const connected = (words) => { $("connection").textContent = words; };

const listen = () => {
  listening?.close();
  listening = new EventSource("/events");
  listening.addEventListener("state", (event) => { attempt = 0; connected("live"); show(JSON.parse(event.data)); });
  listening.addEventListener("waiting", () => connected("waiting for the first batch"));
  listening.onerror = () => {
    connected("not connected: trying again");
    listening.close();
    setTimeout(start, Math.min(250 * 2 ** attempt++, 5000)); // the topology may be another one after a restart
  };
};

const start = async () => {
  try {
    const [topology, all] = await Promise.all([ask("/api/topology"), ask("/stores")]);
    stores = all.stores;
    $("login").hidden = true;
    graph = draw($("graph"), topology, showNode);
    list(stores);
    listen();
  } catch (error) {
    if (error.status === 401) {
      $("login").hidden = false;
      connected("a token is needed");
      return;
    }
    connected(error.status === 503 ? "waiting for the first batch" : "not connected: trying again");
    setTimeout(start, Math.min(250 * 2 ** attempt++, 5000));
  }
};

$("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await fetch("/session", { method: "POST", body: JSON.stringify({ token: $("token").value }) });
  $("token").value = "";
  $("login-failed").textContent = answer.ok ? "" : "That is not the token.";
  if (answer.ok) start();
});

start();
