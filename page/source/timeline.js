// Threads × time on a canvas: calls above, the scheduling state below. Draws what is visible, a pixel once, however many boxes there are.
import {scaleLinear} from "d3-scale";
import {css, ofFunction as tint, rgba, theme} from "./colours.js";
import {el, hint, sharp} from "./dom.js";
import {callWords, facts, heading, legend, ofWait, splitRows} from "./explain.js";
import {label} from "./flame.js";
import {count, onAxis, time} from "./format.js";
import {parts} from "./model.js";
import {matching} from "./search.js";
import {change, state} from "./state.js";

const GUTTER = 168, ROW = 17, STATE = 13, GAP = 10, AXIS = 26, FOLDED = 8, LEAST_NS = 20, OVER = 46, WIDE = 3, HEAD = 30, MANY = 40, FEW_ROWS = 3, GAUGE = 5;

export function timeline(model, main) {
  const {calls, states, threads, wall, waits} = model, colours = model.page.parts.map(p => p[1]);
  const overview = el("canvas", {id: "overview"}), canvas = el("canvas"), spacer = el("div"), room = el("div", {class_: "canvas", tabindex: 0, role: "application", "aria-label": "timeline; arrow keys move, + and - zoom"}, canvas, spacer);
  const pinned = el("div", {class_: "pinned"}), tools = el("div", {class_: "tools"});
  main.replaceChildren(el("div", {class_: "view"}, tools, overview, room, pinned));
  const processes = new Map();
  for (const t of threads) if (calls.threads[t.i] || states.threads[t.i]) processes.set(t.pid, [...processes.get(t.pid) ?? [], t]);
  const several = processes.size > 1, called = pid => model.page.processes[pid] ?? "process";
  let a = state.a ?? 0, b = state.b ?? wall, lines = [], chosen = null, pending = 0, hits = null, open = new Set(), painted = 0, squeezed = false;
  let closed = new Set(several && threads.length > MANY ? processes.keys() : []);
  const own = [0, 0, 0, 0, 0, 0], solid = colours.map(rgba), layer = el("canvas");
  const size = {width: 0, height: 0};
  let picture = null, pixels = null, wide = [], shown = [];
  let drag = null, away = 0;
  const waitRange = threads.map(() => [0, 0]);
  for (let i = 0; i < waits.thread.length; i++) { const r = waitRange[waits.thread[i]]; if (r) { if (!r[1]) r[0] = i; r[1] = i + 1; } }

  const zoomed = el("span", {class_: "note"});
  const jump = step => { const list = model.moments, middle = (a + b) / 2, i = step > 0 ? list.findIndex(m => (m.start + m.end) / 2 > middle + 1) : list.findLastIndex(m => (m.start + m.end) / 2 < middle - 1); if (list[i]) look(list[i].start, list[i].end); };
  tools.append(el("button", {type: "button", onclick: () => look(0, wall), title: "0"}, "Whole"), el("button", {type: "button", onclick: () => zoom(0.5), "aria-label": "zoom in"}, "+"), el("button", {type: "button", onclick: () => zoom(2), "aria-label": "zoom out"}, "−"));
  if (model.moments.length) tools.append(el("span", {class_: "choice"}, el("span", {}, "Moments with every call"), el("button", {type: "button", onclick: () => jump(-1), title: "the one before ([)"}, "◂"), el("button", {type: "button", onclick: () => jump(1), title: "the next one (])"}, "▸")));
  if (threads.length > 1) tools.append(el("input", {type: "search", placeholder: several ? "threads, processes" : "threads", "aria-label": "show threads whose name or number has this", value: state.threads, oninput: event => change({threads: event.target.value})}));
  tools.append(legend(model), zoomed);

  function arrange() {
    span = Math.max(1, room.clientWidth - GUTTER);
    lines = [];
    const wanted = state.threads.toLowerCase(), fits = t => !wanted || `${t.title} ${called(t.pid)}`.toLowerCase().includes(wanted);
    const busy = threads.filter(t => calls.threads[t.i]).length || 1, fold = Math.max(threads.length > MANY ? FEW_ROWS : FOLDED, Math.floor((room.clientHeight - AXIS - 26 * threads.length) / busy / ROW));
    let y = 4;
    const add = line => { lines.push({...line, y}); y += line.height; };
    away = 0;
    for (const [pid, all] of processes) {
      const fitting = all.filter(fits), found = fitting.filter(isThere), shut = closed.has(pid) && !wanted;
      away += fitting.length - found.length;
      if (several && found.length) add({process: pid, found, shut, rows: 0, height: HEAD});
      for (const t of shut && several ? [] : found) {
        const own = calls.threads[t.i] ?? [], has = states.threads[t.i], deep = own.length, rows = open.has(t.i) ? deep : Math.min(deep, fold);
        add({t, rows, deep, folds: deep > fold, calls: own, height: rows * ROW + (has ? STATE + 2 : 0) + GAP});
      }
    }
    spacer.style.height = Math.max(0, y + AXIS + 8 - room.clientHeight) + "px";
  }

  /** Whether a thread does, or waits for, anything in [a, b): one that has ended, or not begun, has no row. */
  function isThere(t) {
    if (a <= 0 && b >= wall) return true;
    const has = (of, lane) => { if (!lane) return false; const i = search(of.end, lane.from, lane.to, a); return i < lane.to && of.start[i] < b; };
    return has(states, states.threads[t.i]?.[0]) || has(calls, calls.threads[t.i]?.[0]) || model.moments.some(m => has(m.calls, m.calls.threads[t.i]?.[0]));
  }

  function look(from, to) {
    const length = Math.min(wall, Math.max(LEAST_NS, to - from)), start = Math.max(0, Math.min(wall - length, from));
    a = start; b = start + length;
    change({a: a === 0 && b === wall ? null : Math.floor(a), b: a === 0 && b === wall ? null : Math.ceil(b)});
    if (!drag) arrange();  // rows stay where they are while somebody holds the picture
    later();
  }
  const zoom = (by, at = (a + b) / 2) => look(at - (at - a) * by, at + (b - at) * by);
  const pan = share => look(a + (b - a) * share, b + (b - a) * share);
  const later = () => { pending ||= requestAnimationFrame(() => { pending = 0; draw(); }); };
  let span = 1;  // pixels of time: asking the element each time would take longest of all
  const width = () => span;
  const X = ns => GUTTER + (ns - a) * width() / (b - a);
  const T = x => a + (x - GUTTER) * (b - a) / width();

  function draw() {
    const began = performance.now(), W = room.clientWidth, H = room.clientHeight;
    if (W <= GUTTER || H <= AXIS) return;
    span = W - GUTTER;
    const g = sharp(canvas, W, H), off = room.scrollTop;
    hits = matching(model);
    g.font = "11px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";
    g.textBaseline = "middle";
    let inexact = false;
    squeezed = false;
    if (picture?.width !== W || picture.height !== H) { picture = new ImageData(W, H); pixels = new Uint32Array(picture.data.buffer); layer.width = W; layer.height = H; }
    size.width = W; size.height = H;
    const paper = rgba(theme.paper), band = rgba(theme.band);
    pixels.fill(paper);
    wide = [];
    shown = model.moments.filter(m => m.start < b && m.end > a && X(m.end) - X(m.start) >= 12);
    const seen = lines.map((line, k) => ({line, k, y: Math.round(AXIS + line.y - off)})).filter(({line, y}) => y < H && y + line.height > AXIS);
    for (const {line, k, y} of seen) {
      if (line.process !== undefined) { drawProcess(line, y); continue; }
      if (k % 2) paint(0, y - GAP / 2, W, line.height, band);
      for (let depth = 0; depth < line.rows; depth++) if (y + depth * ROW < H && y + depth * ROW > AXIS - ROW) inexact = drawLane(line, depth, y + depth * ROW) || inexact;
      drawStates(line.t.i, y + line.rows * ROW + 1);
    }
    layer.getContext("2d").putImageData(picture, 0, 0);
    g.imageSmoothingEnabled = false;
    g.drawImage(layer, 0, 0);
    g.save();
    g.beginPath();
    g.rect(0, AXIS, W, H - AXIS);
    g.clip();
    for (const box of wide) drawWide(g, box);
    g.font = "12px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";
    for (const {line, y} of seen) {
      if (line.process !== undefined) {
        label(g, `${line.shut ? "▸" : "▾"} ${called(line.process)}`, 12, y + 7, GUTTER - 20, theme.ink);
        label(g, `${line.process}, ${line.found.length} thread${line.found.length === 1 ? "" : "s"}`, 12, y + 20, GUTTER - 20, theme.dim);
        continue;
      }
      label(g, line.t.title, 12, y + (line.rows ? ROW : STATE) / 2, GUTTER - 20, line.t.python ? theme.ink : theme.dim);
      const more = line.deep - line.rows;
      if (line.folds) label(g, more ? `▸ ${more} more level${more === 1 ? "" : "s"}` : "▾ fewer levels", 12, y + ROW * 1.5, GUTTER - 20, theme.dim);
    }
    g.font = "11px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";
    drawLink(g);
    g.restore();
    axis(g, W);
    minimap();
    painted = performance.now() - began;
    canvas.dataset.ms = painted.toFixed(1);
    const summed = model.page.merged_below_ns;
    zoomed.textContent = `${time(b - a)} shown` + (inexact ? `; hatched: calls shorter than ${time(summed)}, summed up` : squeezed ? "; what is narrower than a pixel is drawn as one" : model.page.sampled ? "; stacks that were sampled" : "; every call by itself")
      + (away ? `; ${count(away)} thread${away === 1 ? " has ended or not begun, and is" : "s have ended or not begun, and are"} not shown` : "");
  }

  const search = (ends, from, to, at) => { while (from < to) { const mid = (from + to) >> 1; if (ends[mid] > at) to = mid; else from = mid + 1; } return from; };

  /** The boxes of a lane in [a, b): of each moment that is wide enough every call, else those of the whole. Returns whether any stands for several. */
  function drawLane(line, depth, y) {
    let inexact = false, at = a;
    for (const m of shown) {
      inexact = boxesOf(calls, line.calls[depth], y, at, m.start, false) || inexact;
      boxesOf(m.calls, m.calls.threads[line.t.i]?.[depth], y, Math.max(a, m.start), Math.min(b, m.end), false);
      boxesOf(calls, line.calls[depth], y, Math.max(a, m.start), Math.min(b, m.end), true);
      at = m.end;
    }
    return boxesOf(calls, line.calls[depth], y, at, b, false) || inexact;
  }

  /** Narrow boxes go into the picture's pixels at once, a pixel once; wide ones are remembered, to be drawn over it. */
  function boxesOf(of, lane, y, from, to, single) {
    if (!lane || from >= to) return false;
    const {start, end, func, calls: number} = of, low = Math.max(GUTTER, X(from)), high = Math.min(GUTTER + width(), X(to));
    let i = search(end, lane.from, lane.to, from), inexact = false;
    while (i < lane.to && start[i] < to) {
      const x0 = Math.max(low, X(start[i])), x1 = Math.min(high, X(end[i])), w = x1 - x0;
      if (single && number[i] !== 1) { i++; continue; }
      if (w >= WIDE) {
        inexact ||= number[i] > 1;
        wide.push({of, i, x: x0, w, y, begins: from <= Math.max(a, start[i])});  // the rest of it beyond a moment has no gauge of its own
        i++;
        continue;
      }
      squeezed ||= w < 1;
      const x = Math.floor(x0);
      paint(x, y, Math.max(1, Math.round(w)), ROW - 1, tint(model.functions[func[i]], hits && !hits[func[i]]));
      i = w < 1 ? Math.max(i + 1, search(end, i + 1, lane.to, T(x + 1))) : i + 1;
    }
    return inexact;
  }

  function paint(x, y, w, h, colour) {
    const {width: across, height: down} = size, bottom = Math.min(down, y + h), right = Math.min(across, x + w);
    for (let row = Math.max(AXIS, y); row < bottom; row++) {
      const at = row * across;
      if (w < 8) for (let k = x; k < right; k++) pixels[at + k] = colour; else pixels.fill(colour, at + x, at + right);
    }
  }

  function drawWide(g, {of, i, x, w, y, begins}) {
    const h = ROW - 1, f = model.functions[of.func[i]], several = of.calls[i] > 1;
    g.globalAlpha = hits && !hits[of.func[i]] ? 0.2 : 1;
    g.fillStyle = css(f);
    g.fillRect(x, y, w - 0.5, h);
    if (several) hatch(g, x, y, w - 0.5, h);
    if (begins) gauge(g, of, i, x, y, Math.min(GAUGE, (w - 0.5) / 2), h);
    if (w > 22) label(g, several ? `${count(of.calls[i])} calls, mostly ${model.name(of.func[i])}` : model.name(of.func[i]), x + GAUGE + 3, y + h / 2 + 0.5, w - GAUGE - 6, several ? theme.dim : theme.ink);
    g.globalAlpha = 1;
  }

  /** The four ways of a box, one upon the other at its left edge: side by side they would read as when they were. */
  function gauge(g, of, i, x, y, w, h) {
    const p = parts(of, i, own), whole = of.length[i] - of.less[i];
    if (whole <= 0) return;
    for (let k = 0, foot = y + h; k < 6; k++) if (p[k] > 0) { const part = h * p[k] / whole; g.fillStyle = colours[k]; g.fillRect(x, foot - part, w, part); foot -= part; }
  }

  let pattern = null, patternOf = "";
  function hatch(g, x, y, w, h) {
    if (patternOf !== theme.paper) {
      const tile = el("canvas", {width: 6, height: 6}), t = tile.getContext("2d");
      t.strokeStyle = theme.paper; t.globalAlpha = 0.55; t.lineWidth = 1.4;
      t.beginPath(); t.moveTo(-1, 7); t.lineTo(7, -1); t.moveTo(-1, 1); t.lineTo(1, -1); t.moveTo(5, 7); t.lineTo(7, 5); t.stroke();
      pattern = g.createPattern(tile, "repeat"); patternOf = theme.paper;
    }
    g.fillStyle = pattern;
    g.fillRect(x, y, w, h);
  }

  function drawStates(thread, y) {
    const lane = states.threads[thread]?.[0];
    if (!lane) return;
    const {start, end, running} = states, right = GUTTER + width();
    let i = search(end, lane.from, lane.to, a);
    while (i < lane.to && start[i] < b) {
      const x0 = Math.max(GUTTER, X(start[i])), x1 = Math.min(right, X(end[i])), x = Math.floor(x0);
      const next = x1 - x0 < 1 ? Math.max(i + 1, search(end, i + 1, lane.to, T(x + 1))) : i + 1;
      let whole = 0, sum = 0, top = 0;
      for (let k = 0; k < 6; k++) whole += own[k] = running[6 * next + k] - running[6 * i + k];
      for (let k = 0; k < 6; k++) if (own[k] > 0) { const till = Math.round(STATE * (sum += own[k]) / whole); paint(x, y + top, Math.max(1, Math.ceil(x1) - x), till - top, solid[k]); top = till; }
      i = next;
    }
  }

  /** How many threads of a process ran or wanted to, all along: of each pixel's time the parts of its threads, as high as the most of them. */
  function drawProcess({found}, y) {
    const bins = Math.max(1, Math.floor(width())), sums = new Float64Array(bins * 6), high = HEAD - 8;
    for (const t of found) {
      const [of, lane] = lanes(t);
      if (lane) for (let i = search(of.end, lane.from, lane.to, a); i < lane.to && of.start[i] < b; i++) spread(of, i, a, (b - a) / bins, bins, sums);
    }
    const most = highest(sums, bins);
    paint(GUTTER, y + high, bins, 1, rgba(theme.line));
    for (let k = 0; k < bins; k++) for (let j = 0, foot = y + high; j < 3; j++) { const h = Math.round((high - 2) * sums[k * 6 + j] / most); paint(GUTTER + k, foot - h, 1, h, solid[j]); foot -= h; }
  }

  /** What is known of a thread's states: where they were not recorded, what its outermost calls or samples say. */
  const lanes = t => { const of = states.threads[t.i] ? states : calls; return [of, of.threads[t.i]?.[0]]; };

  /** Add the parts of box i to the sums of the pixels that it is in, each `per` ns from `begin` on. */
  function spread(of, i, begin, per, bins, sums) {
    const p = parts(of, i, own), length = of.end[i] - of.start[i] || 1, last = Math.min(bins - 1, Math.floor((of.end[i] - 1 - begin) / per));
    for (let k = Math.max(0, Math.floor((of.start[i] - begin) / per)); k <= last; k++) {
      const share = (Math.min(of.end[i] - begin, (k + 1) * per) - Math.max(of.start[i] - begin, k * per)) / length / per;
      for (let j = 0; j < 6; j++) sums[k * 6 + j] += p[j] * share;
    }
  }
  /** The most threads that ran or wanted to in a pixel; at least one. */
  const highest = (sums, bins) => { let most = 1; for (let k = 0; k < bins; k++) most = Math.max(most, sums[k * 6] + sums[k * 6 + 1] + sums[k * 6 + 2]); return most; };

  /** From the wait that is chosen to the thread it waited for. */
  function drawLink(g) {
    if (chosen?.wait === undefined) return;
    const i = chosen.wait, from = lines.find(l => l.t?.i === waits.thread[i]), to = lines.find(l => l.t?.i === waits.by[i]), off = room.scrollTop;
    const y = from && AXIS + from.y - off + from.rows * ROW + 1, x0 = X(waits.start[i]), x1 = X(waits.start[i] + waits.length[i]);
    if (!from) return;
    g.strokeStyle = theme.ink;
    g.lineWidth = 1.5;
    g.strokeRect(x0, y - 1, Math.max(2, x1 - x0), STATE + 2);
    if (!to || to === from) return;
    const end = AXIS + to.y - off + to.rows * ROW + STATE / 2, x = model.page.waits.kinds[waits.kind[i]] === "gil" ? x0 : x1;
    g.beginPath();
    g.moveTo(x, y + STATE / 2);
    g.bezierCurveTo(x - 40, y + STATE / 2, x - 40, end, x, end);
    g.stroke();
    g.beginPath();
    g.arc(x, end, 3.5, 0, 7);
    g.fillStyle = theme.ink;
    g.fill();
  }

  function axis(g, W) {
    g.fillStyle = theme.paper;
    g.fillRect(0, 0, W, AXIS - 1);
    const scale = scaleLinear([a, b], [GUTTER, W]), ticks = scale.ticks(Math.max(2, width() / 130)), step = ticks.length > 1 ? ticks[1] - ticks[0] : b - a;
    const {since, words} = onAxis(ticks.map(t => t + model.page.from_ns), step);
    g.strokeStyle = theme.line;
    g.lineWidth = 1;
    g.textAlign = "left";
    if (since) label(g, `${since} and`, 12, AXIS - 12, GUTTER - 20, theme.dim);
    for (const [i, t] of ticks.entries()) {
      const x = Math.round(scale(t)) + 0.5;
      g.beginPath(); g.moveTo(x, AXIS - 8); g.lineTo(x, AXIS - 1); g.stroke();
      g.fillStyle = theme.dim;
      g.fillText(words[i], x + 4, AXIS - 12);
    }
    for (const m of model.moments) {
      const x0 = X(m.start), x1 = X(m.end);
      if (x1 < GUTTER || x0 > W) continue;
      g.fillStyle = theme.ink;
      g.globalAlpha = 0.75;
      g.fillRect(Math.max(GUTTER, x0), AXIS - 4, Math.max(3, x1 - Math.max(GUTTER, x0)), 3);
      g.globalAlpha = 1;
    }
    g.beginPath(); g.moveTo(0, AXIS - 0.5); g.lineTo(W, AXIS - 0.5); g.stroke();
  }

  let whole = null;
  /** The whole trace: how many threads were in which state, all along; and what of it is shown below. */
  function minimap() {
    const W = room.clientWidth, g = sharp(overview, W, OVER), bins = Math.max(1, Math.floor(W - GUTTER)), key = bins + theme.paper;
    if (whole?.key !== key) {
      const sums = new Float64Array(bins * 6);
      for (const t of threads) {
        const [of, lane] = lanes(t);
        if (lane) for (let i = lane.from; i < lane.to; i++) spread(of, i, 0, wall / bins, bins, sums);
      }
      const most = highest(sums, bins), map = el("canvas", {width: W, height: OVER}), m = map.getContext("2d");
      for (let k = 0; k < bins; k++) {
        let y = OVER - 2;
        for (let j = 0; j < 3; j++) { const h = (OVER - 8) * sums[k * 6 + j] / most; m.fillStyle = colours[j]; m.fillRect(GUTTER + k, y - h, 1, h); y -= h; }
      }
      whole = {key, map};
    }
    g.fillStyle = theme.paper;
    g.fillRect(0, 0, W, OVER);
    g.drawImage(whole.map, 0, 0);
    g.font = "11px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";
    g.textBaseline = "middle";
    label(g, "all threads that run", 12, OVER / 2 - 7, GUTTER - 16, theme.dim);
    label(g, "or want to", 12, OVER / 2 + 7, GUTTER - 16, theme.dim);
    const x0 = GUTTER + a / wall * (W - GUTTER), x1 = GUTTER + b / wall * (W - GUTTER);
    g.fillStyle = theme.paper;
    g.globalAlpha = 0.62;
    g.fillRect(GUTTER, 0, x0 - GUTTER, OVER);
    g.fillRect(x1, 0, W - x1, OVER);
    g.globalAlpha = 1;
    g.strokeStyle = theme.ink;
    if (b - a < wall) g.strokeRect(Math.round(x0) + 0.5, 0.5, Math.max(2, Math.round(x1 - x0) - 1), OVER - 1);
  }

  /** What is under the pointer: a call, a state or a thread. */
  function under(event) {
    const area = canvas.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top;
    const line = y > AXIS && lines.findLast(l => AXIS + l.y - room.scrollTop <= y);
    if (!line) return null;
    const depth = Math.floor((y - (AXIS + line.y - room.scrollTop)) / ROW), t = T(x), slack = (b - a) / width() * 1.5;
    if (x < GUTTER || line.process !== undefined) return {line, thread: true};
    const find = (of, lane) => { if (!lane) return -1; const i = search(of.end, lane.from, lane.to, t - slack); return i < lane.to && of.start[i] <= t + slack ? i : -1; };
    if (depth < line.rows) {
      let of = calls, i = find(calls, line.calls[depth]);
      const m = model.moments.find(each => t >= each.start && t < each.end && X(each.end) - X(each.start) >= 12);
      if (m && (i < 0 || calls.calls[i] > 1)) { of = m.calls; i = find(of, of.threads[line.t.i]?.[depth]); }
      return i < 0 ? null : {line, of, i, depth, moment: m};
    }
    const i = find(states, states.threads[line.t.i]?.[0]);
    if (i < 0) return null;
    const [from, to] = waitRange[line.t.i];
    let wait;
    for (let lo = from, hi = to; lo < hi;) { const mid = (lo + hi) >> 1; if (waits.start[mid] + waits.length[mid] <= t) lo = mid + 1; else hi = mid; if (lo >= hi && lo < to && waits.start[lo] <= t) wait = lo; }
    return {line, state: i, wait};
  }

  function explained(at) {
    if (!at || at.thread) return null;
    if (at.state !== undefined) {
      const i = at.state, single = states.calls[i] === 1;
      return [...heading(single ? model.page.parts[parts(states, i).findIndex(n => n > 0)]?.[0] ?? "" : `${count(states.calls[i])} states, summed up`, at.line.t.title),
        facts([["from", time(states.start[i] + model.page.from_ns)], ["for", time(states.length[i])], single && states.func[i] >= 0 && parts(states, i)[0] > 0 ? ["on core", states.func[i]] : null, ...(single ? [] : splitRows(model, parts(states, i)))]),
        ...(at.wait !== undefined ? [el("div", {class_: "wait-of"}, ...ofWait(model, at.wait))] : [])];
    }
    const {of, i} = at, f = model.functions[of.func[i]], several = of.calls[i] > 1;
    return [...heading(several ? `${callWords(model, of.calls[i])}, mostly ${f?.name ?? "(unknown)"}` : f?.name ?? "(unknown)", f?.place),
      facts([["thread", at.line.t.title, `level ${at.depth}`], ["from", time(of.start[i] + model.page.from_ns)], [several ? "within" : "for", time(of.length[i])], several ? ["inside calls", time(of.length[i] - of.less[i])] : null, ...splitRows(model, parts(of, i))]),
      several ? el("div", {class_: "place"}, "These are too short, or too many, to be kept one by one.") : null].filter(Boolean);
  }

  canvas.onpointerdown = event => { drag = {x: event.clientX, y: event.clientY, a, b, top: room.scrollTop, moved: false}; canvas.setPointerCapture(event.pointerId); };
  canvas.onpointermove = event => {
    if (drag) {
      const dx = event.clientX - drag.x;
      if (Math.abs(dx) + Math.abs(event.clientY - drag.y) > 4) drag.moved = true;
      if (drag.moved) { hint(null); const by = -dx * (drag.b - drag.a) / width(); room.scrollTop = drag.top - (event.clientY - drag.y); look(drag.a + by, drag.b + by); }
      return;
    }
    const at = under(event);
    canvas.style.cursor = at ? "pointer" : "default";
    hint(explained(at), event.clientX, event.clientY);
  };
  canvas.onpointerup = event => {
    const moved = drag?.moved;
    drag = null;
    if (moved) { arrange(); return later(); }
    const at = under(event);
    if (at?.thread) { const [of, which] = at.line.t ? [open, at.line.t.i] : [closed, at.line.process]; if (!of.delete(which)) of.add(which); arrange(); return later(); }
    pin(at);
  };
  canvas.onpointerleave = () => hint(null);
  canvas.ondblclick = event => { const at = under(event); if (at?.of) { const pad = (at.of.end[at.i] - at.of.start[at.i]) * 0.04; look(at.of.start[at.i] - pad, at.of.end[at.i] + pad); } };
  room.addEventListener("wheel", event => {
    if (!(event.ctrlKey || event.metaKey || event.shiftKey || event.deltaX)) return;
    event.preventDefault();
    const area = canvas.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY * 0.0016), T(Math.max(GUTTER, event.clientX - area.left)));
    else pan((event.deltaX || event.deltaY) / width());
  }, {passive: false});
  room.onscroll = later;
  let from = null;
  const place = event => (event.clientX - overview.getBoundingClientRect().left - GUTTER) / width() * wall;
  overview.onpointerdown = event => { from = place(event); overview.setPointerCapture(event.pointerId); };
  overview.onpointermove = event => { if (from !== null && Math.abs(place(event) - from) > wall / width() * 3) look(Math.min(from, place(event)), Math.max(from, place(event))); };
  overview.onpointerup = event => { if (from !== null && Math.abs(place(event) - from) <= wall / width() * 3) { const half = (b - a) / 2; look(place(event) - half, place(event) + half); } from = null; };

  function pin(at) {
    chosen = at;
    const told = explained(at);
    pinned.replaceChildren(...(told ? [el("div", {}, ...told.filter(part => part.className !== "wait-of")), ...told.filter(part => part.className === "wait-of"),
      at.of ? el("div", {}, el("button", {type: "button", onclick: () => change({view: "functions", f: at.of.func[at.i]})}, "Callers and callees"), " ", el("button", {type: "button", onclick: () => { const pad = at.of.length[at.i] * 0.04; look(at.of.start[at.i] - pad, at.of.end[at.i] + pad); }}, "Zoom to it")) : null].filter(Boolean)
      : [el("div", {class_: "dim"}, "Ctrl + wheel or + and − zoom, dragging and the arrow keys move, a double click fills the picture with a call; a click keeps what is said of it here. Waits: click on the strip below the calls to see for whom.")]));
    later();
  }

  let reached = null;
  /** The next call that matches what is searched for: after the one that was reached last, the middle where the picture has moved since, from the begin where all is shown. */
  function next(step) {
    const match = matching(model);
    if (!match) return;
    let found = null;
    const middle = reached?.a === a && reached.b === b ? reached.at : a <= 0 && b >= wall ? (step > 0 ? -Infinity : Infinity) : (a + b) / 2;
    for (const [of, from, to] of [[calls, -1, Infinity], ...model.moments.map(m => [m.calls, m.start, m.end])]) for (let i = 0; i < of.start.length; i++) {
      if (!match[of.func[i]] || of.start[i] <= from || of.end[i] >= to) continue;  // what goes on beyond a moment is among the others
      const at = (of.start[i] + of.end[i]) / 2;
      if (step > 0 ? at > middle + 1 && (!found || at < found[0]) : at < middle - 1 && (!found || at > found[0])) found = [at, of.start[i], of.end[i]];
    }
    if (found) { const half = Math.max((found[2] - found[1]) * 1.5, LEAST_NS); look(found[0] - half, found[0] + half); reached = {at: found[0], a, b}; }
  }

  const keys = {ArrowLeft: () => pan(-0.2), a: () => pan(-0.2), ArrowRight: () => pan(0.2), d: () => pan(0.2), "+": () => zoom(0.5), "=": () => zoom(0.5), w: () => zoom(0.5), "-": () => zoom(2), s: () => zoom(2), 0: () => look(0, wall),
                "[": () => jump(-1), "]": () => jump(1), n: () => next(1), N: () => next(-1), e: () => { open = open.size ? new Set() : new Set(threads.map(t => t.i)); arrange(); later(); },
                c: () => { closed = closed.size ? new Set() : new Set(processes.keys()); arrange(); room.scrollTop = 0; later(); }};
  arrange();
  pin(null);
  draw();
  new ResizeObserver(() => { arrange(); later(); }).observe(room);
  const update = what => {
    if ("a" in what || "b" in what) { const from = state.a ?? 0, to = state.b ?? wall; if (Math.abs(from - a) > 1 || Math.abs(to - b) > 1) { a = from; b = to; arrange(); } }
    if ("size" in what || "threads" in what) arrange();
    later();
  };
  update.key = event => keys[event.key] && (keys[event.key](), true);
  update.enter = () => next(1);
  update.measure = look;
  return update;
}
