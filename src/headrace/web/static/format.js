// How the page writes numbers, durations, times and sizes: one notation for each.

const trimmed = (value, digits) => value.toFixed(digits).replace(/\.0$/, "");
const grouped = (value) => Math.round(value).toLocaleString("en");

// A count or a rate, in at most six characters: 0.3, 89.3, 1,240, 12.4 k, 3.1 M.
export const number = (value) => {
  if (value === null || value === undefined) return "–";
  if (value < 100) return trimmed(value, 1);
  if (value < 10_000) return grouped(value);
  if (value < 999_950) return `${trimmed(value / 1e3, 1)} k`;
  return value < 999_950_000 ? `${trimmed(value / 1e6, 1)} M` : `${trimmed(value / 1e9, 1)} G`;
};

export const count = (value) => (value === null || value === undefined ? "–" : grouped(value));

// A duration, from milliseconds: 0.4 ms, 850 ms, 1.2 s, 3.5 min, 2 h, 4 days.
export const duration = (ms) => {
  if (ms === null || ms === undefined) return "–";
  if (ms < 10) return `${trimmed(ms, 1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120_000) return `${trimmed(ms / 1000, 1)} s`;
  if (ms < 3_600_000) return `${trimmed(ms / 60_000, 1)} min`;
  return ms < 172_800_000 ? `${trimmed(ms / 3_600_000, 1)} h` : `${count(ms / 86_400_000)} days`;
};

// A point in time, from milliseconds, in UTC: 2026-11-16 05:03:41.249.
export const instant = (ms) => {
  try {
    return new Date(ms).toISOString().replace("T", " ").replace("Z", "");
  } catch {
    return String(ms); // beyond the years that a Date has
  }
};

export const bytes = (value) => {
  const unit = value < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${trimmed(value / 1024 ** unit, unit ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
};

export const total = (mapping) => Object.values(mapping ?? {}).reduce((sum, each) => sum + each, 0);
