// What is searched for: part of a function's name or of its file.
import {state} from "./state.js";

let words = null, wanted = "";
export function matches(f) {
  if (!state.find) return true;
  if (wanted !== state.find) { wanted = state.find; words = wanted.toLowerCase().split(/\s+/).filter(Boolean); }
  const text = `${f.name} ${f.place}`.toLowerCase();
  return words.every(word => text.includes(word));
}

/** By func_id 1 for those that match; null where nothing is searched for. */
export function matching(model) {
  return state.find ? Uint8Array.from(model.functions, f => matches(f) ? 1 : 0) : null;
}
