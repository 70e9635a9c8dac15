// The other reports: waits, GIL, cores, tasks, operators, memory.
import {bar, el} from "./dom.js";
import {legend, ofWait, sentence} from "./explain.js";
import {count, percent, size, time} from "./format.js";
import {change} from "./state.js";
import {colourList, matrix, nameCell, table} from "./table.js";

const MATRIX = 14;
const GIL = ["#c2410c", "#7c3aed"];
const place = (file, line) => (file ? file + (line > 0 ? ":" + line : "") : "");
const ofFunction = (row, side = "") => row[side + "qualname"] ? nameCell(row[side + "qualname"], place(row[side + "file"], row[side + "first_line"])) : el("span", {class_: "dim"}, row.held && side === "holding_" && row.held !== "function" ? `(${row.held})` : "(no Python call)");
const noted = (title, note) => el("h2", {}, title, note ? el("small", {}, note) : null);
const said = report => report.sentence ? el("p", {class_: "said"}, ...sentence(report.sentence)) : null;
const pane = (...children) => el("div", {class_: "pad sentences"}, ...children);
const ns = (title, name) => [title, r => time(r[name]), "", r => r[name]];
const number = (title, name) => [title, r => count(r[name]), "", r => r[name]];
const of = (report, rows = report.rows) => `${count(rows.length)} of ${count(report.count)}`;

export function waits(model, main) {
  const report = model.page.tables.wait, w = model.waits, most = Math.max(1, ...report.rows.map(r => r.total_ns)), colours = model.page.parts.map(p => p[1]);
  const colour = kind => kind === "gil" ? colours[2] : kind === "preempted" ? colours[1] : colours[3];
  const what = r => r.primitive ?? (r.resource != null ? r.resource + (r.syscall ? ` (${r.syscall})` : "") : r.lock_address != null ? `${r.kind} ${"0x" + r.lock_address.toString(16)}` : r.kind === "gil" ? "GIL" : r.kind + (r.syscall && r.kind !== "stop-the-world" ? ` ${r.syscall}` : ""));
  const who = r => {
    if (r.partner_qualname && r.partner_func_ns >= 0.25 * r.total_ns) return nameCell((r.partner_primitive ? r.partner_primitive + " by " : "") + r.partner_qualname, place(r.partner_file, r.partner_first_line));
    if (r.partner_ns < 0.25 * r.total_ns) return "many";
    return r.partner_tid > 0 ? `${r.partner_name ?? "thread"} ${r.partner_tid}` : r.partner_tid === 0 ? (["gil", "preempted"].includes(r.kind) ? "(nobody)" : "(timer, device)") : "(not known)";
  };
  const kept = [...w.start.keys()].filter(i => model.threads[w.thread[i]]?.python && w.func[i] >= 0), longest = [...kept].sort((a, b) => w.length[b] - w.length[a]).slice(0, 200);
  main.replaceChildren(pane(said(report), noted("What the threads waited for", `${of(report)} causes; queued: of the total, runnable but without a core`), table([
    ["", r => bar([r.total_ns], [colour(r.kind)], most), "wide"], ["what", what, "wide"], number("waits", "waits"), ns("total", "total_ns"), ns("queued", "queued_ns"), ns("longest", "longest_ns"),
    ["mostly in", r => ofFunction(r), "name"], ["mostly for", who, "name"]], report.rows, {sort: 3}),
  noted("The longest waits, one by one", `${count(longest.length)} of ${count(kept.length)} that are kept; choose one to see it in the timeline`), table([
    ["at", i => time(w.start[i] + model.page.from_ns), "", i => -w.start[i]], ["for", i => time(w.length[i]), "", i => w.length[i]], ["thread", i => model.threads[w.thread[i]]?.title ?? "?", "wide"],
    ["what", i => model.page.waits.kinds[w.kind[i]].replace(/^gil$/, "GIL"), "wide"], ["in", i => w.func[i] >= 0 ? nameCell(model.name(w.func[i]), model.functions[w.func[i]]?.place) : "(no call)", "name"],
    ["who held it, took the core, or woke it", i => ofWait(model, i)[1].querySelectorAll("tr")[2].lastChild.textContent + (w.by_func[i] >= 0 ? ` in ${model.name(w.by_func[i])}` : ""), "name"]],
  longest, {sort: 1, most: 40, go: i => { const pad = w.length[i] * 0.4 + 1000; change({view: "timeline", a: Math.max(0, w.start[i] - pad), b: Math.min(model.wall, w.start[i] + w.length[i] + pad), thread: -1}); }})));
}

