// The store browser: one key, or page by page.

import { $, ask, make } from "./api.js";
import { count, instant } from "./format.js";

let store = null, next = null;

const COLUMNS = { key: "key", window: "window", value: "value", timestamp: "time", valid_to: "valid until" };
const columnsOf = (rows) => Object.keys(COLUMNS).filter((name) => rows.some((row) => name in row));
const shown = (name, value) => {
  if (value === null || value === undefined) return "";
  if (name === "window") return `${instant(value.start)} – ${instant(value.end)}`;
  if (name === "timestamp" || name === "valid_to") return instant(value);
  return typeof value === "string" ? value : JSON.stringify(value);
};

const fill = (rows, keep) => {
  const [head, body] = [$("rows").tHead, $("rows").tBodies[0]];
  if (!keep) body.replaceChildren();
  const columns = columnsOf(rows);
  if (columns.length) head.replaceChildren(make("tr", {}, ...columns.map((name) => make("th", { textContent: COLUMNS[name] }))));
  body.append(...rows.map((row) => make("tr", {}, ...columns.map((name) => make("td", { textContent: shown(name, row[name]) })))));
};

const look = async (more) => {
  if (!store) return;
  const key = $("browse-key").value, windowed = /window|session/.test(store.kind), given = new URLSearchParams();
  const versions = key && store.kind === "versioned";
  if (more && next) given.set("next", next);
  if (key && (windowed || versions)) given.set("key", key);
  else if (key) ["from", "to"].forEach((bound) => given.set(bound, key));
  $("browse-failed").textContent = "";
  const at = `/stores/${encodeURIComponent(store.name)}`;
  try {
    const found = await ask(`${at}/${versions ? "versions" : windowed ? "windows" : "range"}?${given}`);
    const rows = found.rows;
    fill(rows, more);
    next = found.next;
    $("browse-next").disabled = !next;
    $("browse-batch").textContent = `as of batch ${found.position.batch}${rows.length ? "" : ": nothing there"}`;
  } catch (error) {
    $("browse-failed").textContent = error.message;
  }
};

export const choose = (chosen) => {
  store = chosen;
  next = null;
  for (const button of $("stores").children) button.setAttribute("aria-pressed", String(button.dataset.name === chosen.name));
  return look(false);
};

export const listStores = (stores) => {
  $("stores-panel").hidden = stores.length === 0;
  $("stores").replaceChildren(
    ...stores.map((each) => {
      const entries = make("small", { className: "entries", textContent: count(each.entries) });
      const button = make("button", { type: "button", title: `${each.kind}, ${each.key} → ${each.value}` }, each.name, entries);
      button.dataset.name = each.name;
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => choose(each));
      return button;
    }),
  );
};

export const showEntries = (entries) => {
  for (const button of $("stores").children) button.querySelector(".entries").textContent = count(entries[button.dataset.name]);
};

$("browse").addEventListener("submit", (event) => { event.preventDefault(); look(false); });
$("browse-next").addEventListener("click", () => look(true));
