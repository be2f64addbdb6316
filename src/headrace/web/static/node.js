// The panel of a node: its stores, what each of its tasks did, and the last records that went through it.
// Whatever comes from the application is set as text, never as markup.

import { ask, bytes, choose } from "./stores.js";

const $ = (id) => document.getElementById(id);
const make = (name, properties, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const time = (ms) => { try { return new Date(ms).toISOString(); } catch { return String(ms); } };
const where = ({ topic, partition, offset }) => (partition === null ? topic : `${topic}-${partition}`) + (offset === null ? "" : ` · offset ${offset}`);

let chosen = null, asking = false;

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

const count = (value) => value.toLocaleString("en");

const fill = (told) => {
  const found = [];
  if (told.tasks.length && told.records !== null) found.push(bars("records by task", told.tasks, (task) => task.records, count));
  else if (told.tasks.length) found.push(bars("records into its sub-topology, by task", told.tasks, (task) => task.taken, count));
  if (told.tasks.length && chosen.stores.length) found.push(bars("state by task", told.tasks, (task) => task.state_bytes, bytes));
  $("node-tasks").replaceChildren(...found);
  $("node-records").textContent = told.records === null ? "" : `${count(told.records)} records since the application was started`;
  $("samples").hidden = told.samples.length === 0;
  $("samples").tBodies[0].replaceChildren(
    ...told.samples.toReversed().map((sample) => make("tr", {},
      make("td", { textContent: sample.key === null ? "∅" : sample.key, className: sample.key === null ? "none" : "" }),
      make("td", { textContent: sample.value === null ? "∅" : sample.value, className: sample.value === null ? "none" : "" }),
      make("td", { textContent: `${time(sample.timestamp)}\n${where(sample)}` }))),
  );
};

// Called with every event, too: what is shown follows the application.
export const follow = async () => {
  if (!chosen || asking) return;
  asking = true;
  const name = chosen.node.name;
  try {
    const told = await ask(`/api/nodes/${encodeURIComponent(name)}`);
    if (chosen?.node.name === name) fill(told);
  } catch (error) {
    if (error.status !== 404) $("node-records").textContent = error.message;
  } finally {
    asking = false;
    if (chosen && chosen.node.name !== name) follow();
  }
};

export const showNode = (node, names, stores) => {
  chosen = { node, stores: names };
  $("node-panel").hidden = false;
  $("node-name").textContent = node.name;
  $("node-details").textContent = node.details;
  $("node-records").textContent = "";
  $("node-tasks").replaceChildren();
  $("samples").hidden = true;
  $("node-stores").replaceChildren(
    ...stores.filter((store) => names.includes(store.name)).map((store) => {
      const button = make("button", { type: "button", textContent: `${store.name}, ${store.entries} entries` });
      button.addEventListener("click", () => { choose(store); $("stores-panel").scrollIntoView({ block: "nearest" }); });
      return button;
    }),
  );
  return follow();
};

export const forget = () => { chosen = null; $("node-panel").hidden = true; };
$("node-close").addEventListener("click", forget);