function ranked(rows, key, weight) {
  const sums = new Map();
  for (const row of rows) sums.set(key(row), (sums.get(key(row)) ?? 0) + weight(row));
  return [...sums.entries()].sort((a, b) => b[1] - a[1]).slice(0, MATRIX).map(([label]) => ({label}));
}

export function gil(model, main) {
  const report = model.page.tables.gil, {processes, threads, takes} = report.gil;
  const total = name => processes.reduce((a, p) => a + (p[name] ?? 0), 0), shares = ["alone_ns", "contended_ns", "handover_ns", "idle_ns", "unknown_ns"];
  const looks = [["uncontended", model.page.parts[0][1]], ["held while somebody waits", model.page.parts[2][1]], ["handed over", model.page.parts[1][1]], ["idle", model.page.parts[3][1]], ["unknown", model.page.parts[5][1]]];
  const waiting = r => r.waiting_qualname ?? "(no call)", holding = r => r.holding_qualname ?? (r.held === "nobody" ? "(nobody: handed over)" : `(${r.held})`);
  const rows = ranked(report.rows, waiting, r => r.total_ns), columns = ranked(report.rows, holding, r => r.total_ns);
  const cell = (a, b) => report.rows.filter(r => waiting(r) === a.label && holding(r) === b.label).reduce((s, r) => s + r.total_ns, 0);
  const named = new Map(threads.map(t => [`${t.pid}/${t.tid}`, `${t.name ?? "thread"} ${t.tid}`])), shown = threads.slice(0, MATRIX).map(t => ({label: named.get(`${t.pid}/${t.tid}`), ...t}));
  const took = (a, b) => takes.find(t => t.pid === a.pid && t.tid === a.tid && t.pid === b.pid && t.holder_tid === b.tid)?.waits ?? 0;
  main.replaceChildren(pane(said(report),
    processes.length ? el("div", {}, noted(`The GIL was held ${percent(total("held_ns"), total("wall_ns"))} of ${time(total("wall_ns"))}, ${percent(total("contended_ns"), total("wall_ns"))} while somebody waited for it`),
      el("div", {class_: "big"}, bar(shares.map(total), looks.map(l => l[1]))), el("span", {class_: "legend"}, ...looks.map(([name, colour], k) => total(shares[k]) ? el("span", {}, el("i", {style: {background: colour}}), `${name} ${percent(total(shares[k]), total("wall_ns"))}`) : null).filter(Boolean))) : el("p", {}, "Who held the GIL was not recorded."),
    report.rows.length ? el("div", {}, noted("Who waited for whom", "time that functions waited (rows) for the GIL while it was held by functions (columns)"), matrix(rows, columns, cell, time, GIL[0], {corner: "waiting ↓   holding →"})) : el("p", {}, "No thread waited for the GIL."),
    el("div", {class_: "sides"},
      shown.length ? el("div", {}, noted("Threads: who had it when a wait began", "waits"), matrix(shown, shown, took, count, GIL[1], {narrow: true, corner: "waiting ↓   holding →"})) : null,
      el("div", {}, noted("Threads", of(report, threads).replace(/ of.*/, "") + "; convoys: waits right after a short hold"), table([ns("held", "held_ns"), ns("waited", "waited_ns"), number("waits", "waits"), ns("mean", "mean_ns"), ns("longest", "longest_ns"), number("convoys", "convoys"), ["thread", t => named.get(`${t.pid}/${t.tid}`), "name"]], threads, {sort: 1}))),
    noted("Pairs of functions", of(report)), table([number("waits", "waits"), ns("total", "total_ns"), ns("longest", "longest_ns"), ["waiting", r => ofFunction(r, "waiting_"), "name"], ["GIL held by", r => ofFunction(r, "holding_"), "name"]], report.rows, {sort: 1})));
}

