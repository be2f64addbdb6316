// Light and dark: as the system says, unless the user chooses one. The choice stays in this browser.

import { $ } from "./api.js";

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const LABEL = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" };
const listeners = [];

const chosen = () => {
  const found = localStorage.getItem("theme");
  return found in NEXT ? found : "auto";
};

const apply = () => {
  const theme = chosen();
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = LABEL[theme];
  $("theme").title = `colours: ${theme}. Click for ${NEXT[theme]}.`;
  for (const listener of listeners) listener();
};

// Calls a function whenever colours change.
export const onTheme = (listener) => listeners.push(listener);

// The value of a colour of style.css at this moment, for a canvas.
export const colour = (name) => {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};

$("theme").addEventListener("click", () => { localStorage.setItem("theme", NEXT[chosen()]); apply(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
apply();
