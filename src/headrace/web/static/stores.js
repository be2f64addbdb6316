// The store browser: one key, or page by page.

const $ = (id) => document.getElementById(id);
const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));

export const ask = async (path) => {
  const response = await fetch(path, { headers: { accept: "application/json" } });
  const found = await response.json();
  if (!response.ok) throw Object.assign(new Error(found.message || response.statusText), { status: response.status });
  return found;
};

export const bytes = (value) => {
  const unit = value < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${(value / 1024 ** unit).toFixed(unit ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
};

let store = null, next = null;

const columnsOf = (rows) => ["key", "window", "value", "timestamp", "valid_to"].filter((name) => rows.some((row) => name in row));
const shown = (name, value) => {
  if (value === null || value === undefined) return "";
  if (name === "window") return `${value.start} – ${value.end}`;
  return text(value);
};

const fill = (rows, keep) => {
  const [head, body] = [$("rows").tHead, $("rows").tBodies[0]];
  if (!keep) body.replaceChildren();
  const columns = columnsOf(rows);
  if (columns.length) {
    const line = document.createElement("tr");
    line.append(...columns.map((name) => Object.assign(document.createElement("th"), { textContent: name })));
    head.replaceChildren(line);
  }
  for (const row of rows) {
    const line = document.createElement("tr");
    line.append(...columns.map((name) => Object.assign(document.createElement("td"), { textContent: shown(name, row[name]) })));
    body.append(line);
  }
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

export const list = (stores) => {
  $("stores").replaceChildren(
    ...stores.map((each) => {
      const button = Object.assign(document.createElement("button"), { type: "button", title: `${each.kind}, ${each.key} → ${each.value}` });
      button.dataset.name = each.name;
      button.setAttribute("aria-pressed", "false");
      const count = Object.assign(document.createElement("small"), { className: "entries", textContent: ` ${each.entries}` });
      button.append(document.createTextNode(each.name), count);
      button.addEventListener("click", () => choose(each));
      return button;
    }),
  );
};

export const counts = (entries) => {
  for (const button of $("stores").children) button.querySelector(".entries").textContent = ` ${entries[button.dataset.name] ?? ""}`;
};

$("browse").addEventListener("submit", (event) => { event.preventDefault(); look(false); });
$("browse-next").addEventListener("click", () => look(true));
