// Perfetto's trace processor, its WebAssembly, between a pipe and a pipe: node perfetto_engine.mjs FOLDER < requests > replies
import {readFileSync, writeSync} from "node:fs";
import {createContext, runInContext} from "node:vm";

const folder = process.argv[2];
class FromFile { open(_, name) { this.name = name; } send() { this.response = new Uint8Array(readFileSync(`${folder}/${this.name}`)).buffer; } }
const worker = {WorkerGlobalScope: class {}, XMLHttpRequest: FromFile, location: {href: "file:///", protocol: "file:", host: ""}, performance, crypto, TextDecoder, URL, setTimeout, clearTimeout,
                console: {...console, log() {}, warn() {}}};
worker.self = createContext(worker);
runInContext(readFileSync(`${folder}/engine_bundle.js`, "utf8"), worker);
const port = {postMessage: reply => { for (let at = 0; at < reply.length;) at += writeSync(1, reply, at); }};
worker.onmessage({data: port});
setTimeout(() => port.onmessage({data: runInContext("bytes => new Uint8Array(bytes)", worker)(readFileSync(0))}));
