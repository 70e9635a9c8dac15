// The call paths as an icicle: callers above callees by total time, or by self time with the callers below; coloured by the four ways.
import {hierarchy, partition} from "d3-hierarchy";
import {soft, theme} from "./colours.js";
import {choice, el, hint, sharp} from "./dom.js";
import {callWords, legend, ofFunction, splitRows} from "./explain.js";
import {percent, time} from "./format.js";
import {matches} from "./search.js";
import {change, state} from "./state.js";

const ROW = 20, LEAST = 0.6;
const zero = () => [0, 0, 0, 0, 0, 0];
const add = (to, from) => { for (let k = 0; k < 6; k++) to[k] += from[k]; };
const sum = parts => parts.reduce((a, b) => a + b, 0);

export function flame(model, main) {
  const tools = el("div", {class_: "tools"}), canvas = el("canvas"), room = el("div", {class_: "canvas", tabindex: 0, role: "tree", "aria-label": "call paths"}, canvas);
  main.replaceChildren(el("div", {class_: "view"}, tools, room));
  let laid = [], root = null, top = null, at = null;

  const threads = el("select", {"aria-label": "thread", onchange: event => change({thread: +event.target.value, node: null})},
    el("option", {value: -1}, "all threads"), ...model.threads.filter(t => t.python).slice(0, 500).map(t => el("option", {value: t.i}, t.title)));
  threads.value = state.thread;
  tools.append(
    choice("Show", [["down", "callers → callees"], ["up", "self ← callers"]], () => state.tree, tree => change({tree, node: null})),
    choice("Width", [["total", "wall"], ...model.page.parts.slice(0, model.page.divided ? 4 : 1).map(([name], k) => [String(k), name])], () => state.width, width => change({width})), threads, el("button", {type: "button", onclick: () => change({node: null})}, "Show all"), legend(model), el("span", {class_: "note"}));

  const value = parts => state.width === "total" ? sum(parts) : parts[+state.width];

  function grown() {
    const all = state.thread < 0 ? model.tree.nodes.filter(n => !n.parent) : model.treeByThread.nodes.find(n => !n.parent && n.thread === state.thread)?.below ?? [];
    const start = {func: -1, key: "", parts: zero(), own: zero(), calls: 0, below: [], total: 0};
    if (state.tree === "down") {
      const copy = (n, key) => ({func: n.func, calls: n.calls, parts: n.parts, own: n.own, key: key + "/" + n.func, below: n.below.map(b => copy(b, key + "/" + n.func))});
      start.below = all.map(n => copy(n, ""));
    } else {
      const visit = n => {
        let at = start;
        if (sum(n.own) > 0) for (let up = n, k = 0; up && up.func >= 0 && k < 200; up = up.parent, k++) {
          let next = (at.by ??= new Map()).get(up.func);
          if (!next) { at.by.set(up.func, next = {func: up.func, calls: 0, parts: zero(), own: zero(), key: at.key + "/" + up.func, below: []}); at.below.push(next); }
          add(next.parts, n.own);
          next.calls += n.calls;
          at = next;
        }
        n.below.forEach(visit);
      };
      all.forEach(visit);
    }
    for (const n of start.below) add(start.parts, n.parts);
    return start;
  }

  function lay() {
    const data = grown(), tree = hierarchy(data, d => d.below);
    tree.each(n => { n.value = value(n.data.parts); });
    tree.each(n => n.children?.sort((a, b) => b.value - a.value));
    partition()(tree);
    laid = tree.descendants();
    root = tree;
    top = laid.find(n => n.data.key === (state.node ?? "")) ?? root;
    const small = state.thread < 0 ? model.tree.left_out : model.treeByThread.left_out;
    tools.lastChild.textContent = small ? `${small.toLocaleString("en")} small paths are left out` : "";
    draw();
  }

  function draw() {
    const width = room.clientWidth, height = room.clientHeight, g = sharp(canvas, width, height), up = top.ancestors().slice(1), wanted = state.find;
    const deepest = top.descendants().reduce((a, n) => Math.max(a, n.depth), 0);
    canvas.style.marginBottom = Math.max(0, (deepest + 1) * ROW + 12 - height) + "px";
    g.fillStyle = theme.paper;
    g.fillRect(0, 0, width, height);
    g.font = "11.5px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";
    g.textBaseline = "middle";
    const scale = width / Math.max(1e-12, top.x1 - top.x0), off = room.scrollTop;
    at = [];
    const put = (n, x, w) => {
      const y = n.depth * ROW + 6 - off;
      if (w < LEAST || y > height || y < -ROW) return w >= LEAST;
      const inner = Math.max(0.6, w - 1), f = model.functions[n.data.func], faint = wanted && f && !matches(f);
      g.globalAlpha = faint ? 0.22 : 1;
      if (n === root) { g.fillStyle = theme.over; g.fillRect(x, y, inner, ROW - 1); } else {
        const parts = n.data.parts, whole = sum(parts) || 1;
        let left = x;
        parts.forEach((ns, k) => { if (ns > 0) { const part = inner * ns / whole; g.fillStyle = soft(model.page.parts[k][1]); g.fillRect(left, y, part + 0.3, ROW - 1); left += part; } });
      }
      if (w > 26) label(g, n === root ? (state.thread < 0 ? "all threads" : model.threads[state.thread]?.title ?? "") : f?.name ?? "(unknown)", x + 5, y + ROW / 2, inner - 8, theme.ink);
      g.globalAlpha = 1;
      at.push([x, y, w, n]);
      return true;
    };
    for (const n of up) put(n, 0, width);
    const walk = n => { if (put(n, (n.x0 - top.x0) * scale, (n.x1 - n.x0) * scale)) n.children?.forEach(walk); };
    walk(top);
  }

  const under = event => { const area = canvas.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top; return at?.findLast(([bx, by, w]) => x >= bx && x < bx + w && y >= by && y < by + ROW)?.[3]; };
  canvas.onmousemove = event => {
    const n = under(event), d = n?.data;
    canvas.style.cursor = n ? "pointer" : "default";
    hint(n && n !== root ? ofFunction(model, model.functions[d.func], [[state.tree === "down" ? "total" : "self, through here", time(sum(d.parts)), percent(sum(d.parts), sum(root.data.parts)) + " of all"],
      state.tree === "down" ? ["self", time(sum(d.own))] : null, ["", callWords(model, d.calls)], ...splitRows(model, d.parts)]) : null, event.clientX, event.clientY);
  };
  canvas.onmouseleave = () => hint(null);
  canvas.onclick = event => { const n = under(event); if (n) change({node: n.data.key || null, f: n.data.func >= 0 ? n.data.func : state.f}); };
  canvas.ondblclick = event => { const n = under(event); if (n && n !== root) change({view: "functions", f: n.data.func}); };
  room.onscroll = draw;
  room.onkeydown = event => {
    const go = n => { if (n) change({node: n.data.key || null}); };
    const beside = step => top.parent?.children[top.parent.children.indexOf(top) + step];
    const does = {ArrowUp: () => go(top.parent), ArrowDown: () => go(top.children?.[0]), ArrowLeft: () => go(beside(-1)), ArrowRight: () => go(beside(1))}[event.key];
    if (does) { event.preventDefault(); does(); }
  };
  lay();
  return what => {
    if ("tree" in what || "thread" in what || "width" in what) { threads.value = state.thread; lay(); }
    else if ("node" in what) { top = laid.find(n => n.data.key === (state.node ?? "")) ?? root; draw(); } else if ("find" in what || "theme" in what || "size" in what) draw();
  };
}

/** A name as far as it fits. */
export function label(g, text, x, y, width, colour) {
  if (width < 14) return;
  const cells = Math.floor(width / 6.1);
  let shown = text.length > cells * 1.4 ? text.slice(0, Math.floor(cells * 1.4)) : text;
  if (g.measureText(shown).width > width) { while (shown && g.measureText(shown + "…").width > width) shown = shown.slice(0, -1); shown = shown.length > 1 ? shown + "…" : ""; } else if (shown.length < text.length) shown += "…";
  g.fillStyle = colour;
  g.fillText(shown, x, y);
}
