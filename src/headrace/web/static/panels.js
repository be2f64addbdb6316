// The panels below the graph: headline, durability, slots, sources and sinks, dropped records, changes.

import { $, fillTable, make } from "./api.js";
import { bytes, count, duration, instant, number, total } from "./format.js";

// --------------------------------------------------------------------------------------------------------- headline
export const showStatus = (told, latency) => {
  const { status, rates } = told;
  document.title = `${status.application} · Headrace`;
  $("application").textContent = status.application;
  $("state").textContent = status.state;
  $("state").className = `badge ${status.healthy ? "good" : "bad"}`;
  $("verdict").textContent = status.verdict;
  $("verdict").className = status.healthy ? "" : "bad";
  $("rate").textContent = number(rates.read);
  $("rate-out").textContent = number(rates.written);
  $("lag").textContent = status.lag === null ? "–" : number(total(status.lag));
  $("catch-up").textContent = status.catch_up === null ? "records" : `records, ${duration(status.catch_up * 1000)} of work`;
  $("latency-p50").textContent = latency === null ? "–" : duration(latency.p50);
  $("latency-p99").textContent = latency === null ? "log to log" : `p50, and p99 ${duration(latency.p99)}`;
  $("latency-note").hidden = latency === null || latency.has_wait;
  $("latency-title").textContent = $("latency-note").hidden ? "Latency from log to log" : "Latency from the begin of a batch to the log";
  $("batch").textContent = status.batch;
  $("delivered").textContent = status.delivered < 0 ? "" : status.delivered >= status.batch ? "delivered" : `delivered up to ${status.delivered}`;
  $("dropped").textContent = number(total(status.dropped));
  $("dead-letters-tile").hidden = told.dead_letters === null;
  $("dead-letters").textContent = number(told.dead_letters);
};

// ------------------------------------------------------------------------------------------------------- durability
const restore = ({ state_bytes: size, restore_seconds: seconds }) =>
  size ? `${bytes(size)} to read again, ${seconds < 1 ? "in less than a second" : `in about ${duration(seconds * 1000)}`}` : "nothing to read again";

export const showDurability = (told) => {
  const lines = {
    "Last commit": `batch ${told.batch}, at ${instant(told.clock)}`,
    "Results in the log": told.delivered < 0 ? "none yet" : `up to batch ${told.delivered}`,
    "Batches": told.interval_ms === null ? "–" : `one every ${duration(told.interval_ms)}`,
    "Checkpoint": told.place,
    "State in it": `${bytes(told.state_bytes)} in ${count(Object.keys(told.tasks).length)} tasks`,
    "If all copies are lost": restore(told),
    "Starts and takeovers": count(told.epoch),
  };
  $("durability").replaceChildren(...Object.entries(lines).flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
};

// ---------------------------------------------------------------------------------------------- slots and connectors
export const showSlots = ({ slots, moves }) => {
  $("slots-panel").hidden = slots.length === 0;
  fillTable($("slots"), slots.map((slot) => [
    String(slot.slot), slot.host, String(slot.process), slot.tasks.join(" ") || "none",
    Object.entries(slot.standbys).map(([task, behind]) => (behind ? `${task} (${count(behind)} batches behind)` : task)).join(" ") || "none",
  ]));
  $("moves").textContent = moves ? `${count(moves)} ${moves === 1 ? "task has" : "tasks have"} moved to another slot since the start.` : "No task has moved to another slot since the start.";
};

const STATES = { RUNNING: "good", RETRYING: "bad", FAILED: "bad", FENCED: "bad" };
const many = (value, one, more) => `${count(value)} ${value === 1 ? one : more}`;
const failed = ({ failures }) => (failures ? `; ${many(failures, "attempt has", "attempts have")} failed since the start` : "");
const badge = (text, kind) => make("span", { textContent: text, className: `badge ${kind ?? ""}` });

export const showConnectors = ({ sources, sinks }) => {
  $("connectors-panel").hidden = !sources.length && !sinks.length;
  fillTable($("connectors"), [
    ...sources.map((source) => [
      `source ${source.name}`, badge(source.state.toLowerCase(), STATES[source.state]), count(source.records),
      source.lag === null ? "–" : many(source.lag, "record", "records"), `${source.error ?? `into the topic ${source.topic}`}${failed(source)}`,
    ]),
    ...sinks.map((sink) => [
      `sink ${sink.name}`, sink.error === null ? badge("delivering", "good") : badge("away", "bad"),
      `${count(sink.records)}${sink.rejected ? `, ${count(sink.rejected)} rejected` : ""}`,
      many(sink.waiting, "batch", "batches"), `${sink.error ?? `${sink.guarantee.replaceAll("_", " ")}, up to batch ${sink.delivered}`}${failed(sink)}`,
    ]),
  ]);
};

// -------------------------------------------------------------------------------------------------- dropped records
const placeOf = (drop) => `${drop.topic}-${drop.partition}${drop.offset === null ? "" : ` at ${drop.offset}`}`;

const describeLetters = ({ dead_letters: letters, dead_letter_topic: topic }) => {
  if (letters === null) return "There is no dead letter topic.";
  return `${many(letters, "record", "records")} went to the dead letter topic ${topic} since the start${letters ? `: headrace dead-letters list --topic ${topic}` : "."}`;
};

export const showDrops = (told) => {
  const { drops } = told, failed = describeLetters(told);
  $("drops-none").textContent = drops.reasons.length ? `One record counts once for each operator that drops it. ${failed}` : `No record was dropped. ${failed}`;
  $("reasons").hidden = drops.reasons.length === 0;
  fillTable($("reasons"), drops.reasons.map((row) => [row.reason, count(row.records), row.why]));
  $("drops").hidden = drops.last.length === 0;
  fillTable($("drops"), drops.last.map((drop) => [instant(drop.clock), drop.reason, drop.operator, placeOf(drop), drop.key, instant(drop.timestamp), instant(drop.stream_time)]));
};

// ---------------------------------------------------------------------------------------------------------- changes
const SIGNS = { kept: " ", new: "+", removed: "−", incompatible: "!" };

const describeChange = (change) => {
  const size = change.bytes ? ` (${count(change.entries)} entries, ${bytes(change.bytes)})` : "";
  const was = change.before !== null && change.before !== change.name ? ` (was ${change.before})` : "";
  const line = make("li", { className: `change ${change.action}` }, make("b", { textContent: `${SIGNS[change.action] ?? "~"} ${change.subject} ${change.name}${was}: ${change.action}` }));
  if (change.effect) line.append(make("span", { textContent: `${change.effect}${size}` }));
  if (change.decision !== null) line.append(make("span", { className: "bad", textContent: `decide: ${change.decision}` }));
  return line;
};

// What the next start would change comes before what the last one has changed.
export const showChanges = ({ last, next }) => {
  const planned = next?.changes.filter((change) => change.action !== "kept" || change.decision !== null) ?? [];
  const shown = planned.length ? planned : last?.changes ?? [];
  $("changes-panel").hidden = shown.length === 0;
  $("changes-title").textContent = planned.length ? `What the next start changes, after batch ${next.batch}` : `What the last start changed, after batch ${last?.batch}`;
  $("changes").replaceChildren(...shown.map(describeChange));
  const kept = (next?.changes.length ?? 0) - planned.length;
  $("changes-note").textContent = !planned.length ? "" : next.decisions ? `${next.decisions} to decide: the application does not start before.` : `Nothing to decide: the next start makes these changes, all of them or none. ${kept} kept.`;
};
