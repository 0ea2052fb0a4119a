/* Browsers refuse to start a Worker from a file. The search then runs in a hidden frame behind the same interface. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = `<script>
        postMessage = data => parent.postMessage(data, "*")
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {
          const script = document.createElement("script")
          script.src = url
          script.onload = done
          script.onerror = failed
          document.body.appendChild(script)
        })), Promise.resolve())
      </` + `script><script src="${url}"></` + `script>`
      this.ready = new Promise(done => frame.addEventListener("load", done, { once: true }))
      this.frame = frame
      this.heard = event => {
        if (event.source !== frame.contentWindow) return
        const message = new MessageEvent("message", { data: event.data })
        this.dispatchEvent(message)
        if (this.onmessage) this.onmessage(message)
      }
      window.addEventListener("message", this.heard)
      document.body.appendChild(frame)
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      window.removeEventListener("message", this.heard)
      this.frame.remove()
    }
  }
}
