// Reads what pytrace_ebpf/view/page/columns.py packed: gzip in base64 of a length, JSON, and columns of numbers.

export async function unpack(text) {
  const coded = atob(text), bytes = new Uint8Array(coded.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = coded.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const all = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(all.buffer).getUint32(0, true);
  return [JSON.parse(new TextDecoder().decode(all.subarray(4, 4 + length))), all.subarray(4 + length)];
}

/** The numbers of one column: the bytes of one place lie side by side. */
export function column({at, n, width, least}, block) {
  const out = new Float64Array(n).fill(least);
  for (let place = 0, scale = 1; place < width; place++, scale *= 256) {
    const bytes = block.subarray(at + place * n, at + (place + 1) * n);
    for (let i = 0; i < n; i++) out[i] += bytes[i] * scale;
  }
  return out;
}

export const columns = (of, block) => Object.fromEntries(Object.entries(of).map(([name, each]) => [name, column(each, block)]));
