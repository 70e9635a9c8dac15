// The first view: what was traced, where the time went, in plain sentences.
import {bar, el} from "./dom.js";
import {counted, legend, sentence} from "./explain.js";
import {count, percent, time} from "./format.js";
import {change} from "./state.js";
import {colourList, nameCell, table} from "./table.js";

function ofThread(t) {
  const out = [t.on_cpu_ns, t.runq_wait_ns, t.gil_wait_ns, t.blocked_ns, 0, t.unknown_ns].map(ns => ns ?? 0);
  out[t.on_cpu_ns === null ? 5 : 4] += Math.max(0, (t.wall_ns ?? 0) - out.reduce((a, b) => a + b, 0));
  return out;
}

export function summary(model, main) {
  const {page} = model, split = page.split, colours = colourList(model);
  const threads = page.tables.thread?.rows ?? [], most = Math.max(1, ...threads.map(t => t.wall_ns ?? 0));
  const parts = ["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns", "off", "unknown_ns"].map(name => split[name] ?? 0);
  parts[4] = Math.max(0, split.wall_ns - parts.reduce((a, b) => a + b, 0));
  const cards = [["recorded", time(page.wall_ns)], [counted(model), count(page.sampled ? threads.reduce((sum, t) => sum + (t.samples ?? 0), 0) : page.calls)], ["threads", count(page.thread_count)],
                 ...parts.map((ns, k) => ns > 0 ? [page.parts[k][0], percent(ns, split.wall_ns)] : null).filter(Boolean)];
  const top = model.functions.filter(f => f.self > 0).sort((a, b) => b.self - a.self).slice(0, 12), longest = top[0]?.self;
  const others = () => [page.sentence, ...["wait", "gil", "task", "operator"].map(name => page.tables[name]?.count ? page.tables[name].sentence : null)];
  const said = (page.findings?.length ? page.findings : others()).filter(Boolean);
  main.replaceChildren(el("div", {class_: "pad"},
    el("div", {class_: "sentences"}, ...[...new Set(said)].map((text, i) => el("p", {class_: i ? "" : "said"}, ...sentence(text)))),
    el("div", {class_: "cards"}, ...cards.map(([label, value]) => el("div", {class_: "card"}, el("b", {}, value), el("span", {}, label)))),
    split.wall_ns ? el("div", {}, el("h2", {}, `Where the ${time(split.wall_ns)} ${page.sampled ? "" : "inside calls "}went`, el("small", {}, `${page.sampled ? "by samples, " : ""}all threads together`)), el("div", {class_: "big"}, bar(parts, colours)), legend(model)) : null,
    el("div", {class_: "sides"},
      el("div", {}, el("h2", {}, "Functions by self time"), table([
        ["", f => bar(f.own, colours, longest), "wide"], ["self", f => time(f.self)], ["total", f => time(f.total)], [counted(model), f => count(f.calls)],
        ["function", f => nameCell(f.name, f.place), "name"]], top, {go: f => change({view: "functions", f: f.id})})),
      threads.length ? el("div", {}, el("h2", {}, "Threads"), table([
        ["", t => bar(ofThread(t), colours, most), "wide"], ["seen", t => time(t.wall_ns)],
        [counted(model), t => count(t.calls ?? t.samples)], ["thread", t => nameCell(t.name, `tid ${t.tid}`), "name"]], threads.slice(0, 16))) : null),
    el("h2", {}, "About this recording"),
    el("div", {class_: "sentences"}, ...page.lines.filter(Boolean).map(line => el("p", {class_: "dim"}, line)))));
}
