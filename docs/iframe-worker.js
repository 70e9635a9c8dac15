// The site's search runs in a worker, which no browser starts for a page that was opened from a disk: there a hidden frame takes its place.
window.IFrameWorker = class extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe"), waiting = [];
    this.postMessage = data => waiting.push(data);
    window.addEventListener("message", event => {
      if (event.source !== frame.contentWindow) return;
      const told = new MessageEvent("message", {data: event.data});
      this.dispatchEvent(told);
      this.onmessage?.(told);
    });
    frame.hidden = true;
    frame.srcdoc = "<script>window.postMessage = data => parent.postMessage(data, '*');"
      + "window.importScripts = (...all) => all.reduce((done, src) => done.then(() => new Promise((loaded, failed) => {"
      + "document.head.append(Object.assign(document.createElement('script'), {src, onload: loaded, onerror: failed})); })), Promise.resolve());</scr" + "ipt>"
      + `<script src="${new URL(url, document.baseURI)}"></scr` + "ipt>";
    frame.onload = () => {
      this.postMessage = data => frame.contentWindow.dispatchEvent(new frame.contentWindow.MessageEvent("message", {data}));
      waiting.splice(0).forEach(this.postMessage);
    };
    this.terminate = () => frame.remove();
    document.documentElement.append(frame);
  }
};
if (location.protocol === "file:") window.Worker = window.IFrameWorker;
