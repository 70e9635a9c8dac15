// How numbers look.
import {format} from "d3-format";

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
const whole = format(",d"), short = format(".3~s");

export function time(ns) {
  if (ns === null || ns === undefined) return "-";
  if (!ns) return "0";
  const size = Math.abs(ns), [scale, unit] = UNITS.find(([s]) => size >= s) ?? UNITS[3], value = size / scale;
  return (ns < 0 ? "-" : "") + (value >= 1000 ? whole(Math.round(value)) : value >= 100 ? Math.round(value) : +value.toPrecision(3)) + " " + unit;
}
export const count = n => n === null || n === undefined ? "-" : Number.isInteger(n) ? whole(n) : String(+n.toPrecision(3));
export const size = n => n === null || n === undefined ? "-" : short(n).replace(/[^\d.-]?$/, " $&") + "B";
export const percent = (part, of) => !of ? "-" : (p => p === 0 ? "0 %" : p < 0.1 ? "<0.1 %" : p < 10 ? p.toFixed(1) + " %" : Math.round(p) + " %")(100 * part / of);

/** Moments on an axis. Those that need more than three decimals are counted from a round moment before them all, which `since` names. */
export function onAxis(all, step) {
  const unit = UNITS.find(([s]) => step >= s)?.[0] ?? 1, whole = unit * 1000, base = all.length ? Math.floor(all[0] / whole) * whole : 0;
  if (!base || Math.abs(all.at(-1)) < 1000 * unit || exact(all.at(-1), step) <= 3) return {since: "", words: all.map(ns => moment(ns, step))};
  return {since: moment(base, whole), words: all.map(ns => "+" + ((ns - base) / unit).toLocaleString("en", {maximumFractionDigits: 2}) + " " + UNITS.find(([s]) => s === unit)[1])};
}
const exact = (ns, step) => { const [scale] = UNITS.find(([s]) => Math.abs(ns) >= s) ?? UNITS[3]; return decimals(step, scale); };
const decimals = (step, scale) => Math.ceil(-Math.log10(step / scale) - 1e-9);

/** As exact as the distance of ticks. */
export function moment(ns, step) {
  const [scale, unit] = UNITS.find(([s]) => Math.abs(ns) >= s || step >= s) ?? UNITS[3];
  return (ns / scale).toLocaleString("en", {maximumFractionDigits: Math.min(9, Math.max(0, decimals(step, scale)))}) + " " + unit;
}
