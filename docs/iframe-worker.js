// Runs the worker of the search in a frame where the browser allows none: on pages opened from a disk (file://).
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = (...urls) => urls.reduce((before, next) => before.then(() => this.load(next)), Promise.resolve());
      this.loaded = this.load(url);
      this.addEventListener("message", (event) => this.onmessage?.(event));
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script");
        Object.assign(script, { src: new URL(url, document.baseURI).href, onload: resolve, onerror: reject });
        this.inside.document.body.append(script);
      });
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
