// The page: reads what stands still once, and what moves from one stream of events.

import { $, ask, make } from "./api.js";
import { clearPoints, lastLatency, showPoints } from "./charts.js";
import { TopologyGraph } from "./graph.js";
import { follow, showNode } from "./node.js";
import { showChanges, showConnectors, showDrops, showDurability, showSlots, showStatus } from "./panels.js";
import { listStores, showEntries } from "./stores.js";

let graph = null, listening = null, attempt = 0;

// ---------------------------------------------------------------------------------------------------------- actions
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
        const button = make("button", { type: "button", textContent: action });
        button.addEventListener("click", () => act(action));
        return button;
      }),
    );
  }
  $("actions").hidden = actions.length === 0;
};

// ----------------------------------------------------------------------------------------------------------- events
const show = (told) => {
  const { status, durability, rates, dropped } = told;
  showPoints(told.points);
  showStatus(told, lastLatency());
  showActions(status.actions);
  graph?.tell({ rates, dropped, lag: status.lag, healthy: status.healthy });
  showDurability(durability);
  showSlots(durability);
  showConnectors(durability);
  showDrops(told);
  showEntries(told.stores);
  follow();
};

const connected = (words) => {
  $("connection").textContent = words;
  $("connection").className = words === "live" ? "live" : "";
};

const listen = () => {
  listening?.close();
  listening = new EventSource("/events");
  clearPoints();
  listening.addEventListener("state", (event) => { attempt = 0; connected("live"); show(JSON.parse(event.data)); });
  listening.addEventListener("waiting", () => connected("waiting for the first batch"));
  listening.onerror = () => {
    connected("not connected: trying again");
    listening.close();
    startLater(); // the topology may be another one after a restart
  };
};

// ------------------------------------------------------------------------------------------------- start and log-in
const start = async () => {
  try {
    const [topology, { stores }] = await Promise.all([ask("/api/topology"), ask("/stores")]);
    $("login").hidden = true;
    document.body.classList.add("open");
    graph?.close();
    graph = new TopologyGraph($("graph"), topology, (node) => showNode(node, stores, () => graph.forget()));
    listStores(stores);
    listen();
    showPlan();
  } catch (error) {
    if (error.status === 401) {
      $("login").hidden = false;
      connected("a token is needed");
      return;
    }
    connected(error.status === 503 ? "waiting for the first batch" : "not connected: trying again");
    startLater();
  }
};

const showPlan = async () => {
  try {
    showChanges(await ask("/api/plan"));
  } catch (error) {
    $("changes-panel").hidden = false;
    $("changes-title").textContent = "What the next start changes is not known";
    $("changes-note").textContent = error.message;
  }
};

const startLater = () => setTimeout(start, Math.min(250 * 2 ** attempt++, 5000));

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

$("zoom-in").addEventListener("click", () => graph?.zoomBy(1));
$("zoom-out").addEventListener("click", () => graph?.zoomBy(-1));
$("zoom-fit").addEventListener("click", () => graph?.fit());
$("graph").addEventListener("dblclick", (event) => graph?.zoomBy(2, event));
$("graph").addEventListener("wheel", (event) => graph?.wheel(event), { passive: false });
$("graph").addEventListener("keydown", (event) => { if (event.target === $("graph")) graph?.press(event); });

enter();
