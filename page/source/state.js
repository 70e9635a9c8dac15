// What is seen, as the part of the address after #: a link holds the view.

export const state = {view: "summary", a: null, b: null, find: "", threads: "", f: null, tree: "down", thread: -1, width: "total", node: null, theme: ""};
const NUMBERS = new Set(["a", "b", "f", "thread"]);
const listeners = [];
let timer = 0;

export function recall() {
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (!(name in state)) continue;
    if (!NUMBERS.has(name)) state[name] = value;
    else if (value !== "" && Number.isFinite(+value)) state[name] = +value;
  }
}
export const onchange = listener => listeners.push(listener);

/** Change what is seen; the address follows a moment later. */
export function change(what) {
  Object.assign(state, what);
  for (const listener of listeners) listener(what);
  clearTimeout(timer);
  timer = setTimeout(remember, 150);
}
export function remember() {
  if (location.protocol === "about:") return;  // within a notebook's page, whose address this one cannot change
  const said = Object.entries(state).filter(([, value]) => value !== null && value !== "" && value !== -1);
  history.replaceState(null, "", "#" + new URLSearchParams(said.map(([name, value]) => [name, typeof value === "number" ? String(Math.round(value)) : value])));
}
