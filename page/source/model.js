// The trace as the views use it: boxes in lanes, trees, functions, waits.
import {column, columns} from "./columns.js";

const PARTS = ["on_cpu", "runq_wait", "gil_wait", "blocked", "off", "unknown"];
export const SPLIT = [["on_cpu_ns", 0], ["runq_wait_ns", 1], ["gil_wait_ns", 2], ["blocked_ns", 3], ["unknown_ns", 5]];

/** Boxes by lane: lanes[thread] is a list by depth of {from, to}; start, end and the rest are columns of all boxes. */
export function boxes({lanes, boxes: of}, block) {
  const lane = columns(lanes, block), box = columns(of, block), n = box.gap ? box.gap.length : 0;
  const start = new Float64Array(n), end = new Float64Array(n), threads = [];
  for (let k = 0, i = 0; k < lane.count.length; k++) {
    const own = threads[lane.thread[k]] ??= [], to = i + lane.count[k];
    own[lane.depth[k]] = {from: i, to};
    for (let at = 0; i < to; i++) { start[i] = at + box.gap[i]; at = end[i] = start[i] + box.length[i]; }
  }
  return {...box, start, end, threads};
}

/** The parts of a box's time, in the order of the page's legend. */
export function parts(of, i, out = [0, 0, 0, 0, 0, 0]) {
  let rest = of.length[i] - of.less[i];
  for (let k = 1; k < 6; k++) rest -= out[k] = of[PARTS[k]][i];
  out[0] = rest;
  return out;
}

/** The parts of boxes 0 to i - 1 together, at 6 * i: what lies in a pixel is one subtraction. */
function running(of) {
  const sums = new Float64Array(6 * (of.start.length + 1)), own = [0, 0, 0, 0, 0, 0];
  for (let i = 0; i < of.start.length; i++) { parts(of, i, own); for (let k = 0; k < 6; k++) sums[6 * i + 6 + k] = sums[6 * i + k] + own[k]; }
  return sums;
}

function tree({columns: of, left_out}, block) {
  const c = columns(of, block), nodes = [];
  for (let i = 0; i < c.parent.length; i++) {
    nodes.push({i, parent: c.parent[i] < 0 ? null : nodes[c.parent[i]], func: c.func[i], thread: c.thread ? c.thread[i] : -1, calls: c.calls[i],
                total: c.total_ns[i], self: c.self_ns[i], parts: split(c, i, ""), own: split(c, i, "self_"), below: []});
    nodes[i].parent?.below.push(nodes[i]);
  }
  return {nodes, left_out};
}

/** The legend's parts of node, function or pair i: what is known of its time. */
export function split(c, i, prefix) {
  const out = [0, 0, 0, 0, 0, 0];
  for (const [name, k] of SPLIT) out[k] = c[prefix + name][i];
  out[4] = Math.max(0, c[(prefix || "total_") + "ns"][i] - out.reduce((a, b) => a + b, 0));
  return out;
}

export function model([page, block]) {
  const f = page.functions, columnsOf = Object.fromEntries(Object.entries(f).filter(([, v]) => !Array.isArray(v)).map(([k, v]) => [k, column(v, block)]));
  const functions = f.names.map((name, id) => {
    const file = columnsOf.file[id] < 0 ? "" : f.files[columnsOf.file[id]], line = columnsOf.line[id];
    return {id, name, file, place: file + (file && line > 0 ? ":" + line : ""), layer: columnsOf.layer[id], calls: columnsOf.calls[id],
            total: columnsOf.total_ns[id], self: columnsOf.self_ns[id], parts: split(columnsOf, id, ""), own: split(columnsOf, id, "self_")};
  });
  const waits = columns(Object.fromEntries(Object.entries(page.waits).filter(([k]) => k !== "kinds")), block);
  const threads = page.threads.pid.map((pid, i) => ({i, pid, tid: page.threads.tid[i], name: page.threads.name[i], python: page.threads.python[i]}));
  const several = new Set(threads.map(t => t.pid)).size > 1;
  for (const t of threads) t.title = `${t.name} ${several ? t.pid + "/" : ""}${t.tid}`;
  const calls = boxes(page.calls_of, block), p = page.pairs.columns, pairs = columns(p, block);
  const states = boxes(page.states_of, block);
  return {
    page, functions, threads, waits, calls, states: {...states, running: running(states)},
    moments: page.moments.map(m => ({...m, calls: boxes(m, block)})),
    tree: tree(page.tree, block), treeByThread: tree(page.tree_by_thread, block), pairs, wall: page.wall_ns,
    name: id => functions[id]?.name ?? "(unknown)",
  };
}
