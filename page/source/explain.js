// What is said of a function, a box, a wait: elements for a hint or a pane.
import {el} from "./dom.js";
import {count, percent, time} from "./format.js";

export function facts(rows) {
  return el("table", {class_: "facts"}, el("tbody", {}, ...rows.filter(Boolean).map(([label, value, more, colour]) =>
    el("tr", {}, el("td", {}, colour ? el("i", {style: {background: colour}}) : null, label), el("td", {}, value), more ? el("td", {class_: "dim"}, more) : null))));
}

export function splitRows(model, parts) {
  const whole = parts.reduce((a, b) => a + b, 0);
  return parts.map((ns, k) => ns > 0 ? [model.page.parts[k][0], time(ns), percent(ns, whole), model.page.parts[k][1]] : null);
}

export function heading(name, place) {
  return [el("strong", {}, name), place ? el("div", {class_: "place"}, place) : null].filter(Boolean);
}

export function ofFunction(model, f, rows) {
  return [...heading(f ? f.name : "(unknown)", f?.place), facts(rows)];
}

export function legend(model) {
  const used = model.page.parts.map((part, k) => [part, k]).filter(([, k]) => (model.page.divided && k < 4) || model.functions.some(f => f.parts[k] > 0));
  return el("span", {class_: "legend"}, ...used.map(([[name, colour]]) => el("span", {}, el("i", {style: {background: colour}}), name)));
}

/** A wait, and for whom. */
export function ofWait(model, i) {
  const w = model.waits, kind = model.page.waits.kinds[w.kind[i]], by = w.by[i], gil = kind === "gil";
  const verb = gil ? "GIL held by" : kind === "preempted" ? "core taken by" : "woken by";
  const who = by >= 0 ? model.threads[by].title : by === -2 ? "not known" : w.tid[i] > 0 ? `another program's thread ${w.tid[i]}` : gil ? "nobody: it was handed over" : "no thread (a timer, a device)";
  return [
    ...heading(gil ? "waited for the GIL" : kind === "preempted" ? "preempted" : `waited: ${kind}`),
    facts([["for", time(w.length[i])], ["in", w.func[i] >= 0 ? model.name(w.func[i]) : "(no call)"], [verb, who], w.by_func[i] >= 0 ? ["which was in", model.name(w.by_func[i])] : null]),
  ];
}

/** What the numbers of calls count. */
export const counted = model => model.page.sampled ? "samples" : "calls";
export const callWords = (model, n) => `${count(n)} ${n === 1 ? counted(model).slice(0, -1) : counted(model)}`;

/** A sentence of a report, whose names of functions stand between backticks. */
export const sentence = text => text.split("`").map((part, k) => k % 2 ? el("strong", {}, part) : part);
