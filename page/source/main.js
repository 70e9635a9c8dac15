// Opens the trace that lies in the page and shows it: views, keys, search, light and dark.
import {readTheme} from "./colours.js";
import {unpack} from "./columns.js";
import {el, hint} from "./dom.js";
import {flame} from "./flame.js";
import {functions} from "./functions.js";
import {model as modelOf} from "./model.js";
import {clients, cores, gil, memory, operators, requests, resources, rowsOf, tasks, waits} from "./reports.js";
import {matches} from "./search.js";
import {change, onchange, recall, remember, state} from "./state.js";
import {summary} from "./summary.js";
import {timeline} from "./timeline.js";

const $ = id => document.getElementById(id);
const has = (m, name) => (m.page.tables[name]?.count ?? 0) > 0;
// Those that types.py makes when it is imported, and no others, are no tasks to look at.
const awaited = m => m.page.tables.task.rows.some(r => r.awaited_ns === undefined || r.awaited_ns > 0 || r.resumes > r.coroutines);
const VIEWS = [
  ["summary", "Summary", summary, () => true], ["timeline", "Timeline", timeline, m => m.calls.start.length + m.states.start.length > 0], ["flame", "Flame graph", flame, () => true],
  ["functions", "Functions", functions, () => true], ["waits", "Waits", waits, m => has(m, "wait")], ["gil", "GIL", gil, m => (m.page.tables.gil?.gil.processes.length ?? 0) > 0],
  ["cores", "Cores", cores, m => has(m, "core")], ["requests", "Requests", requests, m => has(m, "request")], ["clients", "Clients", clients, m => has(m, "client")],
  ["resources", "Resources", resources, m => has(m, "resource")],
  ["tasks", "Tasks", tasks, m => has(m, "task") && awaited(m)], ["operators", "Operators", operators, m => has(m, "operator")], ["memory", "Memory", memory, m => has(m, "memory")],
];
const IN_VIEWS = ["thread", "wait", "gil", "core", "request", "client", "resource", "task", "operator", "memory"];
const others = m => Object.keys(m.page.tables).filter(name => !IN_VIEWS.includes(name)).map(name => [name, name[0].toUpperCase() + name.slice(1), rowsOf(name), m => has(m, name)]);
const KEYS = [["1 … 9", "the views"], ["/", "find a function; Enter goes to the next in the timeline, n and N on and back"], ["← → or a d", "move"], ["+ − or w s", "zoom"], ["0", "the whole"], ["[ ]", "moments of which every call is kept"], ["e", "all levels of all threads, or the first ones"], ["c", "the threads of all processes, or each process as one row"], ["arrow keys", "in the flame graph: caller, callee, beside"], ["Esc", "end the search; show all"], ["t", "light or dark"], ["?", "this"]];

function start(model) {
  const views = [...VIEWS, ...others(model)].filter(([,,, shown]) => shown(model)), main = $("main");
  let shown = null, update = null;
  $("title").textContent = model.page.title.replace(/\S*\//g, "");
  $("title").title = model.page.title;
  document.title = `${model.page.title} - pytrace-ebpf`;
  const tabs = views.map(([id, title], i) => $("views").appendChild(el("button", {type: "button", role: "tab", title: i < 9 ? `key ${i + 1}` : null, onclick: () => change({view: id})}, title)));

  function show(what) {
    hint(null);
    const view = views.find(([id]) => id === state.view) ?? views[0];
    if (shown !== view[0]) {
      shown = view[0];
      tabs.forEach((tab, i) => tab.setAttribute("aria-selected", views[i][0] === shown));
      main.scrollTop = 0;
      update = view[2](model, main) ?? null;
    } else update?.(what);
    if ("find" in what) { const n = model.functions.filter(f => f.calls > 0 || f.total > 0).filter(matches).length; $("found").textContent = state.find ? `${n.toLocaleString("en")} function${n === 1 ? "" : "s"}` : ""; }
    if ($("find").value !== state.find) $("find").value = state.find;
  }
  function paint() {
    if (state.theme) document.documentElement.dataset.theme = state.theme; else delete document.documentElement.dataset.theme;
    readTheme();
  }
  const turn = () => { const dark = getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1"; change({theme: dark ? "light" : "dark"}); };
  onchange(what => { if ("theme" in what) paint(); show(what); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => change({theme: state.theme}));
  $("find").oninput = event => change({find: event.target.value});
  $("find").onkeydown = event => { if (event.key === "Enter") { update?.enter?.(); event.target.blur(); } };  // so that n and N are keys
  $("theme").onclick = turn;
  $("help").onclick = () => $("keys").showModal();
  $("keys").append(el("h2", {}, "Keys"), el("dl", {}, ...KEYS.flatMap(([key, does]) => [el("dt", {}, key), el("dd", {}, does)])), el("form", {method: "dialog"}, el("button", {}, "Close")));
  addEventListener("keydown", event => {
    if (event.key === "Escape" && !$("keys").open) { $("find").blur(); change({find: "", node: null}); return; }
    if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
    if (event.key === "/") { event.preventDefault(); $("find").focus(); $("find").select(); } else if (event.key === "?") $("keys").showModal();
    else if (event.key === "t") turn();
    else if (event.key >= "1" && event.key <= "9" && views[event.key - 1]) change({view: views[event.key - 1][0]});
    else if (update?.key?.(event)) event.preventDefault();
  });
  addEventListener("hashchange", () => { recall(); paint(); shown = null; show({find: state.find}); });
  addEventListener("resize", () => update?.({size: true}));
  state.view = model.page.view;
  recall();
  paint();
  show({find: state.find});
  remember();
  document.documentElement.dataset.ready = Math.round(performance.now());
}

unpack($("trace").textContent).then(parts => { $("trace").textContent = ""; start(modelOf(parts)); }).catch(error => {
  $("main").replaceChildren(el("p", {class_: "wait"}, "This page cannot be shown: it is not whole, or this browser is too old (DecompressionStream)."));
  throw error;
});