export function cores(model, main) {
  const report = model.page.tables.core, more = report.cores, cpus = [...new Set(report.rows.map(r => r.cpu))].sort((a, b) => a - b).map(cpu => ({label: `core ${cpu}`, cpu}));
  const key = r => `${r.name ?? "thread"} ${r.tid}`, threads = ranked(report.rows, key, r => r.busy_ns), functions = ranked(more.functions, r => r.qualname ?? "(unknown)", r => r.self_on_cpu_ns);
  const sum = (rows, fits, what) => rows.filter(fits).reduce((s, r) => s + r[what], 0), whole = more.cores_at_a_time.reduce((a, r) => a + r.ns, 0);
  const flat = {flat: cpus.length <= 24}, CORE = model.page.parts[0][1];
  main.replaceChildren(pane(
    el("p", {class_: "said"}, more.busy_cores === null ? "Which core ran what is not known." : `${more.busy_cores.toFixed(2)} cores busy on average: ${more.cores_at_a_time.filter(r => r.ns).map(r => `${r.cores || "none"} for ${percent(r.ns, whole)}`).join(", ")} of the time.`),
    more.kept_off.length ? el("div", {}, noted("What kept threads off the cores", "threads: on average"), table([["threads", r => r.threads.toFixed(2), "", r => r.threads], ns("total", "ns"), ["waiting for", r => r.kind, "wide"], ["mostly in", r => ofFunction(r), "name"]], more.kept_off, {sort: 0})) : null,
    el("div", {class_: "sides"},
      el("div", {}, noted("What threads had of each core", "time on it"), matrix(threads, cpus, (t, c) => sum(report.rows, r => key(r) === t.label && r.cpu === c.cpu, "busy_ns"), time, CORE, flat)),
      functions.length ? el("div", {}, noted("Functions on cores", "own time on it"), matrix(functions, cpus, (f, c) => sum(more.functions, r => (r.qualname ?? "(unknown)") === f.label && r.cpu === c.cpu, "self_on_cpu_ns"), time, CORE, flat)) : null,
      more.migrations.length ? el("div", {}, noted("Moved to another core", "times, from rows to columns"), matrix(cpus, cpus, (a, b) => sum(more.migrations, r => r.cpu_before === a.cpu && r.cpu_after === b.cpu, "times"), count, GIL[1], {...flat, corner: "from ↓   to →"})) : null),
    more.preempted_by.length ? el("div", {}, noted("Preempted by", "lost: time until it had a core again"), table([ns("lost", "ns"), number("times", "times"), ["thread", r => r.tid ? nameCell(`${r.name ?? "?"} ${r.tid}`, r.traced ? "this program's own" : r.pid !== null ? `pid ${r.pid}` : "ended since") : "the idle thread: moved to another core, or throttled", "name"]], more.preempted_by, {sort: 0, most: 40})) : null));
}

