// Tables: rows that can be sorted by a column, and matrices.
import {el} from "./dom.js";

export const colourList = model => model.page.parts.map(([, colour]) => colour);
export const nameCell = (name, place) => el("span", {title: place ? `${name}\n${place}` : name}, name, place ? el("span", {class_: "dim"}, "  " + short(place)) : "");

/** The last parts of a path: the rest stands in the hint. */
const short = place => place.split("/").slice(-2).join("/");

/** columns: [title, cell(row), class, sort(row)]; go(row) when one is chosen. */
export function table(columns, rows, {go, chosen, sort, least, most = 300} = {}) {
  const body = el("tbody"), heads = [];
  let shown = most, by = sort ?? null;
  const fill = () => {
    const key = by !== null && columns[by][3], list = key ? [...rows].sort((a, b) => { const x = key(a), y = key(b); return typeof x === "string" ? x.localeCompare(y) : (y ?? -1) - (x ?? -1); }) : rows;
    body.replaceChildren(...list.slice(0, shown).map(row => {
      const line = el("tr", {class_: (go ? "goes" : "") + (chosen?.(row) ? " chosen" : "")}, ...columns.map(([, cell, kind]) => el("td", {class_: kind ?? ""}, cell(row) ?? "-")));
      if (go) { line.tabIndex = 0; line.onclick = () => go(row); line.onkeydown = event => { if (event.key === "Enter") go(row); }; }
      return line;
    }));
    if (list.length > shown) body.append(el("tr", {}, el("td", {colspan: columns.length, class_: "name"}, el("button", {type: "button", onclick: () => { shown *= 4; fill(); }}, `show more of ${list.length.toLocaleString("en")}`))));
    heads.forEach((th, i) => { if (i === by) th.setAttribute("aria-sort", "descending"); else th.removeAttribute("aria-sort"); });
  };
  for (const [i, [title, , kind, key]] of columns.entries()) {
    const th = el("th", {class_: (kind ?? "") + (key ? " sorts" : ""), scope: "col"}, title);
    if (key) th.onclick = () => { by = i; fill(); };
    heads.push(th);
  }
  fill();
  return el("table", {class_: "rows"}, el("thead", {}, el("tr", {}, ...heads)), body);
}

/** Rows × columns, each cell the stronger the larger: value(row, column), words(value). */
export function matrix(rows, columns, value, words, colour, {corner = "", flat = false, narrow = false} = {}) {
  const all = rows.map(row => columns.map(column => value(row, column) ?? 0)), most = Math.max(1e-9, ...all.flat());
  const cell = n => el("td", {title: n ? words(n) : null, style: n ? {background: `color-mix(in srgb, ${colour} ${Math.round(10 + 62 * Math.sqrt(n / most))}%, var(--paper))`} : {}}, n ? words(n) : "");
  return el("div", {class_: "scroll"}, el("table", {class_: "matrix" + (flat ? " flat" : "") + (narrow ? " narrow" : "")},
    el("thead", {}, el("tr", {}, el("th", {}, corner), ...columns.map(c => el("th", {title: c.title ?? c.label}, el("span", {}, cut(c.label)))))),
    el("tbody", {}, ...rows.map((row, i) => el("tr", {}, el("th", {scope: "row", title: row.title ?? row.label}, row.label), ...all[i].map(cell))))));
}
const cut = text => text.length > 22 ? text.slice(0, 21) + "…" : text;
