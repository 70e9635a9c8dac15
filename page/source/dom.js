// Elements. Text from the trace is only ever put in as text.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made[name] = value;
    else if (name === "style") Object.assign(made.style, value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name === "class_" ? "class" : name, value === true ? "" : value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

let tip;
export function hint(content, x, y) {
  tip ??= document.body.appendChild(el("div", {id: "tip", role: "status"}));
  tip.hidden = !content;
  if (!content) return;
  tip.replaceChildren(...content);
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (y + 18 + tip.offsetHeight > innerHeight ? Math.max(4, y - tip.offsetHeight - 10) : y + 18) + "px";
}

export function choice(label, options, get, set) {
  const buttons = options.map(([value, text]) => el("button", {type: "button", onclick: () => { set(value); mark(); }}, text));
  const mark = () => buttons.forEach((b, i) => b.setAttribute("aria-pressed", options[i][0] === get()));
  mark();
  return el("div", {class_: "choice", role: "group", "aria-label": label}, el("span", {}, label), ...buttons);
}

/** A canvas that is as sharp as the screen; returns what to draw with, in CSS pixels. */
export function sharp(canvas, width, height) {
  const ratio = devicePixelRatio || 1, w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; canvas.style.width = width + "px"; canvas.style.height = height + "px"; }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  return g;
}

const BAR = 100;
/** The four ways as a bar: of `whole`, or of all of it. */
export function bar(parts, colours, whole, words) {
  const sum = parts.reduce((a, b) => a + b, 0), of = whole || sum || 1;
  return el("span", {class_: "bar", role: "img", "aria-label": words ?? "split"},
            ...parts.map((ns, k) => ns > 0 ? el("i", {style: {width: BAR * ns / of + "%", background: colours[k]}}) : null));
}