export function clients(model, main) {
  const report = model.page.tables.client, most = Math.max(1, ...report.rows.map(r => r.total_ns)), colour = model.page.parts[3][1];
  const whom = r => r.resource ? (r.resource.startsWith("tcp ") ? r.resource.replace("tcp ", r.library + " ") : r.resource) : r.library;
  const who = r => r.qualname ? nameCell(r.qualname, place(r.file, r.own_line > 0 ? r.own_line : r.first_line)) : el("span", {class_: "dim"}, "(none of its own code)");
  main.replaceChildren(pane(noted("What was asked of servers, processes and pools", `${of(report)}; what a library asks of another within a call is not counted again`), table([
    ["", r => bar([r.total_ns], [colour], most), "wide"], number("calls", "count"), ns("total", "total_ns"),
    ["for", r => r.statement == null ? "(could not be read)" : el("span", {title: r.statement}, r.statement), "name"], ["of", whom, "wide"], ["asked by", who, "name"], ns("each", "each_ns"), ns("longest", "longest_ns")], report.rows, {sort: 2})));
}

export function resources(model, main) {
  const report = model.page.tables.resource, most = Math.max(1, ...report.rows.map(r => r.total_ns)), colour = model.page.parts[3][1];
  main.replaceChildren(pane(noted("Files, connections and pipes that were waited for", of(report)), table([
    ["", r => bar([r.total_ns], [colour], most), "wide"], number("waits", "waits"), ns("total", "total_ns"), ["resource", r => el("span", {title: r.resource}, r.resource), "name"],
    ["by", r => r.syscalls || "-", "wide"], ["mostly in", r => ofFunction(r), "name"], ns("longest", "longest_ns")], report.rows, {sort: 2})));
}

export function requests(model, main) {
  const report = model.page.tables.request, colours = colourList(model), most = Math.max(1, ...report.rows.map(r => r.run_ns)), states = ["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"];
  const split = r => { const out = [...states.map(name => r[name] ?? 0), 0, r.unknown_ns ?? 0]; out[r.on_cpu_ns === null ? 5 : 4] += Math.max(0, (r.run_ns ?? r.wall_ns - r.awaited_ns) - out.reduce((a, b) => a + b, 0)); return out; };
  const awaited = report.rows.some(r => r.awaited_ns > 0) ? [ns("awaited", "awaited_ns")] : [], threads = new Map(model.threads.map(t => [`${t.pid}/${t.tid}`, t]));
  main.replaceChildren(pane(said(report), noted("Requests by total time", `${of(report)}; bar: split of the time in calls`), legend(model), table([
    ["", r => bar(split(r), colours, most), "wide"], number("requests", "requests"), ns("p50", "p50_ns"), ns("p95", "p95_ns"), ns("p99", "p99_ns"), ns("longest", "max_ns"), ns("total", "run_ns"), ...awaited, ["kind", r => r.kind, "wide"],
    ["request", r => ofFunction(r), "name"]], report.rows, {sort: 6}),
  noted("The longest requests, one by one", `${count(report.longest.length)} of ${count(report.all)}; choose one to see it in the timeline`), table([
    ["", r => bar(split(r), colours), "wide"], ["at", r => time(r.start_ns + model.page.from_ns), "", r => -r.start_ns], ns("for", "wall_ns"), ...awaited, ["thread", r => threads.get(`${r.pid}/${r.tid}`)?.title ?? "?", "wide"], ["request", r => ofFunction(r), "name"]],
  report.longest, {sort: 2, most: 40, go: r => { const pad = r.wall_ns * 0.05 + 1000; change({view: "timeline", a: Math.max(0, r.start_ns - pad), b: Math.min(model.wall, r.start_ns + r.wall_ns + pad), thread: -1}); }})));
}

