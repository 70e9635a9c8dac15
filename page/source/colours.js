// Colours: of the four ways as everywhere in pytrace-ebpf, and of functions.

export let theme = {};
export let dark = false;

export function readTheme() {
  const style = getComputedStyle(document.documentElement);
  dark = style.getPropertyValue("--dark").trim() === "1";
  theme = Object.fromEntries(["paper", "ink", "line", "dim", "over", "band"].map(name => [name, style.getPropertyValue("--" + name).trim()]));
  tints.clear();
}

const tints = new Map();
/** A calm colour for each function, those of one file alike: as a pixel; `faint` for one that is not searched for. */
export function ofFunction(f, faint = false) {
  let pair = tints.get(f?.id);
  if (!pair) {
    const colour = f ? calm(f) : theme.line, [r, g, b] = channels(colour), [pr, pg, pb] = channels(theme.paper), mix = (c, p) => Math.round(p + (c - p) * 0.2);
    tints.set(f?.id, pair = {css: colour, pixel: word(r, g, b), faint: word(mix(r, pr), mix(g, pg), mix(b, pb))});
  }
  return faint ? pair.faint : pair.pixel;
}
export function css(f) {
  ofFunction(f);
  return tints.get(f?.id).css;
}
export const rgba = hex => word(...channels(hex));
const word = (r, g, b) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
const channels = hex => (hex.length === 4 ? [1, 2, 3].map(i => parseInt(hex[i] + hex[i], 16)) : [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)));

function calm(f) {
  const hue = (hash(f.file) * 137.5 + (hash(f.name) % 90) - 45 + 360) % 360, light = ((hash(f.name) >>> 8) % 8 + (dark ? 34 : 80)) / 100, strength = (dark ? 0.3 : 0.58) * Math.min(light, 1 - light);
  const channel = n => { const k = (n + hue / 30) % 12; return Math.round(255 * (light - strength * Math.max(-1, Math.min(k - 3, 9 - k, 1)))).toString(16).padStart(2, "0"); };
  return "#" + channel(0) + channel(8) + channel(4);
}
function hash(text) {
  let h = 2166136261;
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 16777619) >>> 0;
  return h % 1000003;
}

/** The same colour, nearer to the paper, so that a name on it can be read. */
export function soft(hex) {
  const [r, g, b] = channels(hex), to = dark ? [24, 28, 33] : [255, 255, 255], share = dark ? 0.45 : 0.52;
  return `rgb(${[r, g, b].map((c, i) => Math.round(c + (to[i] - c) * share)).join()})`;
}
