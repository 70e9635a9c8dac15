// Bundle the page into one file, pytrace_ebpf/view/page/page.html; with --check: fail where that is not what the sources here make.
import {createHash} from "node:crypto";
import {readFileSync, writeFileSync} from "node:fs";
import {fileURLToPath} from "node:url";
import {build} from "esbuild";

const here = path => fileURLToPath(new URL(path, import.meta.url));
const OUT = here("../pytrace_ebpf/view/page/page.html");
const bundled = async (entry, options) => (await build({entryPoints: [here(entry)], bundle: true, minify: true, write: false, legalComments: "none", charset: "ascii", ...options})).outputFiles[0].text.trim();
const hash = text => "sha256-" + createHash("sha256").update(text).digest("base64");

const script = await bundled("source/main.js", {format: "iife", target: "es2022"}), style = await bundled("source/page.css", {loader: {".css": "css"}, charset: "utf8"});
if (/<\/(script|style)|\{\{/i.test(script + style)) throw new Error("the bundle would end its own element");
const parts = {"script-hash": hash(script), "style-hash": hash(style), style, script};
const page = readFileSync(here("page.html"), "utf8").replace(/\{\{([a-z-]+)\}\}/g, (hole, name) => parts[name] ?? hole);
if (process.argv.includes("--check")) {
  if (readFileSync(OUT, "utf8") !== page) { console.error("pytrace_ebpf/view/page/page.html is not what page/ makes; run make page"); process.exit(1); }
} else writeFileSync(OUT, page);