export function tasks(model, main) {
  const report = model.page.tables.task, colours = colourList(model), most = Math.max(1, ...report.rows.map(r => r.run_ns ?? 0));
  const columns = "run_ns" in (report.rows[0] ?? {}) ? [["", r => bar([r.on_cpu_ns, r.runq_wait_ns, r.gil_wait_ns, r.blocked_ns].map(x => x ?? 0), colours, most), "wide"], number("coroutines", "coroutines"), number("tasks", "tasks"), number("resumes", "resumes"), ns("run", "run_ns"), ns("awaited", "awaited_ns"), ns("longest", "longest_ns"), ns("held", "held_ns")] : generic(report.rows);
  main.replaceChildren(pane(said(report), noted("Coroutines by time run", `${of(report)}; bar: split of run; held: longest single resume`), legend(model), table([...columns, ["coroutine", r => ofFunction(r), "name"]], report.rows),
    report.awaited?.length ? el("div", {}, noted("What coroutines awaited", "total: time suspended in it"), table([number("times", "waits"), ns("total", "awaited_ns"), ["awaited", r => r.awaited ?? "(a future or a task)", "name"], ["by", r => ofFunction(r), "name"]], report.awaited, {sort: 1})) : null));
}

export function operators(model, main) {
  const report = model.page.tables.operator, colours = colourList(model), most = Math.max(1, ...report.rows.map(r => r.self_ns)), whole = report.rows.reduce((a, r) => a + r.self_ns, 0);
  const giga = name => [name === "flops" ? "GFLOP" : "GFLOP/s", r => r[name] == null ? "-" : count(+(r[name] / 1e9).toPrecision(3)), "", r => r[name]];
  main.replaceChildren(pane(said(report), noted("Operators by self time", of(report)), legend(model), table([
    ["", r => bar(["on_cpu", "runq_wait", "gil_wait", "blocked"].map(n => r[`self_${n}_ns`] ?? 0), colours, most), "wide"], number("calls", "calls"), ns("total", "total_ns"), ns("self", "self_ns"), ["share", r => percent(r.self_ns, whole)], ns("workers", "worker_on_cpu_ns"), giga("flops_per_s"),
    ["operator", r => nameCell(r.name + (r.overload ? "." + r.overload : ""), r.library ?? ""), "name"]], report.rows, {sort: 3}),
  report.layers?.length ? el("div", {}, noted("Layers of native code"), table([number("calls", "calls"), ns("total", "total_ns"), ns("self", "self_ns"), ns("workers", "worker_on_cpu_ns"), giga("flops"), giga("flops_per_s"), ["layer", r => r.layer, "name"]], report.layers)) : null));
}

const MEMORY = {self_bytes: "self allocated", bytes: "allocated", kept_bytes: "kept", peak_bytes: "peak", self_native_bytes: "self native", native_bytes: "native", native_kept_bytes: "native kept", self_grown_bytes: "self resident", grown_bytes: "resident", minor_faults: "faults", major_faults: "major", blocks: "blocks"};
export function memory(model, main) {
  const report = model.page.tables.memory, has = Object.keys(MEMORY).filter(name => report.rows.some(r => r[name] != null)), first = has[0], most = Math.max(1, ...report.rows.map(r => r[first] ?? 0));
  main.replaceChildren(pane(noted("What memory functions used", `${of(report)}; kept: not freed within the call; peak: of one call; resident: growth of the process's memory; bar: ${MEMORY[first] ?? ""}`), table([
    ["", r => bar([Math.max(0, r[first] ?? 0)], ["#8b5cf6"], most), "wide"], number("calls", "calls"), ...has.map(name => [MEMORY[name], r => name.endsWith("bytes") ? size(r[name]) : count(r[name]), "", r => r[name]]), ["function", r => ofFunction(r), "name"]], report.rows, {sort: 2})));
}

// The report of a stream that has no view of its own here: its columns as they are.
export const rowsOf = name => (model, main) => {
  const report = model.page.tables[name], named = "qualname" in (report.rows[0] ?? {}) ? [["function", r => ofFunction(r), "name"]] : [];
  main.replaceChildren(pane(said(report), noted(name, of(report)), table([...generic(report.rows), ...named], report.rows)));
};

const generic = rows => Object.keys(rows[0] ?? {}).filter(name => typeof rows[0][name] === "number" && !/func_id|line|pid|tid/.test(name)).map(name => name.endsWith("_ns") ? ns(name.slice(0, -3), name) : number(name, name));
