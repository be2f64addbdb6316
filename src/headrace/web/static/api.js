// Requests to the server, and the helpers that put its answers into the page.
// What comes from the application is set as text, never as markup.

export const $ = (id) => document.getElementById(id);

export const ask = async (path) => {
  const response = await fetch(path, { headers: { accept: "application/json" } });
  const found = await response.json();
  if (!response.ok) throw Object.assign(new Error(found.message || response.statusText), { status: response.status });
  return found;
};

export const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

// Fills the body of a table: each row is a list of cells, each cell a text, an element or null.
export const fillTable = (table, rows) => {
  table.tBodies[0].replaceChildren(
    ...rows.map((cells) => make("tr", {}, ...cells.map((cell) => {
      if (cell === null || cell === undefined) return make("td", { textContent: "∅", className: "none" });
      return make("td", {}, cell);
    }))),
  );
};
