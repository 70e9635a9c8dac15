"""The page around an icicle: markup, style and the script that draws the boxes; it fetches nothing."""

HOLE = "{{trace}}"  # where the data goes, as JSON
PAGE = r"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>pytrace-ebpf: layers</title>
<style>
  :root { color-scheme: light; --line: #d8dde4; --dim: #5b6673; }
  * { box-sizing: border-box; }
  body { margin: 0; height: 100vh; display: flex; flex-direction: column; background: #fff; color: #1b1f24;
         font: 13px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
  header { padding: 12px 16px 10px; border-bottom: 1px solid var(--line); }
  h1 { margin: 0; font-size: 16px; font-weight: 600; overflow: hidden; white-space: nowrap; text-overflow: ellipsis; }
  p { margin: 1px 0 9px; color: var(--dim); }
  nav { display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: center; }
  #legend { display: flex; flex-wrap: wrap; gap: 2px 14px; flex: 1; }
  #legend b { font-weight: 600; font-variant-numeric: tabular-nums; }
  i { display: inline-block; width: 11px; height: 11px; margin-right: 5px; border-radius: 2px; vertical-align: -1px; }
  button, input { font: inherit; color: inherit; height: 26px; padding: 0 10px; background: #fff; border: 1px solid var(--line); border-radius: 5px; }
  button { cursor: pointer; }
  button:hover:enabled { background: #f3f5f8; }
  button:disabled { color: #aab2bd; cursor: default; }
  .choice button:first-child { border-radius: 5px 0 0 5px; }
  .choice button:last-child { border-radius: 0 5px 5px 0; margin-left: -1px; }
  .choice button.on { background: #e7edf6; font-weight: 600; }
  #room { flex: 1; overflow-x: hidden; overflow-y: auto; position: relative; }
  canvas { position: sticky; top: 0; display: block; width: 100%; cursor: pointer; }
  footer { padding: 5px 16px; border-top: 1px solid var(--line); color: var(--dim); font-size: 12px; }
  #tip { position: fixed; display: none; pointer-events: none; max-width: 460px; padding: 8px 11px; background: #fff; border: 1px solid #c2c9d2;
         border-radius: 6px; box-shadow: 0 4px 16px #0002; font-size: 12px; overflow-wrap: anywhere; }
  #tip strong { font-size: 13px; }
  #tip div { color: var(--dim); }
  #tip table { margin-top: 5px; border-spacing: 0; }
  #tip td { padding: 0 14px 0 0; font-variant-numeric: tabular-nums; }
  #tip td + td { text-align: right; }
</style>
<header>
  <h1 id="title"></h1>
  <p id="about"></p>
  <nav>
    <div id="legend"></div>
    <span class="choice"><button id="state" class="on">by state</button><button id="layer">by layer</button></span>
    <input id="find" type="search" placeholder="find a function" size="16" aria-label="find a function">
    <span><button id="back" disabled>back</button> <button id="whole" disabled>whole</button></span>
  </nav>
</header>
<div id="room"><canvas></canvas><div id="height"></div></div>
<footer>A row is a layer: what a box called lies below it. Width is wall time. Coloured by state, a box is filled in proportion to what its
  time went to. Click a box to zoom in, drag to move, Ctrl+wheel to zoom, Esc for the whole.</footer>
<div id="tip"></div>
<noscript>This page draws with JavaScript.</noscript>
<script type="application/json" id="trace">{{trace}}</script>
<script>
"use strict";
const trace = JSON.parse(document.getElementById("trace").textContent);
const $ = id => document.getElementById(id);
const room = $("room"), canvas = room.querySelector("canvas"), pen = canvas.getContext("2d"), tip = $("tip");
const ROW = 20, LANE = 14, AXIS = 24;
const PARTS = [["on CPU", "#86cf9d"], ["run queue", "#f5cc62"], ["GIL wait", "#ef867b"], ["blocked", "#b4ccf0"], ["off CPU", "#b4ccf0"], ["not recorded", "#d9dde3"]];
const LAYERS = {module: "#c6a5ee", python: "#a5c8f2", operator: "#86cf9d", blas: "#f5b266", cuda: "#ef867b", import: "#dccba6", gc: "#c3c9d1"};
const lane = trace.states.length ? LANE + 4 : 0;

// A box: s start, e end, f function, n calls, w wall, p the parts of the wall, k what threads without Python did meanwhile.
const boxes = rows => rows.map(([gap, length, f, n, wall, ...rest]) => {
  let at = 0;
  return gap.map((g, i) => {
    const s = at + g, p = rest.slice(0, -1).map(part => part[i]), w = length[i] + wall[i];
    at = s + length[i];
    return {s, e: at, f: f[i], n: n[i], w, p: [w - p.reduce((a, b) => a + b), ...p], k: rest.at(-1)[i]};
  });
});
const rows = boxes(trace.rows), states = boxes(trace.states)[0] || [];
const occurs = PARTS.map((_, i) => [...rows, states].some(row => row.some(box => box.p[i])));
const total = rows[0].reduce((sum, box) => sum.map((x, i) => x + box.p[i]), PARTS.map(() => 0));
let view = [0, trace.wall_ns], history = [], by = "state", wanted = "", width = 0, pointed = null, drag = null;

const number = n => n.toLocaleString("en");
const unit = ns => ns >= 1e9 ? [1e9, "s"] : ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "µs"] : [1, "ns"];
function time(ns) {
  const [scale, letters] = unit(ns), value = ns / scale;
  return (value >= 100 ? Math.round(value) : +value.toPrecision(3)) + " " + letters;
}
function moment(ns, step) {  // as exact as `step` needs
  const [scale, letters] = unit(view[1]);
  return (ns / scale).toFixed(Math.max(0, Math.ceil(Math.log10(scale / step)))) + " " + letters;
}
const share = part => part >= 0.0995 ? Math.round(100 * part) + " %" : part >= 0.0005 ? (100 * part).toFixed(1) + " %" : "<0.1 %";
const name = box => box.f < 0 ? "" : trace.functions[box.f][0];
const label = box => box.n > 1 ? `${number(box.n)} calls, most of it ${name(box)}` : name(box);

function fill(box, x, y, w, h) {
  if (by === "layer" && box.f >= 0) {
    pen.fillStyle = LAYERS[trace.layers[trace.functions[box.f][2]]];
    const full = h * Math.min(1, box.w / (box.e - box.s || 1));
    pen.fillRect(x, y + h - full, w, full);
    return;
  }
  let bottom = y + h;
  for (let i = 0; i < PARTS.length; i++) {
    const part = h * box.p[i] / (box.e - box.s || 1);
    if (part <= 0) continue;
    pen.fillStyle = PARTS[i][1];
    pen.fillRect(x, bottom - part, w, part);
    bottom -= part;
  }
}

function fitting(box, space) {
  const text = label(box), fits = some => pen.measureText(some).width <= space;
  if (fits(text)) return text;
  if (box.n > 1) return [`${number(box.n)} calls`, ""].find(fits);
  let length = Math.min(text.length - 1, Math.ceil(space / 4));
  while (length > 1 && !fits(text.slice(0, length) + "…")) length--;
  return length > 1 ? text.slice(0, length) + "…" : "";
}

function row(of, y, h) {
  const [low, high] = view, scale = width / (high - low);
  let first = 0, last = of.length, painted = -1;
  while (first < last) { const middle = (first + last) >> 1; of[middle].e <= low ? first = middle + 1 : last = middle; }
  for (let i = first; i < of.length && of[i].s < high; i++) {
    const box = of[i], x = Math.max((box.s - low) * scale, -2), stop = Math.min((box.e - low) * scale, width + 2);
    if (stop < painted + 0.4) continue;
    const w = Math.max(stop - x, 0.6), found = !wanted || (box.f >= 0 && name(box).toLowerCase().includes(wanted));
    painted = x + w;
    pen.globalAlpha = found || box.f < 0 ? 1 : 0.18;
    if (w > 3) { pen.fillStyle = "#f1f3f6"; pen.fillRect(x, y, w - 0.7, h); }
    fill(box, x, y, w > 3 ? w - 0.7 : w, h);
    const from = Math.max(x, 0) + 4, space = Math.min(stop, width) - from - 3;
    if (box.f < 0 || space < 14) continue;
    const text = fitting(box, space);
    if (!text) continue;
    pen.fillStyle = "#1b1f24";
    pen.fillText(text, from, y + h / 2 + 0.5);
  }
  pen.globalAlpha = 1;
}

function axis() {
  const [low, high] = view, raw = (high - low) / Math.max(width / 130, 1), power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(1, [1, 2, 5, 10].find(m => m * power >= raw) * power);
  pen.fillStyle = "#fff"; pen.fillRect(0, 0, width, AXIS + lane);
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) {
    const x = (at - low) / (high - low) * width;
    pen.fillStyle = "#e3e7ec"; pen.fillRect(x, 0, 1, AXIS);
    pen.fillStyle = "#5b6673"; pen.fillText(moment(at, step), x + 5, 11);
  }
  if (lane) row(states, AXIS - 2, LANE);
}

function draw() {
  const sharp = window.devicePixelRatio || 1, height = room.clientHeight;
  width = room.clientWidth;
  $("height").style.height = Math.max(AXIS + lane + rows.length * ROW + 12 - height, 0) + "px";
  canvas.width = width * sharp; canvas.height = height * sharp; canvas.style.height = height + "px";
  pen.scale(sharp, sharp);
  pen.font = '11.5px system-ui, "Segoe UI", "DejaVu Sans", sans-serif'; pen.textBaseline = "middle";
  const top = AXIS + lane;
  for (let r = Math.floor(room.scrollTop / ROW); r < rows.length && top + r * ROW - room.scrollTop < height; r++)
    row(rows[r], top + r * ROW - room.scrollTop, ROW - 1);
  axis();
  if (pointed) outline(pointed);
  $("whole").disabled = view[0] <= 0 && view[1] >= trace.wall_ns;
  $("back").disabled = !history.length;
}

function outline({box, y, h}) {
  const scale = width / (view[1] - view[0]), x = (box.s - view[0]) * scale;
  pen.strokeStyle = "#1b1f24"; pen.strokeRect(x + 0.5, y + 0.5, Math.max((box.e - box.s) * scale - 1.5, 1), h - 1);
}

function under(event) {
  const area = canvas.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top;
  const at = view[0] + x / width * (view[1] - view[0]), near = 1.5 / width * (view[1] - view[0]);
  const r = Math.floor((y - AXIS - lane + room.scrollTop) / ROW);
  const on = y < AXIS ? null : y < AXIS + lane ? states : rows[r];
  if (!on) return null;
  let first = 0, last = on.length;
  while (first < last) { const middle = (first + last) >> 1; on[middle].e <= at - near ? first = middle + 1 : last = middle; }
  const box = on[first];
  if (!box || box.s > at + near) return null;
  return on === states ? {box, y: AXIS - 2, h: LANE} : {box, r, y: AXIS + lane + r * ROW - room.scrollTop, h: ROW - 1};
}

function element(tag, text, colour) {
  const made = document.createElement(tag);
  if (colour) { const swatch = document.createElement("i"); swatch.style.background = colour; made.append(swatch); }
  made.append(text);
  return made;
}

function explain({box, r}, event) {
  const table = document.createElement("table"), line = (...cells) => { const tr = document.createElement("tr"); tr.append(...cells); table.append(tr); };
  line(element("td", box.n > 1 ? "wall, together" : "wall"), element("td", time(box.w)), element("td", ""));
  PARTS.forEach(([what, colour], i) => box.p[i] && line(element("td", what, colour), element("td", time(box.p[i])), element("td", share(box.p[i] / box.w))));
  if (box.k) line(element("td", "threads without Python, meanwhile"), element("td", time(box.k)), element("td", ""));
  const head = box.f < 0 ? [element("strong", "the thread's own state")] : [element("strong", label(box)), element("div", trace.functions[box.f][1])];
  if (box.f >= 0) head.push(element("div", `${trace.layers[trace.functions[box.f][2]]}, layer ${r}`));
  const exact = Math.max(1, (view[1] - view[0]) / 1e4), from = moment(box.s, exact);
  head.push(element("div", box.n > 1 ? `between ${from} and ${moment(box.e, exact)}, each too short for this picture` : `at ${from}`));
  tip.replaceChildren(...head, table);
  tip.style.display = "block";
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (event.clientY + 18 + tip.offsetHeight > innerHeight ? Math.max(4, event.clientY - tip.offsetHeight - 10) : event.clientY + 18) + "px";
}

function go(low, high, remember = true) {
  const span = Math.min(Math.max(high - low, 20), trace.wall_ns);
  low = Math.min(Math.max(low, 0), trace.wall_ns - span);
  if (remember) history.push(view);
  view = [low, low + span]; pointed = null; tip.style.display = "none";
  draw();
}
const whole = () => { history = []; go(0, trace.wall_ns, false); };

function legend() {
  const present = new Set(trace.functions.map(f => trace.layers[f[2]])), all = total.reduce((a, b) => a + b);
  const items = by === "state" ? PARTS.map(([what, colour], i) => occurs[i] && [what + " ", colour, total[i] ? share(total[i] / all) : ""])
                               : trace.layers.map(layer => present.has(layer) && [layer, LAYERS[layer], ""]);
  $("legend").replaceChildren(...items.filter(Boolean).map(([what, colour, value]) => {
    const item = element("span", what, colour); item.append(element("b", value)); return item;
  }));
}
function colour(what) {
  by = what; $("state").className = what === "state" ? "on" : ""; $("layer").className = what === "layer" ? "on" : "";
  legend(); draw();
}

canvas.onmousedown = event => { drag = {x: event.clientX, view, moved: false}; };
onmouseup = () => { if (drag && drag.moved) setTimeout(() => drag = null); else drag = null; };
canvas.onmousemove = event => {
  if (drag && event.buttons && Math.abs(event.clientX - drag.x) > 3) {
    if (!drag.moved) { drag.moved = true; history.push(drag.view); }
    const moved = (drag.x - event.clientX) / width * (drag.view[1] - drag.view[0]);
    return go(drag.view[0] + moved, drag.view[1] + moved, false);
  }
  pointed = under(event); draw();
  pointed ? explain(pointed, event) : tip.style.display = "none";
};
canvas.onmouseleave = () => { pointed = null; tip.style.display = "none"; draw(); };
canvas.onclick = event => { const found = !(drag && drag.moved) && under(event); if (found) { const rim = (found.box.e - found.box.s) * 0.01; go(found.box.s - rim, found.box.e + rim); } };
room.addEventListener("wheel", event => {
  if (!event.ctrlKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
  event.preventDefault();
  const span = view[1] - view[0];
  if (!event.ctrlKey) return go(view[0] + event.deltaX / width * span, view[1] + event.deltaX / width * span, false);
  const at = view[0] + (event.clientX - canvas.getBoundingClientRect().left) / width * span, factor = Math.exp(event.deltaY / 300);
  go(at - (at - view[0]) * factor, at + (view[1] - at) * factor, false);
}, {passive: false});
onkeydown = event => { if (event.key === "Escape") whole(); };
onresize = draw;
room.onscroll = () => { pointed = null; tip.style.display = "none"; draw(); };
$("find").oninput = event => { wanted = event.target.value.toLowerCase(); draw(); };
$("back").onclick = () => { const before = history.pop(); if (before) go(...before, false); };
$("whole").onclick = whole;
$("state").onclick = () => colour("state");
$("layer").onclick = () => colour("layer");

$("title").textContent = trace.title || "a Python program"; $("title").title = trace.title;
document.title = `${trace.thread}: layers`;
$("about").textContent = `${trace.thread}: ${number(trace.calls)} calls in ${rows.length} layers over ${time(trace.wall_ns)}, from ${time(trace.from_ns)} after recording began`;
legend(); draw();
</script>
</html>
"""
