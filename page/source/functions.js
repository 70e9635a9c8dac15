// All functions, and of the chosen one its callers and callees.
import {bar, el} from "./dom.js";
import {counted, facts, legend, splitRows} from "./explain.js";
import {count, percent, time} from "./format.js";
import {split} from "./model.js";
import {matches} from "./search.js";
import {change, state} from "./state.js";
import {colourList, nameCell, table} from "./table.js";

export function functions(model, main) {
  const colours = colourList(model), all = model.functions.filter(f => f.calls > 0 || f.total > 0), most = Math.max(1, ...all.map(f => f.self));
  const list = el("div"), side = el("div");
  const draw = () => {
    const rows = all.filter(matches).sort((a, b) => b.self - a.self), whole = model.page.split.wall_ns;
    list.replaceChildren(el("h2", {}, "Functions", el("small", {}, `${count(rows.length)} of ${count(all.length)}; bar: split of self time`), " "), legend(model), table([
      ["", f => bar(f.own, colours, most), "wide"], ["self", f => time(f.self), "", f => f.self], ["of all", f => percent(f.self, whole)], ["total", f => time(f.total), "", f => f.total],
      [counted(model), f => count(f.calls), "", f => f.calls], ["run q.", f => time(f.own[1]), "", f => f.own[1]], ["GIL", f => time(f.own[2]), "", f => f.own[2]], ["blocked", f => time(f.own[3]), "", f => f.own[3]],
      ["function", f => nameCell(f.name, f.place), "name", f => f.name]], rows, {go: f => change({f: f.id}), chosen: f => f.id === state.f, sort: 1}));
    side.replaceChildren(...ofOne(model, colours, model.functions[state.f ?? rows[0]?.id]));
  };
  main.replaceChildren(el("div", {class_: "two"}, list, side));
  draw();
  return what => { if ("f" in what || "find" in what) { const top = list.scrollTop; draw(); list.scrollTop = top; } };
}

function ofOne(model, colours, f) {
  if (!f) return [el("p", {class_: "wait"}, "No function fits.")];
  const p = model.pairs, callers = [], callees = [];
  for (let i = 0; i < p.callee.length; i++) {
    if (p.callee[i] === f.id) callers.push({id: p.caller[i], calls: p.calls[i], ns: p.total_ns[i], parts: split(p, i, "")});
    if (p.caller[i] === f.id) callees.push({id: p.callee[i], calls: p.calls[i], ns: p.total_ns[i], parts: split(p, i, "")});
  }
  const list = (title, rows, nothing, note) => {
    const most = Math.max(1, ...rows.map(r => r.ns));
    return [el("h2", {}, title, el("small", {}, note)), rows.length ? table([
      ["", r => bar(r.parts, colours, most), "wide"], ["total", r => time(r.ns), "", r => r.ns], [counted(model), r => count(r.calls), "", r => r.calls],
      ["function", r => r.id < 0 ? "(the thread)" : nameCell(model.name(r.id), model.functions[r.id]?.place), "name"]],
    rows.sort((a, b) => b.ns - a.ns), {go: r => { if (r.id >= 0) change({f: r.id}); }, most: 60}) : el("p", {class_: "dim"}, nothing)];
  };
  const where = slowest(model, f.id);
  return [
    el("h2", {}, f.name), el("div", {class_: "place"}, f.place),
    facts([[counted(model), count(f.calls)], ["total", time(f.total), percent(f.total, model.page.split.wall_ns) + " of all"], ["self", time(f.self), percent(f.self, model.page.split.wall_ns) + " of all"], f.calls && !model.page.sampled ? ["mean", time(f.total / f.calls)] : null, ...splitRows(model, f.own).map(r => r && ["self, " + r[0], ...r.slice(1)])]),
    el("p", {}, el("button", {type: "button", onclick: () => change({view: "flame", tree: "up", node: null, find: ""})}, "Where its self time comes from"), " ",
      where ? el("button", {type: "button", onclick: () => { const pad = (where[1] - where[0]) * 0.15; change({view: "timeline", a: Math.max(0, where[0] - pad), b: Math.min(model.wall, where[1] + pad)}); }}, `${model.page.sampled ? "Longest time in it" : "Slowest call that is kept"} (${time(where[1] - where[0])})`) : null),
    ...list("Called by", callers, "Nobody called it while this was recorded.", "its time when called from there"),
    ...list("Calls", callees, "It called nothing that was recorded.", "time of these calls"),
  ];
}

/** Start and end of the longest call of a function that is there as one. */
export function slowest(model, id) {
  let found = null, most = -1;
  for (const c of [model.calls, ...model.moments.map(m => m.calls)]) {
    for (let i = 0; i < c.start.length; i++) if (c.func[i] === id && c.calls[i] === 1 && c.length[i] > most) { most = c.length[i]; found = [c.start[i], c.end[i]]; }
  }
  return found;
}
