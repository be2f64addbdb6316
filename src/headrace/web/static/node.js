// The panel of a node: its stores, what each of its tasks did, and the last records that went through it.

import { $, ask, fillTable, make } from "./api.js";
import { bytes, count, instant } from "./format.js";
import { choose } from "./stores.js";

const where = ({ topic, partition, offset }) => (partition === null ? topic : `${topic}-${partition}`) + (offset === null ? "" : ` at ${offset}`);

let chosen = null, asking = false, onClose = () => {};

const bars = (title, tasks, valueOf, words) => {
  const most = Math.max(1, ...tasks.map(valueOf));
  return make("div", { className: "bars" },
    make("h3", { textContent: title }),
    ...tasks.map((task) => {
      const meter = make("meter", { min: 0, max: most, value: valueOf(task) });
      const row = make("div", {}, make("span", { textContent: task.task }), meter, make("span", { textContent: words(valueOf(task)) }));
      row.dataset.task = task.task;
      return row;
    }));
};

const fill = (told) => {
  const found = [];
  if (told.tasks.length && told.records !== null) found.push(bars("records by task", told.tasks, (task) => task.records, count));
  else if (told.tasks.length) found.push(bars("records into its sub-topology, by task", told.tasks, (task) => task.taken, count));
  if (told.tasks.length && chosen.stores.length) found.push(bars("state by task", told.tasks, (task) => task.state_bytes, bytes));
  $("node-tasks").replaceChildren(...found);
  $("node-records").textContent = told.records === null ? "" : `${count(told.records)} records since the application was started`;
  $("samples").hidden = told.samples.length === 0;
  fillTable($("samples"), told.samples.toReversed().map((sample) => [instant(sample.timestamp), where(sample), sample.key, sample.value]));
};

// Called with every event, too: what is shown follows the application.
export const follow = async () => {
  if (!chosen || asking) return;
  asking = true;
  const { name } = chosen;
  try {
    const told = await ask(`/api/nodes/${encodeURIComponent(name)}`);
    if (chosen?.name === name) fill(told);
  } catch (error) {
    if (error.status !== 404) $("node-records").textContent = error.message;
  } finally {
    asking = false;
    if (chosen && chosen.name !== name) follow();
  }
};

// `closed` is called when the user closes the panel.
export const showNode = (node, stores, closed) => {
  chosen = node;
  onClose = closed;
  $("node-panel").hidden = false;
  $("node-name").textContent = node.name;
  $("node-details").textContent = node.details;
  $("node-records").textContent = "";
  $("node-tasks").replaceChildren();
  $("samples").hidden = true;
  $("node-stores").replaceChildren(
    ...stores.filter((store) => node.stores.includes(store.name)).map((store) => {
      const button = make("button", { type: "button", textContent: `${store.name}, ${count(store.entries)} entries` });
      button.addEventListener("click", () => { choose(store); $("stores-panel").scrollIntoView({ block: "nearest" }); });
      return button;
    }),
  );
  return follow();
};

$("node-close").addEventListener("click", () => { chosen = null; $("node-panel").hidden = true; onClose(); });
