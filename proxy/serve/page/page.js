"use strict";

const PHASES = ["tls", "head", "body", "gate", "auth", "understand", "tokenize", "reserve", "queue",
  "route", "connect", "first_token", "relay"];
const THEIRS = new Set(["first_token"]);
const MOST_POINTS = 120;
const QUIET_MS = 5000; /* the feed says something each second */
const GIVE_UP_MS = 15000;
const history = { ttft: [], itl: [] };
let latest = [];
let heardAt = Date.now();

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

function fill(id, rows, empty) {
  const table = at(id);
  if (!rows.length) {
    const cell = element("td", empty, "text quiet");
    cell.colSpan = table.tHead.rows[0].cells.length;
    const row = element("tr");
    row.append(cell);
    table.tBodies[0].replaceChildren(row);
    return;
  }
  table.tBodies[0].replaceChildren(...rows.map((cells) => {
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
    ["TTFT p50, ms", ms(traffic.ttft_ms.p50)],
    ["TTFT p99, ms", ms(traffic.ttft_ms.p99)],
    ["ITL p50, ms", ms(traffic.itl_ms.p50)],
    ["ITL p99, ms", ms(traffic.itl_ms.p99)],
    ["tokens out / s", count(traffic.output_tokens_per_s)],
    ["tokens in / s", count(traffic.prompt_tokens_per_s)],
    ["in, cached", share === null ? "–" : (share * 100).toFixed(0) + " %"],
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
  const known = points.flat().filter((value) => value !== null);
  const top = Math.max(1, ...known) * 1.1;
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
  const level = (share) => {
    const y = 115 - share / 1.1 * 105;
    return [make("line", { x1: 0, x2: 360, y1: y, y2: y }),
      make("text", { x: 4, y: y - 3 }, ms(top / 1.1 * share))];
  };
  if (known.length) svg.replaceChildren(...level(1), ...level(0.5), line(0, "a"), line(1, "b"));
  else svg.replaceChildren(make("text", { x: 4, y: 12 }, "nothing in the last two minutes"));
}

function outcome(record) {
  const good = record.reason === "ok";
  return [`${record.status ?? "–"} ${record.reason ?? ""}`, good ? "text long good" : "text long bad"];
}

function find(id) {
  return document.querySelector(`[data-id="${CSS.escape(id)}"]`);
}

function shut() {
  const box = at("waterfall");
  if (box.hidden) return;
  box.hidden = true;
  (find(box.dataset.of) ?? at("only-failures")).focus();
}

function waterfall(record) {
  const box = at("waterfall");
  box.dataset.of = record.request_id;
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
  const close = element("button", "close");
  close.addEventListener("click", shut);
  box.append(close);
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
    return [[(record.time ?? "").slice(11, 19), "text"], cell, [record.tenant ?? "–", "text rare"],
      [record.model ?? "–", "text rare"], [record.replica ?? "–", "text rare"], outcome(record),
      ms(record.ttft_ms), ms(record.total_ms)];
  }), failures ? "no failure among the latest" : "none yet");
  if (focused) find(focused)?.focus({ preventScroll: true });
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
    count(row.in_flight), count(row.pending_tokens), [count(row.live_tokens), "rare"],
    [row.cache, "text rare"]]), "none");
  fill("tiers", view.tiers.map((row) => {
    const over = row.allowed_ms !== null && row.late > 0.05;
    const verdict = row.allowed_ms === null ? ["–", "text"]
      : [over ? "OVER" : "PASS", over ? "text bad" : "text good"];
    return [row.tier, [row.part, "text"], ms(row.allowed_ms), [ms(row.p50), "rare"], ms(row.p95),
      [ms(row.p99), "rare"], (row.late * 100).toFixed(1) + " %", verdict];
  }), "no exchange of a tier");
  at("slower").textContent = view.slower.map((row) =>
    `${row.phase} takes longer than before: ${ms(row.usual_ms)} → ${ms(row.now_ms)} ms`).join("; ");
  fill("limits", view.limits.map((row) => [row.rule, [row.unit, "text"], count(row.asked),
    [count(row.refused), row.refused ? "bad" : ""]]), "no decision");
  fill("failures", view.failures.map((row) => [[row.reason, "long"], [row.phase, "text"], count(row.count)]),
    "none");
  chart("ttft", view.traffic.ttft_ms);
  chart("itl", view.traffic.itl_ms);
  latest = view.recent;
  recent();
}

function say(words) {
  at("state").textContent = words;
  at("state").className = "bad";
  document.body.classList.add("old");
}

let feed;
function listen() {
  feed?.close();
  feed = new EventSource("live");
  feed.onmessage = (message) => {
    heardAt = Date.now();
    document.body.classList.remove("old");
    show(JSON.parse(message.data));
  };
  feed.onerror = () => {
    say("the gateway does not answer; trying again");
    if (feed.readyState === EventSource.CLOSED) setTimeout(listen, QUIET_MS);
  };
}

/* A connection may hang without an error, when a host is gone for instance. */
setInterval(() => {
  const quietMs = Date.now() - heardAt;
  if (quietMs < QUIET_MS) return;
  say(`no news for ${Math.round(quietMs / 1000)} s; what is below is as old`);
  if (quietMs >= GIVE_UP_MS && quietMs % GIVE_UP_MS < 1000) listen();
}, 1000);

at("only-failures").addEventListener("change", recent);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") shut();
});
listen();
