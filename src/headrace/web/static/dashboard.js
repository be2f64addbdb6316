// The page: reads what stands still once, and what moves from one stream of events.

import { draw } from "./graph.js";
import { showLatency } from "./latency.js";
import { follow, showNode } from "./node.js";
import { ask, bytes, counts, list } from "./stores.js";

const $ = (id) => document.getElementById(id);
const number = (value) => (value === null || value === undefined ? "–" : Math.round(value * 10) / 10 === Math.round(value) ? Math.round(value).toLocaleString("en") : value.toFixed(1));
const total = (mapping) => Object.values(mapping ?? {}).reduce((sum, each) => sum + each, 0);
const duration = (seconds) => (seconds === null ? "–" : seconds < 90 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds / 60)} min`);

let graph = null, stores = [], batches = [], past = [], listening = null, attempt = 0;

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

const act = async (action) => {
  $("acted").textContent = `${action} …`;
  try {
    const answer = await fetch(`/actions/${action}`, { method: "POST" });
    $("acted").textContent = answer.ok ? `${action}: done` : `${action}: ${(await answer.json()).message}`;
  } catch {
    $("acted").textContent = `${action}: no answer`;
  }
};

const showActions = (actions) => {
  if ($("buttons").children.length !== actions.length) {
    $("buttons").replaceChildren(
      ...actions.map((action) => {
        const button = Object.assign(document.createElement("button"), { type: "button", textContent: action });
        button.addEventListener("click", () => act(action));
        return button;
      }),
    );
  }
  $("actions").hidden = actions.length === 0;
};

// Rates are over the last seconds; of a source without counts, they are those of its topics.
const SPAN = 5000, BACK = 900; // ms
const perSecond = (kind, name, now) => {
  const then = past[0];
  if (!then || now.at - then.at < BACK || !(name in now[kind])) return null;
  return ((now[kind][name] - (then[kind][name] ?? 0)) * 1000) / (now.at - then.at);
};
const remember = (now) => {
  const last = past[past.length - 1];
  if (last && Object.entries(last.taken).some(([name, count]) => (now.taken[name] ?? 0) < count)) past = []; // it began anew
  past = [...past, now].filter((each, index, all) => index === all.length - 1 || now.at - (all[index + 1]?.at ?? now.at) < SPAN);
};

const showRates = (status, taken, edges) => {
  if (!graph) return;
  const now = { at: performance.now(), taken, edges: Object.fromEntries(edges.map(([from, to, count]) => [`${from}\n${to}`, count])) };
  remember(now);
  for (const node of graph.nodes) {
    const topics = graph.topicsOf(node);
    let rate = perSecond("taken", node.name, now);
    const known = topics.filter((topic) => topic in status.rates);
    if (rate === null && node.kind === "Source" && known.length) rate = known.reduce((sum, topic) => sum + status.rates[topic], 0);
    graph.tell(node, rate === null ? "" : `${number(rate)}/s`, node.kind === "Source" ? lagOf(status.lag, topics) : 0);
    const follows = node.kind === "Source" && !(node.name in taken) ? rate : null;
    for (const other of node.to) {
      const along = perSecond("edges", `${node.name}\n${other}`, now) ?? follows;
      graph.tellEdge(node.name, other, along === null ? "" : `${number(along)}/s`);
    }
  }
};

const lagOf = (lag, topics) => Object.entries(lag ?? {}).reduce((sum, [at, count]) => sum + (topics.includes(at.slice(0, at.lastIndexOf("-"))) ? count : 0), 0);

const PHASES = ["plan", "run", "commit", "deliver"];
const colour = (phase, place) => `phase-${(PHASES.includes(phase) ? PHASES.indexOf(phase) : place) % 4}`;
// Levels and the exchange are parts of the run: the chart of latencies shows them.
const phasesOf = (batch) => Object.entries(batch.phases).filter(([phase]) => phase !== "exchange" && !phase.startsWith("level "));
const showBatches = () => {
  const last = batches.slice(-80), width = 8, height = 80;
  const size = (batch) => total(Object.fromEntries(phasesOf(batch))) || batch.records;
  const sizes = last.map(size).sort((one, other) => one - other);
  const most = Math.max(1, sizes[Math.floor(0.95 * (sizes.length - 1))]); // the first batch of a run takes long: what is taller is cut
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${80 * width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  last.forEach((batch, index) => {
    const parts = phasesOf(batch).length ? phasesOf(batch) : [["records", batch.records]];
    let bottom = height;
    parts.forEach(([phase, value], kind) => {
      const tall = Math.min((value / most) * (height - 4) || 1, bottom);
      const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
      title.textContent = `batch ${batch.number}: ${batch.records} records, ${phase} ${number(value)}${phase === "records" ? "" : " ms"}`;
      for (const [name, to] of Object.entries({ class: `bar ${colour(phase, kind)}`, x: index * width, y: (bottom -= tall), width: width - 2, height: tall })) bar.setAttribute(name, to);
      bar.append(title);
      svg.append(bar);
    });
  });
  $("strip").replaceChildren(svg);
  const newest = last[last.length - 1];
  if (newest) {
    const phases = phasesOf(newest);
    $("strip-text").replaceChildren(
      [`batch ${newest.number}`, `${newest.records} records`, `${bytes(newest.state_bytes)} of state`].join(" · "),
      ...phases.flatMap(([phase, ms], kind) => [" · ", Object.assign(document.createElement("i"), { className: `key ${colour(phase, kind)}` }), `${phase} ${number(ms)} ms`]),
    );
  }
};

const standbys = (slot) => {
  const kept = Object.entries(slot.standbys).map(([task, behind]) => behind ? `${task} (${number(behind)} behind)` : task);
  return kept.length ? `; standbys of ${kept.join(" ")}` : "";
};

const showDurability = (told) => {
  const lines = {
    "last committed batch": told.batch,
    "in the log up to": told.delivered < 0 ? "–" : `batch ${told.delivered}`,
    "instance": told.epoch,
    "checkpoint": told.place,
    "state in it": bytes(told.state_bytes),
    "back after a loss in about": duration(told.restore_seconds),
    "between batches": told.interval_ms === null ? "–" : `${number(told.interval_ms)} ms`,
    ...Object.fromEntries(told.slots.map((slot) => [`slot ${slot.slot}`, `${slot.host}, process ${slot.process}: ${slot.tasks.join(" ") || "no tasks"}${standbys(slot)}`])),
    ...Object.fromEntries(told.sources.map((source) => [`source ${source.name}`, `${source.state}, ${number(source.records)} records into ${source.topic}${source.lag === null ? "" : `, ${number(source.lag)} behind`}${source.error === null ? "" : `: ${source.error}`}`])),
    ...Object.fromEntries(told.sinks.map((sink) => [`sink ${sink.name}`, `${sink.guarantee}, ${number(sink.records)} records, batch ${sink.delivered}${sink.waiting ? `, ${sink.waiting} batches wait` : ""}${sink.rejected ? `, ${number(sink.rejected)} records rejected` : ""}${sink.error === null ? "" : `: ${sink.error}`}`])),
    ...(told.slots.length ? { "tasks moved": number(told.moves) } : {}),
  };
  $("durability").replaceChildren(
    ...Object.entries(lines).flatMap(([name, value]) => [
      Object.assign(document.createElement("dt"), { textContent: name }),
      Object.assign(document.createElement("dd"), { textContent: value }),
    ]),
  );
};

const show = (told) => {
  // The last batches come again, because their results were not in the log yet; after a reset the numbers begin anew.
  const first = told.batches.length ? told.batches[0].number : Infinity;
  batches = [...batches.filter((batch) => batch.number < first), ...told.batches].slice(-200);
  showStatus(told.status);
  showDurability(told.durability);
  showRates(told.status, told.counts, told.edges);
  graph?.tellDropped(told.dropped);
  follow();
  counts(told.stores);
  showBatches();
  showLatency(batches);
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
    graph = draw($("graph"), topology, (node, names) => showNode(node, names, stores));
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

const login = async (token) => {
  const answer = await fetch("/session", { method: "POST", body: JSON.stringify({ token }) });
  $("login-failed").textContent = answer.ok ? "" : answer.status === 429 ? "Too many wrong tokens: wait a minute." : "That is not the token.";
  return answer.ok;
};

$("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const entered = $("token").value;
  $("token").value = "";
  if (await login(entered)) start();
});

// The link that the server prints has the token behind the #; it goes into a cookie, and out of the address bar.
const enter = async () => {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token !== null) {
    history.replaceState(null, "", location.pathname);
    try {
      await login(token);
    } catch {
      connected("not connected: trying again");
    }
  }
  start();
};
addEventListener("hashchange", enter);

enter();
