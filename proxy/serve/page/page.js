"use strict";

const PHASES = ["tls", "head", "body", "gate", "auth", "understand", "tokenize", "reserve", "queue",
  "route", "connect", "first_token", "relay"];
const THEIRS = new Set(["first_token"]);
const MOST_POINTS = 120;
const history = { ttft: [], tpot: [] };
let latest = [];

const at = (id) => document.getElementById(id);

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function ms(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 ? value.toFixed(0) : value.toFixed(value >= 10 ? 1 : 2);
}

function count(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1e6) return (value / 1e6).toFixed(1) + " M";
  return value >= 1e4 ? (value / 1e3).toFixed(1) + " k" : String(value);
}

function fill(id, rows) {
  at(id).tBodies[0].replaceChildren(...rows.map((cells) => {
    const row = element("tr");
    for (const cell of cells) {
      if (cell instanceof Node) row.append(cell);
      else if (Array.isArray(cell)) row.append(element("td", cell[0], cell[1]));
      else row.append(element("td", cell));
    }
    return row;
  }));
}

function figures(traffic) {
  const share = traffic.cached_share;
  const shown = [
    ["requests / s", count(traffic.requests_per_s)],
    ["in flight", count(traffic.in_flight)],
    ["failures / s", count(traffic.failures_per_s)],
    ["TTFT p50", ms(traffic.ttft_ms.p50) + " ms"],
    ["TTFT p99", ms(traffic.ttft_ms.p99) + " ms"],
    ["output tokens / s", count(traffic.output_tokens_per_s)],
    ["prompt tokens / s", count(traffic.prompt_tokens_per_s)],
    ["prompt cached", share === null ? "–" : (share * 100).toFixed(0) + " %"],
    ["connections", count(traffic.connections)],
  ];
  at("figures").replaceChildren(...shown.map(([label, value]) => {
    const card = element("div");
    card.append(element("b", value), element("span", label));
    return card;
  }));
}

function chart(name, quantiles) {
  const points = history[name];
  points.push([quantiles.p50, quantiles.p99]);
  if (points.length > MOST_POINTS) points.shift();
  const top = Math.max(1, ...points.flat().filter((value) => value !== null)) * 1.1;
  const svg = at(name);
  const make = (tag, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const line = (index, className) => {
    const places = points.map((pair, x) => pair[index] === null ? null
      : `${(x + MOST_POINTS - points.length) * 3},${(115 - pair[index] / top * 105).toFixed(1)}`);
    return make("polyline", { class: className, points: places.filter(Boolean).join(" ") });
  };
  svg.replaceChildren(make("text", { x: 4, y: 12 }, ms(top)), line(0, "a"), line(1, "b"));
}

function outcome(record) {
  const good = record.reason === "ok";
  return [`${record.status ?? "–"} ${record.reason ?? ""}`, good ? "text good" : "text bad"];
}

function waterfall(record) {
  const box = at("waterfall");
  const total = Math.max(record.total_ms || 0, 0.001);
  box.replaceChildren(element("h3", `${record.request_id}: ${record.method} ${record.route ?? ""}, `
    + `${record.status ?? "no answer"} ${record.reason ?? ""}, ${ms(record.total_ms)} ms`));
  let before = 0;
  for (const phase of PHASES) {
    const took = record[phase + "_ms"];
    if (took === undefined) continue;
    const row = element("div", undefined, "phase");
    const lane = element("div");
    const bar = element("i", undefined, THEIRS.has(phase) ? "theirs" : "");
    bar.style.marginLeft = Math.min(before / total * 100, 99.5) + "%";
    bar.style.width = Math.min(took / total * 100, 100) + "%";
    lane.append(bar);
    row.append(element("span", phase), lane, element("span", ms(took) + " ms"));
    box.append(row);
    before += took;
  }
  const facts = ["tenant", "model", "replica", "tries", "prompt_tokens", "cached_tokens",
    "completion_tokens", "tls_resumed", "tier", "over_budget", "limit", "trace_id"]
    .filter((name) => record[name] !== undefined).map((name) => `${name} ${record[name]}`);
  box.append(element("p", facts.join(" · "), "quiet"));
  box.hidden = false;
  box.focus();
}

function recent() {
  const failures = at("only-failures").checked;
  const shown = latest.filter((record) => !failures || record.reason !== "ok").slice(0, 30);
  const focused = document.activeElement?.dataset?.id;
  fill("recent", shown.map((record) => {
    const cell = element("td", undefined, "text");
    const button = element("button", record.request_id.slice(0, 8));
    button.dataset.id = record.request_id;
    button.setAttribute("aria-label", `where the time of ${record.request_id} went`);
    button.addEventListener("click", () => waterfall(record));
    cell.append(button);
    return [[(record.time ?? "").slice(11, 23), "text"], cell, [record.tenant ?? "–", "text"],
      [record.model ?? "–", "text"], [record.replica ?? "–", "text"], outcome(record),
      ms(record.ttft_ms), ms(record.total_ms)];
  }));
  if (focused) document.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
}

function show(view) {
  const state = at("state");
  state.textContent = view.ready ? `ready, ${view.workers} ${view.workers === 1 ? "worker" : "workers"}, `
    + `configuration ${view.generation}` : "not ready: " + view.reasons.join("; ");
  state.className = view.ready ? "good" : "bad";
  figures(view.traffic);
  fill("replicas", view.replicas.map((row) => [row.id,
    row.healthy_in >= view.workers ? ["well", "text good"]
      : [row.healthy_in ? "partly away" : row.tried_in ? "being tried" : "away", "text bad"],
    count(row.in_flight), count(row.pending_tokens), count(row.live_tokens), [row.cache, "text"]]));
  fill("tiers", view.tiers.map((row) => {
    const over = row.allowed_ms !== null && row.late > 0.05;
    const verdict = row.allowed_ms === null ? ["–", "text"]
      : [over ? "OVER" : "PASS", over ? "text bad" : "text good"];
    return [row.tier, [row.part, "text"], ms(row.allowed_ms), ms(row.p50), ms(row.p95), ms(row.p99),
      (row.late * 100).toFixed(1) + " %", verdict];
  }));
  at("no-tiers").hidden = view.tiers.length > 0;
  fill("limits", view.limits.map((row) => [row.rule, [row.unit, "text"], count(row.asked),
    [count(row.refused), row.refused ? "bad" : ""]]));
  fill("failures", view.failures.map((row) => [row.reason, [row.phase, "text"], count(row.count)]));
  chart("ttft", view.traffic.ttft_ms);
  chart("tpot", view.traffic.tpot_ms);
  latest = view.recent;
  recent();
}

at("only-failures").addEventListener("change", recent);
const feed = new EventSource("live");
feed.onmessage = (message) => show(JSON.parse(message.data));
feed.onerror = () => {
  at("state").textContent = "the gateway does not answer; trying again";
  at("state").className = "bad";
};
